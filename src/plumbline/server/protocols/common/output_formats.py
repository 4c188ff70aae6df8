"""Read the structured output of a request, under each of its field names, into one `OutputFormat`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.gbnf import is_gbnf
from plumbline.answer.structured_output.strict_subset import strict_violation
from plumbline.answer.turn import ChoiceFormat, GbnfFormat, JsonFormat, LarkFormat, OutputFormat, RegexFormat
from plumbline.base.exact_number import exact_number
from plumbline.contract._generated.chat import (
    ChatCompletionTool,
    CreateChatCompletionRequest,
    ResponseFormatJsonSchema,
)
from plumbline.contract._generated.common import ResponseFormatJsonObject
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract._generated.messages import CreateMessageRequest, MessageTool
from plumbline.contract._generated.responses import CreateResponse, TextResponseFormatJsonSchema
from plumbline.contract._generated.shared_fields import CompletionFields, GenerationFields
from plumbline.contract._generated.tools import FunctionToolParam
from plumbline.contract.wire.errors import (
    ApiError,
    invalid_json_schema,
    invalid_request,
    invalid_type,
    missing_required_parameter,
)
from plumbline.server.protocols.common.fields import given, or_default
from plumbline.server.protocols.common.structural_tag import read_structural_tag

__all__ = ["FormatRequest", "RequestedFormat", "constraint_refused", "read_format"]

_OpenAIRequest = CreateChatCompletionRequest | CreateCompletionRequest | CreateResponse
FormatRequest = _OpenAIRequest | CreateMessageRequest


class RequestedFormat(msgspec.Struct, frozen=True):
    """A format and the field that requests it."""

    param: str
    format: OutputFormat
    name: str = "structured_outputs"
    """The name of a JSON Schema, for error messages."""


def read_format(request: FormatRequest) -> OutputFormat | None:
    """Return the output format that the request asks for, if any.

    Raises:
        ApiError: 400 naming the field, for two formats at once, for strict schemas outside the strict subset
            (SO-03), and for fields that contradict a format.
    """
    requested = _requested(request)
    if requested is None:
        return None
    if isinstance(request, GenerationFields) and given(request.allowed_token_ids):
        # The format could require tokens that are not allowed.
        raise invalid_request(
            f"'allowed_token_ids' cannot be combined with '{requested.param}'.",
            "allowed_token_ids",
            "invalid_value",
        )
    if isinstance(requested.format, JsonFormat) and requested.format.strict:
        violation = strict_violation(requested.format.schema)
        if violation is not None:
            raise invalid_json_schema(requested.param, requested.name, violation)
    return requested.format


def constraint_refused(request: FormatRequest, error: ConstraintError) -> ApiError:
    """Return the 400 for a format of this request that cannot be enforced, naming its field."""
    requested = _requested(request)
    if error.tool is not None or requested is None:
        return _tool_refused(request, error)
    if isinstance(requested.format, JsonFormat):
        return invalid_json_schema(requested.param, requested.name, str(error).rstrip("."))
    return invalid_request(f"Invalid '{requested.param}': {error}", requested.param, "invalid_value")


def _tool_refused(request: FormatRequest, error: ConstraintError) -> ApiError:
    functions = request.functions if isinstance(request, CreateChatCompletionRequest) else UNSET
    for index, function in enumerate(or_default(functions, [])):
        if function.name == error.tool:
            return invalid_json_schema(
                f"functions[{index}].parameters", str(error.tool), str(error).rstrip(".")
            )
    tools: Sequence[Any] = (
        [] if isinstance(request, CreateCompletionRequest) else or_default(request.tools, [])
    )
    for index, tool in enumerate(tools):
        described = getattr(tool, "function", None) or getattr(tool, "custom", None) or tool
        if error.tool is not None and getattr(described, "name", None) == error.tool:
            param = f"tools[{index}]"
            if isinstance(tool, MessageTool):
                return invalid_json_schema(f"{param}.input_schema", str(error.tool), str(error).rstrip("."))
            if isinstance(tool, ChatCompletionTool | FunctionToolParam):
                param += ".function.parameters" if isinstance(tool, ChatCompletionTool) else ".parameters"
                return invalid_json_schema(param, str(error.tool), str(error).rstrip("."))
            return invalid_request(f"Invalid '{param}': {error}", param, "invalid_value")
    return invalid_request(f"The calls of 'tools' cannot be constrained: {error}", "tools", "invalid_value")


def _requested(request: FormatRequest) -> RequestedFormat | None:
    found: RequestedFormat | None = None
    if isinstance(request, CreateMessageRequest):
        return _of_message(request)
    formats = (*_official(request), *_structured(request), *_guided(request), *_others(request))
    for requested in formats:
        if found is not None:
            raise invalid_request(
                f"'{requested.param}' cannot be combined with '{found.param}': an answer has one format.",
                requested.param,
                "invalid_value",
            )
        found = requested
    return found


def _of_message(request: CreateMessageRequest) -> RequestedFormat | None:
    config = or_default(request.output_config, None)
    wanted = None if config is None else or_default(config.format, None)
    return (
        None
        if wanted is None
        else RequestedFormat("output_config.format.schema", JsonFormat(wanted.schema), "format")
    )


def _official(request: _OpenAIRequest) -> list[RequestedFormat]:
    """Read `response_format` of chat completions, or `text.format` of Responses."""
    if isinstance(request, CreateCompletionRequest):
        return []
    if isinstance(request, CreateResponse):
        text = or_default(request.text, None)
        requested: Any = None if text is None else or_default(text.format, None)
        param = "text.format"
    else:
        requested, param = or_default(request.response_format, None), "response_format"
    match requested:
        case ResponseFormatJsonObject():
            return [RequestedFormat(param, JsonFormat(or_default(requested.schema, None)), "json_object")]
        case TextResponseFormatJsonSchema():
            strict = or_default(requested.strict, False)
            return [
                RequestedFormat("text.format.schema", JsonFormat(requested.schema, strict), requested.name)
            ]
        case ResponseFormatJsonSchema(json_schema=described):
            if not isinstance(described.schema, dict):
                raise missing_required_parameter("response_format.json_schema.schema")
            strict = or_default(described.strict, False)
            return [RequestedFormat(param, JsonFormat(described.schema, strict), described.name)]
        case _:
            return []


def _structured(request: _OpenAIRequest) -> list[RequestedFormat]:
    """Read `structured_outputs`, the field of vLLM."""
    requested = or_default(request.structured_outputs, None)
    if requested is None:
        return []
    found = [
        item
        for name in _KINDS
        for item in _one_format(name, getattr(requested, name), f"structured_outputs.{name}")
    ]
    if len(found) != 1:
        several = ", ".join(f"'{item.param}'" for item in found) or "none"
        raise invalid_request(
            f"'structured_outputs' must have exactly one of {', '.join(_KINDS)}; it has {several}.",
            "structured_outputs",
            "invalid_value",
        )
    return found


def _guided(request: _OpenAIRequest) -> list[RequestedFormat]:
    """Read `guided_json` and its siblings, the older field names of chat and legacy completions."""
    if not isinstance(request, CompletionFields):
        return []
    return [
        item
        for name in _GUIDED
        for item in _one_format(name, getattr(request, f"guided_{name}"), f"guided_{name}")
    ]


def _others(request: _OpenAIRequest) -> list[RequestedFormat]:
    """Read the fields of SGLang and llama.cpp; an empty grammar means no grammar, as in llama.cpp."""
    return [
        item
        for name, kind in _OTHERS.items()
        if (value := getattr(request, name, UNSET)) != ""
        for item in _one_format(kind, value, name)
    ]


_OTHERS = {
    "json_schema": "json",
    "regex": "regex",
    "grammar": "gbnf",
    "ebnf": "gbnf",
    "structural_tag": "structural_tag",
}
_GUIDED = ("json", "regex", "choice", "grammar")
_KINDS = (*_GUIDED, "structural_tag")


def _one_format(kind: str, value: Any, param: str) -> list[RequestedFormat]:
    if value is UNSET or value is None:
        return []
    match kind:
        case "json":
            return [RequestedFormat(param, JsonFormat(_schema(value, param)), param)]
        case "regex":
            return [RequestedFormat(param, RegexFormat(value))]
        case "choice":
            return [RequestedFormat(param, ChoiceFormat(tuple(value)))]
        case "structural_tag":
            return [RequestedFormat(param, read_structural_tag(value, param))]
        case "gbnf":
            return [RequestedFormat(param, GbnfFormat(value))]
        case _:  # vLLM takes grammars in both notations.
            return [RequestedFormat(param, GbnfFormat(value) if is_gbnf(value) else LarkFormat(value))]


def _schema(value: Any, param: str) -> Mapping[str, Any] | bool:
    """Return a schema; clients of vLLM also send the JSON text of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_float=exact_number)
        except (ValueError, RecursionError):
            raise invalid_request(
                f"'{param}' is a string that is not JSON.", param, "invalid_value"
            ) from None
    if not isinstance(value, dict | bool):
        raise invalid_type(param, "a JSON Schema", value)
    return value

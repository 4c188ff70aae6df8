"""The forms that a client may ask for, under every name they go by, read into one `OutputFormat`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from plumbline._generated.chat import (
    ChatCompletionTool,
    CreateChatCompletionRequest,
    ResponseFormatJsonSchema,
)
from plumbline._generated.common import ResponseFormatJsonObject
from plumbline._generated.completions import CreateCompletionRequest
from plumbline._generated.responses import CreateResponse, TextResponseFormatJsonSchema
from plumbline._generated.tools import FunctionToolParam
from plumbline.protocols.common.fields import given, or_default
from plumbline.structured_output.grammar.errors import ConstraintError
from plumbline.structured_output.strict_subset import strict_violation
from plumbline.turn import ChoiceFormat, JsonFormat, LarkFormat, OutputFormat, RegexFormat
from plumbline.wire.errors import (
    ApiError,
    invalid_json_schema,
    invalid_request,
    invalid_type,
    missing_required_parameter,
)

__all__ = ["FormatRequest", "RequestedFormat", "constraint_refused", "read_format"]

FormatRequest = CreateChatCompletionRequest | CreateCompletionRequest | CreateResponse


class RequestedFormat(msgspec.Struct, frozen=True):
    """A form and the field that asked for it."""

    param: str
    form: OutputFormat
    name: str = "structured_outputs"
    """The name of a JSON Schema, for messages about it."""


def read_format(request: FormatRequest) -> OutputFormat | None:
    """The form that the request asks for, if any.

    Raises:
        ApiError: 400 for two forms at once, for schemas that break the strict rules (SO-03), and for fields that
            contradict a form, naming the field.
    """
    asked = _requested(request)
    if asked is None:
        return None
    if given(getattr(request, "allowed_token_ids", UNSET)):
        # Tokens that are not allowed could be the only ones that the form can go on with.
        raise invalid_request(
            f"'allowed_token_ids' cannot be combined with '{asked.param}'.",
            "allowed_token_ids",
            "invalid_value",
        )
    if isinstance(asked.form, JsonFormat) and asked.form.strict:
        violation = strict_violation(asked.form.schema)
        if violation is not None:
            raise invalid_json_schema(asked.param, asked.name, violation)
    return asked.form


def constraint_refused(request: FormatRequest, error: ConstraintError) -> ApiError:
    """The 400 for a form of this request that cannot be held, naming the field that asked for it."""
    asked = _requested(request)
    if error.tool is not None or asked is None:
        return _tool_refused(request, error)
    if isinstance(asked.form, JsonFormat):
        return invalid_json_schema(asked.param, asked.name, str(error).rstrip("."))
    return invalid_request(f"Invalid '{asked.param}': {error}", asked.param, "invalid_value")


def _tool_refused(request: FormatRequest, error: ConstraintError) -> ApiError:
    for index, tool in enumerate(or_default(getattr(request, "tools", UNSET), [])):
        described = getattr(tool, "function", None) or getattr(tool, "custom", None) or tool
        if error.tool is not None and getattr(described, "name", None) == error.tool:
            param = f"tools[{index}]"
            if isinstance(tool, ChatCompletionTool | FunctionToolParam):
                param += ".function.parameters" if isinstance(tool, ChatCompletionTool) else ".parameters"
                return invalid_json_schema(param, str(error.tool), str(error).rstrip("."))
            return invalid_request(f"Invalid '{param}': {error}", param, "invalid_value")
    return invalid_request(f"The calls of 'tools' cannot be held: {error}", "tools", "invalid_value")


def _requested(request: FormatRequest) -> RequestedFormat | None:
    found: RequestedFormat | None = None
    for asked in (*_official(request), *_structured(request), *_guided(request)):
        if found is not None:
            raise invalid_request(
                f"'{asked.param}' cannot be combined with '{found.param}': an answer has one form.",
                asked.param,
                "invalid_value",
            )
        found = asked
    return found


def _official(request: FormatRequest) -> list[RequestedFormat]:
    """`response_format` of chat, `text.format` of Responses."""
    if isinstance(request, CreateCompletionRequest):
        return []
    if isinstance(request, CreateResponse):
        text = or_default(request.text, None)
        asked: Any = None if text is None else or_default(text.format, None)
        param = "text.format"
    else:
        asked, param = or_default(request.response_format, None), "response_format"
    match asked:
        case ResponseFormatJsonObject():
            return [RequestedFormat(param, JsonFormat())]
        case TextResponseFormatJsonSchema():
            strict = or_default(asked.strict, False)
            return [RequestedFormat("text.format.schema", JsonFormat(asked.schema, strict), asked.name)]
        case ResponseFormatJsonSchema(json_schema=described):
            if not isinstance(described.schema, dict):
                raise missing_required_parameter("response_format.json_schema.schema")
            strict = or_default(described.strict, False)
            return [RequestedFormat(param, JsonFormat(described.schema, strict), described.name)]
        case _:
            return []


def _structured(request: FormatRequest) -> list[RequestedFormat]:
    asked = or_default(request.structured_outputs, None)
    if asked is None:
        return []
    found = [
        item for name in _KINDS for item in _kind(name, getattr(asked, name), f"structured_outputs.{name}")
    ]
    if len(found) != 1:
        several = ", ".join(f"'{item.param}'" for item in found) or "none"
        raise invalid_request(
            f"'structured_outputs' must have exactly one of {', '.join(_KINDS)}; it has {several}.",
            "structured_outputs",
            "invalid_value",
        )
    return found


def _guided(request: FormatRequest) -> list[RequestedFormat]:
    """The older names of chat and completions."""
    return [
        item
        for name in _KINDS
        for item in _kind(name, getattr(request, f"guided_{name}", UNSET), f"guided_{name}")
    ]


_KINDS = ("json", "regex", "choice", "grammar")


def _kind(kind: str, value: Any, param: str) -> list[RequestedFormat]:
    if value is UNSET or value is None:
        return []
    match kind:
        case "json":
            return [RequestedFormat(param, JsonFormat(_schema(value, param)), param)]
        case "regex":
            return [RequestedFormat(param, RegexFormat(value))]
        case "choice":
            return [RequestedFormat(param, ChoiceFormat(tuple(value)))]
        case _:
            return [RequestedFormat(param, LarkFormat(value))]


def _schema(value: Any, param: str) -> Mapping[str, Any] | bool:
    """A schema, or the JSON text of one, which vLLM's clients send."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise invalid_request(
                f"'{param}' is a string that is not JSON.", param, "invalid_value"
            ) from None
    if not isinstance(value, dict | bool):
        raise invalid_type(param, "a JSON Schema", value)
    return value

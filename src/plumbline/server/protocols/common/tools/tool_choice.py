"""Read tools and `tool_choice` of chat completions and Responses."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from plumbline.answer.structured_output.schema_repair import repaired
from plumbline.answer.structured_output.strict_subset import strict_violation
from plumbline.answer.turn import LarkFormat, RegexFormat, Tool, ToolChoice, Turn
from plumbline.base.json_text import is_object
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.messages import CreateMessageRequest
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.errors import invalid_json_schema, invalid_request, unsupported_value
from plumbline.server.protocols.common.fields import or_default

__all__ = [
    "INPUT_SCHEMA",
    "ToolRequest",
    "allowed_choice",
    "check_names",
    "custom_arguments",
    "custom_tool",
    "is_cut",
    "named_choice",
    "plain_choice",
    "wants_parallel",
    "with_checked_parameters",
    "with_repair",
]

ToolRequest: TypeAlias = CreateChatCompletionRequest | CreateResponse | CreateMessageRequest

INPUT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""The parameters of a custom tool in the prompt: one string."""


def custom_tool(name: str, description: str | None, syntax: str | None, definition: str) -> Tool:
    """Build a custom tool (TOOL-14).

    Args:
        name: the tool's name.
        description: the client's description.
        syntax: `lark` or `regex`, or None where the input is free text.
        definition: the grammar.
    """
    input_format = (
        None if syntax is None else RegexFormat(definition) if syntax == "regex" else LarkFormat(definition)
    )
    if input_format is not None:
        # The model must know its constraint: under a grammar that it does not expect it writes nonsense.
        description = f"{description or ''}\n\nThe input follows this {syntax} grammar:\n{definition}".strip()
    return Tool(
        name=name,
        description=description,
        parameters=INPUT_SCHEMA,
        custom=True,
        input_format=input_format,
    )


def is_cut(arguments: str) -> bool:
    """Return whether the arguments of an earlier call are no JSON object, because a limit cut the answer."""
    return not is_object(arguments)


def custom_arguments(text: str) -> str:
    """Return the arguments of a call of a custom tool, as the prompt shows them."""
    return json.dumps({"input": text}, ensure_ascii=False)


def check_names(names: Sequence[tuple[str, str]]) -> None:
    """Check that no two tools have the same name, so that the name in a call identifies one tool.

    Args:
        names: each name with the field that it comes from, such as `tools[0].function.name`.

    Raises:
        ApiError: 400 naming the field of the repeated name.
    """
    seen: dict[str, str] = {}
    for name, param in names:
        if name in seen:
            raise invalid_request(
                f"'{param}' repeats the name '{name}' of '{seen[name]}'; give every tool a different name.",
                param,
                "invalid_value",
            )
        seen[name] = param


def with_checked_parameters(tool: Tool, param: str) -> Tool:
    """Return a tool whose parameters are a JSON Schema, and in the strict subset if the tool is strict (SO-03).

    Parameters that are no valid schema but whose meaning is plain are repaired, so that prompts, parsers and grammars
    know one form.

    Raises:
        ApiError: 400 naming the parameters.
    """
    if tool.parameters is None:
        return tool
    parameters, violation = repaired(tool.parameters)
    if violation is None and tool.strict is True and parameters:
        violation = strict_violation(parameters)
    if violation is not None:
        raise invalid_json_schema(param, tool.name, violation)
    return tool if parameters is tool.parameters else msgspec.structs.replace(tool, parameters=parameters)


def plain_choice(mode: str, tools: Sequence[Tool], *, parallel: bool) -> ToolChoice:
    """Read `none`, `auto` or `required`.

    Raises:
        ApiError: 400 for `required` without tools (TOOL-08).
    """
    if mode == "required":
        if not tools:
            raise invalid_request("'tool_choice' is 'required' but there are no 'tools'.", "tool_choice")
        return ToolChoice(mode="required", parallel=parallel)
    if mode == "none" or not tools:
        return ToolChoice(mode="none", forbidden=bool(tools))
    return ToolChoice(mode="auto", parallel=parallel)


def named_choice(name: str, kind: str, tools: Sequence[Tool], param: str) -> ToolChoice:
    """Require exactly one call, of this tool (TOOL-05).

    Args:
        name: the tool's name.
        kind: `function` or `custom`.
        tools: the tools of the request.
        param: the field with the name.

    Raises:
        ApiError: 400 for a tool that the request does not have (TOOL-08).
    """
    if not any(tool.name == name and tool.custom == (kind == "custom") for tool in tools):
        raise invalid_request(
            f"'tool_choice' names the {kind} tool '{name}', which is not in 'tools'.", param
        )
    return ToolChoice(mode="required", names=(name,), parallel=False)


def allowed_choice(
    mode: str,
    allowed: Sequence[Mapping[str, Any]],
    tools: Sequence[Tool],
    *,
    parallel: bool,
    param: str,
    others: Collection[str] = (),
) -> ToolChoice:
    """Allow or require calls of some tools (TOOL-06). The prompt shows all tools, so that its prefix stays cached.

    Args:
        mode: `auto` or `required`.
        allowed: the entries, as either API writes them.
        tools: the tools of the request.
        parallel: whether the answer may have more than one call.
        param: the field with the entries.
        others: types of entries that the caller reads itself.

    Raises:
        ApiError: 400 for entries that name no tool of the request (TOOL-08), and for an empty list.
    """
    names: list[str] = []
    for index, entry in enumerate(allowed):
        kind = entry.get("type")
        if kind in others:
            continue
        if kind not in ("function", "custom"):
            raise unsupported_value(
                f"{param}[{index}].type", kind, "is not supported: only 'function' and 'custom'"
            )
        nested = entry.get(kind)
        name = nested.get("name") if isinstance(nested, Mapping) else entry.get("name")
        if not any(tool.name == name and tool.custom == (kind == "custom") for tool in tools):
            raise invalid_request(
                f"'{param}[{index}]' names a tool that is not in 'tools'.", f"{param}[{index}]"
            )
        names.append(str(name))
    if not allowed:
        raise invalid_request(
            f"'{param}' must not be empty; send 'none' to forbid calls.", param, "invalid_value"
        )
    checked: Any = "required" if mode == "required" else "auto"
    return ToolChoice(mode=checked, names=tuple(dict.fromkeys(names)), parallel=parallel)


def wants_parallel(value: Any) -> bool:
    """Return whether an answer may have more than one call: yes unless the client forbids it (TOOL-07)."""
    return bool(or_default(value, True))


def with_repair(request: ToolRequest, turn: Turn) -> Turn:
    """Return a turn whose failed call the model is asked for again, if the request wants that (`x_repair_calls`).

    Raises:
        ApiError: 400 if there are no calls, or with fields that a second ask would make wrong.
    """
    if request.x_repair_calls is not True:
        return turn
    reason = ""
    if turn.tool_choice.mode == "none":
        reason = "needs tools that the model may call"
    elif turn.sampling.logprobs is not None or turn.return_token_ids:
        reason = "is not supported with log probabilities or ids of tokens: a repaired call has the tokens of two asks"
    elif turn.sampling.hidden_state:
        reason = "is not supported with 'return_hidden_states': the states of a repaired call are those of two asks"
    elif turn.sampling.allowed_token_ids is not None:
        reason = "is not supported with 'allowed_token_ids', which no grammar can be combined with"
    if reason:
        raise unsupported_value("x_repair_calls", True, reason)
    return msgspec.structs.replace(turn, repair_calls=True)

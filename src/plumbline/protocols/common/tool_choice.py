"""What chat and Responses share of tools: custom ones, strict ones, and which of them an answer may or must call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from plumbline.protocols.common.fields import or_default
from plumbline.structured_output.strict_subset import strict_violation
from plumbline.turn import LarkFormat, RegexFormat, Tool, ToolChoice
from plumbline.wire.errors import invalid_json_schema, invalid_request, unsupported_value

__all__ = [
    "INPUT_SCHEMA",
    "allowed_choice",
    "check_names",
    "check_strict",
    "custom_arguments",
    "custom_tool",
    "named_choice",
    "plain_choice",
    "wants_parallel",
]

INPUT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""The parameters that the model is shown of a custom tool: its input is text."""


def custom_tool(name: str, description: str | None, syntax: str | None, definition: str) -> Tool:
    """A custom tool in the neutral form (TOOL-14).

    Args:
        name: its name.
        description: what it is for.
        syntax: `lark` or `regex`, or None where the input is free text.
        definition: the grammar.
    """
    form = (
        None if syntax is None else RegexFormat(definition) if syntax == "regex" else LarkFormat(definition)
    )
    told = description
    if form is not None:
        # The model has to know what it will be held to: a form that it does not expect makes it write nonsense.
        told = f"{description or ''}\n\nThe input follows this {syntax} grammar:\n{definition}".strip()
    return Tool(name=name, description=told, parameters=INPUT_SCHEMA, custom=True, input_format=form)


def custom_arguments(text: str) -> str:
    """The arguments of a call of a custom tool, as the model is shown them."""
    return json.dumps({"input": text}, ensure_ascii=False)


def check_names(names: Sequence[tuple[str, str]]) -> None:
    """No two tools have the same name: a call of it could not be told which it is meant for.

    Args:
        names: each name, and the field that has it.

    Raises:
        ApiError: 400 naming the field of the second.
    """
    seen: dict[str, str] = {}
    for name, param in names:
        if name in seen:
            raise invalid_request(
                f"'{param}' is '{name}', as '{seen[name]}' is; every tool needs a name of its own.",
                param,
                "invalid_value",
            )
        seen[name] = param


def check_strict(tool: Tool, param: str) -> None:
    """SO-03 for the parameters of a strict tool.

    Raises:
        ApiError: 400 naming the parameters.
    """
    if tool.strict is True and tool.parameters:
        violation = strict_violation(tool.parameters)
        if violation is not None:
            raise invalid_json_schema(param, tool.name, violation)


def plain_choice(word: str, tools: Sequence[Tool], *, parallel: bool) -> ToolChoice:
    """`none`, `auto` or `required`.

    Raises:
        ApiError: 400 for `required` without tools (TOOL-08).
    """
    if word == "required":
        if not tools:
            raise invalid_request("'tool_choice' is 'required' but there are no 'tools'.", "tool_choice")
        return ToolChoice(mode="required", parallel=parallel)
    if word == "none" or not tools:
        return ToolChoice(mode="none", forbidden=bool(tools))
    return ToolChoice(mode="auto", parallel=parallel)


def named_choice(name: str, kind: str, tools: Sequence[Tool], param: str) -> ToolChoice:
    """Exactly this tool is called, once (TOOL-05).

    Args:
        name: the tool.
        kind: `function` or `custom`.
        tools: the request's.
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
    mode: str, allowed: Sequence[Mapping[str, Any]], tools: Sequence[Tool], *, parallel: bool, param: str
) -> ToolChoice:
    """TOOL-06: the model is shown all tools, so that its prompt stays the same, and may call some.

    Args:
        mode: `auto` or `required`.
        allowed: the entries, in the form of either API.
        tools: the request's.
        parallel: as asked.
        param: the field with the entries.

    Raises:
        ApiError: 400 for entries that name no tool of the request (TOOL-08), and for an empty list.
    """
    names: list[str] = []
    for index, entry in enumerate(allowed):
        kind = entry.get("type")
        if kind not in ("function", "custom"):
            raise unsupported_value(
                f"{param}[{index}].type", kind, "is not supported: only 'function' and 'custom'"
            )
        nested = entry.get(kind)
        name = nested.get("name") if isinstance(nested, Mapping) else entry.get("name")
        if not any(tool.name == name and tool.custom == (kind == "custom") for tool in tools):
            raise invalid_request(f"'{param}[{index}]' names no tool of 'tools'.", f"{param}[{index}]")
        names.append(str(name))
    if not names:
        raise invalid_request(
            f"'{param}' must not be empty; send 'none' to forbid calls.", param, "invalid_value"
        )
    found = plain_choice(mode, tools, parallel=parallel)
    return ToolChoice(mode=found.mode, names=tuple(dict.fromkeys(names)), parallel=parallel)


def wants_parallel(value: Any) -> bool:
    """TOOL-07: more than one call in an answer is allowed unless the client says no."""
    return bool(or_default(value, True))

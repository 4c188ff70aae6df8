"""Read the tools of a Messages request, and which of them the model may or must call."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plumbline.answer.turn import Tool, ToolChoice
from plumbline.base.exact_number import dumps
from plumbline.contract._generated.messages import (
    MessagePromptFields,
    MessageTool,
    ToolChoiceAny,
    ToolChoiceAuto,
    ToolChoiceNone,
    ToolChoiceTool,
)
from plumbline.contract.wire.errors import (
    invalid_request,
    invalid_value,
    missing_required_parameter,
    unsupported_value,
)
from plumbline.server.protocols.common.fields import given, or_default
from plumbline.server.protocols.common.tools.tool_choice import (
    check_names,
    named_choice,
    plain_choice,
    with_checked_parameters,
)

__all__ = ["read_tools"]


def read_tools(
    request: MessagePromptFields,
) -> tuple[tuple[Tool, ...], ToolChoice]:
    """Read the tools for the prompt, and the choice among them (MSG-04).

    With `tool_choice` `none` the prompt has no tools, so the model calls none.

    Raises:
        ApiError: 400 for tools that the server would have to run, for an invalid schema, and for a choice that
            names no tool.
    """
    given_tools = or_default(request.tools, [])
    check_names([(tool.name, f"tools[{index}].name") for index, tool in enumerate(given_tools)])
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given_tools))
    choice = _choice(request, tools)
    return (() if choice.mode == "none" else tools), choice


def _tool(tool: MessageTool, where: str) -> Tool:
    if or_default(tool.type, "custom") != "custom":
        raise unsupported_value(
            f"{where}.type",
            tool.type,
            "is not supported: send a tool with 'input_schema', which the client runs",
        )
    if not isinstance(tool.input_schema, dict):
        raise missing_required_parameter(f"{where}.input_schema")
    callers = or_default(tool.allowed_callers, ["direct"])
    if "direct" not in callers:
        raise unsupported_value(
            f"{where}.allowed_callers", callers, "is not supported: only the model calls tools, as 'direct'"
        )
    description = or_default(tool.description, None)
    if examples := or_default(tool.input_examples, []):
        lines = "\n".join(map(dumps, examples))
        description = f"{description or ''}\n\nExamples of the input:\n{lines}".strip()
    found = Tool(name=tool.name, description=description, parameters=tool.input_schema)
    found = with_checked_parameters(found, f"{where}.input_schema")
    kind = (found.parameters or {}).get("type", "object")
    if isinstance(kind, str) and kind != "object":
        raise invalid_value(f"{where}.input_schema.type", kind, ["object"])
    # The strict subset is OpenAI's; here any schema that can be enforced may be strict.
    return msgspec.structs.replace(found, strict=or_default(tool.strict, None))


def _choice(request: MessagePromptFields, tools: Sequence[Tool]) -> ToolChoice:
    match or_default(request.tool_choice, None):
        case ToolChoiceNone():
            return plain_choice("none", tools, parallel=True)
        case ToolChoiceTool(name=name):
            return named_choice(name, "function", tools, "tool_choice.name")
        case ToolChoiceAny(disable_parallel_tool_use=single):
            if not tools:
                raise invalid_request("'tool_choice' is 'any' but there are no 'tools'.", "tool_choice")
            return plain_choice("required", tools, parallel=single is not True)
        case ToolChoiceAuto(disable_parallel_tool_use=single) if given(single):
            return plain_choice("auto", tools, parallel=single is not True)
        case _:
            return plain_choice("auto", tools, parallel=True)

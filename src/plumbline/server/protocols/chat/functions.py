"""Read the deprecated fields `functions` and `function_call` as tools and a tool choice (TOOL-16)."""

from __future__ import annotations

from plumbline.answer.turn import Tool, ToolChoice
from plumbline.contract._generated.chat import ChatCompletionFunctionCallOption, CreateChatCompletionRequest
from plumbline.contract.wire.errors import invalid_request
from plumbline.server.protocols.common.fields import given, or_default
from plumbline.server.protocols.common.tools.tool_choice import (
    check_names,
    plain_choice,
    with_checked_parameters,
)

__all__ = ["read_functions", "uses_functions"]


def uses_functions(request: CreateChatCompletionRequest) -> bool:
    """Return whether calls must be written as `function_call`, because the request has `functions`."""
    return bool(or_default(request.functions, None))


def read_functions(request: CreateChatCompletionRequest) -> tuple[tuple[Tool, ...], ToolChoice]:
    """Read the functions for the prompt, and which of them the model may or must call.

    An answer has one `function_call` at most, so parallel calls are off.

    Raises:
        ApiError: 400 for fields of both generations in one request, for two functions of one name, for parameters that
            are not a JSON Schema, and for the choice of an unknown function.
    """
    for newer in ("tools", "tool_choice"):
        if given(getattr(request, newer)):
            older = "functions" if given(request.functions) else "function_call"
            raise invalid_request(
                f"'{older}' is the deprecated form of '{newer}'; send 'tools' and 'tool_choice' only.", older
            )
    functions = or_default(request.functions, [])
    if not functions:
        raise invalid_request("'function_call' is only allowed when 'functions' are given.", "function_call")
    check_names([(function.name, f"functions[{index}].name") for index, function in enumerate(functions)])
    tools: list[Tool] = []
    for index, function in enumerate(functions):
        tool = Tool(
            name=function.name,
            description=or_default(function.description, None),
            parameters=or_default(function.parameters, None),
        )
        tools.append(with_checked_parameters(tool, f"functions[{index}].parameters"))
    choice = _read_choice(request, tools)
    return (() if choice.mode == "none" else tuple(tools)), choice


def _read_choice(request: CreateChatCompletionRequest, tools: list[Tool]) -> ToolChoice:
    requested = or_default(request.function_call, "auto")
    if not isinstance(requested, ChatCompletionFunctionCallOption):
        return plain_choice(str(requested), tools, parallel=False)
    if not any(tool.name == requested.name for tool in tools):
        raise invalid_request(
            f"'function_call' names the function '{requested.name}', which is not in 'functions'.",
            "function_call.name",
        )
    return ToolChoice(mode="required", names=(requested.name,), parallel=False)

"""Responses: the request read into a turn. The writer of its events is `plumbline.protocols.responses_writer`."""

from __future__ import annotations

from typing import cast

import msgspec
from msgspec import UNSET

from plumbline._generated.responses import CreateResponse, Reasoning, TokenCountsBody
from plumbline._generated.tools import (
    CustomToolParam,
    FunctionToolParam,
    ToolChoiceAllowed,
    ToolChoiceCustom,
    ToolChoiceFunction,
)
from plumbline.protocols.common import (
    Defaults,
    or_default,
    read_sampling,
    read_stop,
    refuse_given,
    tag_of,
    thinking_kwargs,
)
from plumbline.protocols.formats import read_format
from plumbline.protocols.responses_input import read_input
from plumbline.turn import ChatPrompt, Tool, ToolChoice, Turn
from plumbline.wire.errors import (
    invalid_request,
    missing_required_parameter,
    previous_response_not_found,
    unsupported_value,
)

__all__ = ["LOGPROBS", "read_response", "read_response_prompt"]

LOGPROBS = "message.output_text.logprobs"

_REFUSED = {
    "conversation": "is not supported by this server yet",
    "prompt": "is not supported: this server keeps no prompt templates",
    "moderation": "is not supported by this server",
    "context_management": "is not supported by this server yet",
    "thinking_token_budget": "is not supported by this server yet",
}


def read_response(request: CreateResponse, defaults: Defaults) -> Turn:
    """Read a request into a turn.

    Raises:
        ApiError: 400 for what contradicts itself or is not supported, naming the field.
    """
    refuse_given(request, _REFUSED)
    if request.background is True:
        raise unsupported_value("background", True, "is not supported by this server yet")
    if request.store is True:
        raise unsupported_value(
            "store", True, "is not supported by this server yet; leave it out or send false"
        )
    options = or_default(request.stream_options, None)
    if options is not None:
        if request.stream is not True:  # CS-09
            raise invalid_request(
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options"
            )
        if options.include_obfuscation is True:
            raise unsupported_value("stream_options.include_obfuscation", True)
    wants_logprobs = LOGPROBS in or_default(request.include, [])
    prompt = read_response_prompt(request)
    return Turn(
        prompt=prompt,
        output_format=read_format(request),
        tool_choice=ToolChoice(mode="auto" if prompt.tools else "none"),
        sampling=read_sampling(
            request,
            defaults,
            max_tokens=or_default(request.max_output_tokens, None),
            max_tokens_param="max_output_tokens",
            logprobs=or_default(request.top_logprobs, 0) if wants_logprobs else None,
        ),
        stop=read_stop(request.stop),
        skip_special_tokens=or_default(request.skip_special_tokens, True),
        priority=or_default(request.priority, 0),
        cache_salt=or_default(request.cache_salt, None),
        truncate_prompt=or_default(request.truncation, "disabled") == "auto",
    )


def read_response_prompt(request: CreateResponse | TokenCountsBody) -> ChatPrompt:
    """What the model sees of a request: instructions, input items and tools.

    Raises:
        ApiError: 400 as for `read_response`.
    """
    if isinstance(request, TokenCountsBody):
        refuse_given(request, {name: _REFUSED[name] for name in ("conversation",)})
        refuse_given(request, {"personality": "is not supported by this server"})
    previous = or_default(request.previous_response_id, None)
    if previous is not None:
        # ST-05: nothing is stored yet, so no id can be known.
        raise previous_response_not_found(previous)
    items = request.input
    if items is None or items is UNSET:
        raise missing_required_parameter("input")
    reasoning = or_default(request.reasoning, Reasoning())
    kwargs = or_default(request.chat_template_kwargs, {}) if isinstance(request, CreateResponse) else {}
    return ChatPrompt(
        messages=read_input(items, or_default(request.instructions, None)),
        tools=_read_tools(request),
        template_kwargs=thinking_kwargs(or_default(reasoning.effort, None), kwargs),
    )


def _read_tools(request: CreateResponse | TokenCountsBody) -> tuple[Tool, ...]:
    """The function tools. Hosted ones are accepted, echoed and never called (TOOL-15): Codex always sends some."""
    found: list[Tool] = []
    for index, tool in enumerate(or_default(request.tools, [])):
        match tool:
            case FunctionToolParam():
                if tool.strict is True:
                    raise unsupported_value(
                        f"tools[{index}].strict", True, "is not supported by this server yet"
                    )
                if tool.defer_loading is True:
                    raise unsupported_value(f"tools[{index}].defer_loading", True)
                callers = or_default(tool.allowed_callers, None)
                if callers is not None and "direct" not in callers:
                    raise unsupported_value(
                        f"tools[{index}].allowed_callers", callers, "must contain 'direct'"
                    )
                found.append(
                    Tool(
                        name=tool.name,
                        description=or_default(tool.description, None),
                        parameters=or_default(tool.parameters, None),
                        strict=or_default(tool.strict, None),
                    )
                )
            case CustomToolParam():
                raise unsupported_value(
                    f"tools[{index}].type", "custom", "is not supported by this server yet"
                )
            case _:
                pass
    names = {tool.name for tool in found}
    choice = or_default(request.tool_choice, "auto" if found else "none")
    match choice:
        case "none":
            return ()
        case "auto":
            pass
        case "required":
            if not found:  # TOOL-08
                raise invalid_request(
                    "'tool_choice' is 'required' but there are no function 'tools'.", "tool_choice"
                )
            raise unsupported_value("tool_choice", choice, "is not supported by this server yet")
        case ToolChoiceFunction() | ToolChoiceCustom():
            if choice.name not in names:  # TOOL-08
                raise invalid_request(
                    f"'tool_choice' names '{choice.name}', which is not in 'tools'.", "tool_choice.name"
                )
            raise unsupported_value("tool_choice.type", tag_of(choice), "is not supported by this server yet")
        case ToolChoiceAllowed():
            raise unsupported_value(
                "tool_choice.type", "allowed_tools", "is not supported by this server yet"
            )
        case _:
            raise unsupported_value(
                "tool_choice.type", tag_of(cast(msgspec.Struct, choice)), "is not supported by this server"
            )
    if found and request.parallel_tool_calls is False:
        raise unsupported_value("parallel_tool_calls", False, "is not supported by this server yet")
    return tuple(found)

"""Read a chat completion request into a turn."""

from __future__ import annotations

from typing import Any

from plumbline._generated.chat import CreateChatCompletionRequest
from plumbline.protocols.chat.continuation import check_echo, with_prefix
from plumbline.protocols.chat.messages import read_messages, read_tools
from plumbline.protocols.chat.reasoning import check_reasoning
from plumbline.protocols.common.fields import (
    check_stream_options,
    given,
    or_default,
    refuse_given,
    template_variables,
)
from plumbline.protocols.common.output_formats import read_format
from plumbline.protocols.common.sampling import Defaults, read_sampling, read_stop
from plumbline.protocols.common.unsupported import UNSUPPORTED
from plumbline.protocols.common.usage import wants_progress
from plumbline.turn import ChatPrompt, Turn
from plumbline.wire.errors import invalid_request, unsupported_value

__all__ = ["read_chat"]

_REFUSED = {
    "audio": "is not supported: this server answers with text",
    "web_search_options": "is not supported: this server has no hosted tools",
    "moderation": "is not supported by this server",
}


def read_chat(request: CreateChatCompletionRequest, defaults: Defaults) -> Turn:
    """Read a request into a turn.

    Raises:
        ApiError: 400 naming a field that contradicts another one or is not supported.
    """
    refuse_given(request, {**_REFUSED, **UNSUPPORTED})
    if request.store is True:
        raise unsupported_value("store", True, "is not supported: this server does not keep chat completions")
    if "audio" in or_default(request.modalities, []):
        raise unsupported_value("modalities", "audio")
    check_stream_options(request)
    check_reasoning(request)
    top_logprobs = or_default(request.top_logprobs, 0)
    if given(request.top_logprobs) and request.logprobs is not True:  # LP-05
        raise invalid_request(
            "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.", "top_logprobs"
        )
    # CHAT-07: the newer name wins if both are given.
    limit_param = "max_completion_tokens" if given(request.max_completion_tokens) else "max_tokens"
    max_tokens: int | None = or_default(getattr(request, limit_param), None)
    messages, continue_final = with_prefix(request, read_messages(request.messages))
    check_echo(request, messages, continue_final)
    documents = or_default(request.documents, None)
    tools, tool_choice = read_tools(request)
    budget = or_default(request.thinking_token_budget, None)
    prompt = ChatPrompt(
        messages=messages,
        tools=tools,
        template_kwargs=template_variables(_template_kwargs(request)),
        effort=or_default(request.reasoning_effort, None),
        thinking_budget=budget,
        documents=None if documents is None else tuple(documents),
        add_generation_prompt=not continue_final and or_default(request.add_generation_prompt, True),
        continue_final_message=continue_final,
    )
    return Turn(
        prompt=prompt,
        output_format=read_format(request),
        tool_choice=tool_choice,
        sampling=read_sampling(
            request,
            defaults,
            max_tokens=max_tokens,
            max_tokens_param=limit_param,
            logprobs=top_logprobs if request.logprobs is True else None,
        ),
        thinking_budget=budget,
        stop=read_stop(request.stop),
        include_stop=or_default(request.include_stop_str_in_output, False),
        skip_special_tokens=or_default(request.skip_special_tokens, True),
        echo=or_default(request.echo, False),
        report_progress=wants_progress(request),
        num_choices=or_default(request.n, 1),
        priority=or_default(request.priority, 0),
        cache_salt=or_default(request.cache_salt, None),
    )


def _template_kwargs(request: CreateChatCompletionRequest) -> dict[str, Any]:
    """Return the variables for the chat template, under either name.

    Raises:
        ApiError: 400 if both names are given with different values.
    """
    kwargs = or_default(request.chat_template_kwargs, None)
    other = or_default(request.template_vars, None)
    if kwargs is not None and other is not None and kwargs != other:
        raise invalid_request(
            "'template_vars' is another name of 'chat_template_kwargs', and their values differ; send one of them.",
            "template_vars",
        )
    return kwargs or other or {}

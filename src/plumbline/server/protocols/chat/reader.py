"""Read a chat completion request into a turn."""

from __future__ import annotations

from collections.abc import Collection

from plumbline.answer.turn import ChatPrompt, Turn
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract.wire.errors import invalid_request, unsupported_value
from plumbline.server.protocols.chat.continuation import check_echo, with_prefix
from plumbline.server.protocols.chat.messages import read_messages, read_tools
from plumbline.server.protocols.chat.reasoning import check_reasoning
from plumbline.server.protocols.common.fields import (
    check_stream_options,
    given,
    or_default,
    refuse_given,
    template_variables,
)
from plumbline.server.protocols.common.output_formats import read_format
from plumbline.server.protocols.common.sampling.parameters import (
    Defaults,
    check_token_ids,
    read_num_probs,
    read_sampling,
)
from plumbline.server.protocols.common.shared_fields import with_shared_fields
from plumbline.server.protocols.common.token_facts import read_facts
from plumbline.server.protocols.common.tools.tool_choice import with_repair
from plumbline.server.protocols.common.unsupported import UNSUPPORTED

__all__ = ["read_chat"]

_REFUSED = {
    "audio": "is not supported: this server answers with text",
    "web_search_options": "is not supported: this server has no hosted tools",
    "moderation": "is not supported by this server",
}


def _rendered(request: CreateChatCompletionRequest, vocab_size: int) -> tuple[int, ...] | None:
    """Return the prompt that the client has rendered itself (SGLang).

    Raises:
        ApiError: 400 for ids that the model does not have, and for fields that would change the rendering.
    """
    ids = or_default(request.input_ids, None)
    if ids is None:
        return None
    for name in ("chat_template", "documents", "response_prefix", "add_special_tokens"):
        if given(getattr(request, name)):
            raise invalid_request(
                f"'{name}' has no effect on 'input_ids'; leave it out.", name, "invalid_value"
            )
    check_token_ids("input_ids", ids, vocab_size)
    return tuple(ids)


def read_chat(
    request: CreateChatCompletionRequest,
    defaults: Defaults,
    *,
    stores: bool = False,
    modalities: Collection[str] = (),
) -> Turn:
    """Read a request into a turn.

    Args:
        request: the request.
        defaults: sampling values for fields that it leaves out.
        stores: whether the server has a store; without, `store: true` is refused.
        modalities: what the model reads besides text.

    Raises:
        ApiError: 400 naming a field that contradicts another one or is not supported.
    """
    refuse_given(request, {**_REFUSED, **UNSUPPORTED})
    if request.store is True and not stores:
        raise unsupported_value(
            "store", True, "needs a server with a store, and this one was started with --store none"
        )
    if "audio" in or_default(request.modalities, []):
        raise unsupported_value("modalities", "audio")
    check_stream_options(request)
    check_reasoning(request)
    num_probs = read_num_probs(request)
    top_logprobs = or_default(request.top_logprobs, num_probs or 0)
    if given(request.top_logprobs) and request.logprobs is not True and num_probs is None:  # LP-05
        raise invalid_request(
            "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.", "top_logprobs"
        )
    wants_logprobs = request.logprobs is True or num_probs is not None
    read_facts(request, logprobs=wants_logprobs)
    # CHAT-07: the newer name wins if both are given.
    limit_param = "max_completion_tokens" if given(request.max_completion_tokens) else "max_tokens"
    max_tokens = or_default(request.max_completion_tokens, or_default(request.max_tokens, None))
    messages, continue_final = with_prefix(request, read_messages(request.messages, modalities))
    check_echo(request, messages, continue_final)
    documents = or_default(request.documents, None)
    tools, tool_choice = read_tools(request)
    budget = or_default(request.thinking_token_budget, None)
    prompt = ChatPrompt(
        messages=messages,
        tools=tools,
        template_kwargs=template_variables(or_default(request.chat_template_kwargs, {})),
        effort=or_default(request.reasoning_effort, None),
        thinking_budget=budget,
        documents=None if documents is None else tuple(documents),
        add_generation_prompt=not continue_final and or_default(request.add_generation_prompt, True),
        continue_final_message=continue_final,
        add_special_tokens=or_default(request.add_special_tokens, False),
        chat_template=or_default(request.chat_template, None),
        token_ids=_rendered(request, defaults.vocab_size),
    )
    turn = Turn(
        prompt=prompt,
        output_format=read_format(request),
        tool_choice=tool_choice,
        sampling=read_sampling(
            request,
            defaults,
            max_tokens=max_tokens,
            max_tokens_param=limit_param,
            logprobs=top_logprobs if wants_logprobs else None,
            choices=or_default(request.n, 1),
        ),
        thinking_budget=budget,
        echo=or_default(request.echo, False),
        num_choices=or_default(request.n, 1),
    )
    return with_repair(request, with_shared_fields(turn, request))

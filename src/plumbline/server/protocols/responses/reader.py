"""Read a Responses request into a turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET

from plumbline.answer.remote_tools import RemoteTools, offered_tools
from plumbline.answer.turn import ChatPrompt, ToolChoice, Turn, with_remote_tools
from plumbline.contract._generated.items import CompactionTriggerItemParam, InputItem
from plumbline.contract._generated.responses import (
    CompactResponseMethodPublicBody,
    CreateResponse,
    Reasoning,
    ResponseConversation,
    TokenCountsBody,
)
from plumbline.contract.wire.errors import (
    invalid_request,
    missing_required_parameter,
    previous_response_not_found,
    unsupported_value,
)
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
    read_num_probs,
    read_sampling,
)
from plumbline.server.protocols.common.sealing import Sealer
from plumbline.server.protocols.common.shared_fields import with_shared_fields
from plumbline.server.protocols.common.tools.tool_choice import with_repair
from plumbline.server.protocols.common.unsupported import UNSUPPORTED
from plumbline.server.protocols.responses.client_tools.search import shown_tools
from plumbline.server.protocols.responses.input import read_entries, read_messages
from plumbline.server.protocols.responses.mcp.history import read_past
from plumbline.server.protocols.responses.raw_messages import check_raw_messages
from plumbline.server.protocols.responses.tool_reader import read_remote, read_tools

__all__ = [
    "LOGPROBS",
    "Context",
    "Continuing",
    "check_continued",
    "check_storeless",
    "compaction_threshold",
    "conversation_id",
    "own_input",
    "read_response",
    "read_response_prompt",
    "without_trigger",
]

LOGPROBS = "message.output_text.logprobs"

_REFUSED = {
    "access_programs": "is not supported by this server",
    "background_options": "is not supported: a response in the background begins as soon as there is room",
    "image": "is not supported: images are read as the model's folder says",
    "multi_agent": "is not supported by this server",
    "moderation": "is not supported by this server",
}


_NO_STORE = "needs a server with a store, and this one was started with --store none"


Continuing: TypeAlias = CreateResponse | TokenCountsBody | CompactResponseMethodPublicBody
"""A request that may continue a response."""


class Context(NamedTuple):
    """The items that a request is answered from."""

    earlier: Sequence[InputItem] = ()
    """Stored items that come before the input."""
    own: str | Sequence[InputItem] = ()
    """The input, with stored items in the place of references."""


def read_response(
    request: CreateResponse,
    defaults: Defaults,
    sealer: Sealer | None = None,
    context: Context | None = None,
    modalities: Collection[str] = (),
) -> Turn:
    """Read a request into a turn.

    Args:
        request: the request.
        defaults: sampling values for fields that it leaves out.
        sealer: what opens the encrypted content of reasoning items.
        context: the items that it is answered from; without any, requests that need a store are refused.
        modalities: what the model reads besides text.

    Raises:
        ApiError: 400 naming a field that contradicts another one or is not supported.
    """
    refuse_given(request, {**_REFUSED, **UNSUPPORTED})
    if request.background is True and request.store is False:  # ST-10
        raise unsupported_value("background", True, "needs 'store': a background response is fetched later")
    if context is None:
        check_storeless(request)
    check_stream_options(request)
    num_probs = read_num_probs(request)
    wants_logprobs = LOGPROBS in or_default(request.include, []) or num_probs is not None
    prompt, tool_choice, remote = _read_prompt(request, sealer, context, modalities)
    turn = Turn(
        prompt=prompt,
        output_format=read_format(request),
        tool_choice=tool_choice,
        remote=remote,
        sampling=read_sampling(
            request,
            defaults,
            max_tokens=or_default(request.max_output_tokens, None),
            max_tokens_param="max_output_tokens",
            logprobs=or_default(request.top_logprobs, num_probs or 0) if wants_logprobs else None,
        ),
        thinking_budget=prompt.thinking_budget,
        truncate_prompt=or_default(request.truncation, "disabled") == "auto",
        return_token_ids=request.enable_response_messages is True,
    )
    turn = with_shared_fields(turn, request)
    check_raw_messages(request, turn)
    return with_repair(request, turn)


def read_response_prompt(
    request: CreateResponse | TokenCountsBody,
    sealer: Sealer | None = None,
    context: Context | None = None,
    modalities: Collection[str] = (),
) -> ChatPrompt:
    """Read what the model sees of a request: instructions, input items and tools, also those of MCP servers whose
    tools are listed in the context.

    Raises:
        ApiError: 400 as for `read_response`.
    """
    if context is None:
        check_storeless(request)
    prompt, _, remote = _read_prompt(request, sealer, context, modalities)
    return prompt if remote is None else with_remote_tools(prompt, offered_tools(remote, remote.listed))


def check_continued(request: Continuing) -> None:
    """Refuse a request that continues both a response and a conversation (ST-06)."""
    if given(request.previous_response_id) and conversation_id(request) is not None:
        raise invalid_request(
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Send one of them.",
            "previous_response_id",
            "mutually_exclusive_parameters",
        )


def conversation_id(request: Continuing) -> str | None:
    """Return the id of the conversation that a request belongs to, if any (ST-09)."""
    found = UNSET if isinstance(request, CompactResponseMethodPublicBody) else request.conversation
    if isinstance(found, ResponseConversation):
        return found.id
    return found if isinstance(found, str) else None


_Request = TypeVar("_Request", bound=Continuing)


def without_trigger(request: _Request) -> tuple[_Request, bool]:
    """Return a request without the item that asks to compact its context, and whether it had one.

    The item is the last of the input; `read_input` refuses it elsewhere. It has no content, so it is neither stored nor
    part of a prompt.
    """
    items = own_input(request)
    if isinstance(items, str) or not items or not isinstance(items[-1], CompactionTriggerItemParam):
        return request, False
    return msgspec.structs.replace(request, input=items[:-1]), True


def compaction_threshold(request: CreateResponse, default: int) -> int | None:
    """Return the number of prompt tokens above which the context is compacted; None if it never is.

    Args:
        request: the request.
        default: the number where the request leaves it to the server.

    Raises:
        ApiError: 400 for a way of context management that this server does not know.
    """
    found: list[int] = []
    for index, way in enumerate(or_default(request.context_management, [])):
        if way.type != "compaction":
            raise unsupported_value(
                f"context_management[{index}].type", way.type, "is not supported: only 'compaction' is"
            )
        threshold = or_default(way.compact_threshold, None)
        found.append(default if threshold is None else threshold)
    return min(found, default=None)


def check_storeless(request: CreateResponse | TokenCountsBody) -> None:
    """Refuse fields that need a store."""
    previous = or_default(request.previous_response_id, None)
    if previous is not None:
        raise previous_response_not_found(previous)  # ST-05: no id is known.
    refuse_given(request, {"conversation": _NO_STORE})
    if isinstance(request, CreateResponse):
        for name in ("background", "store"):
            if getattr(request, name) is True:
                raise unsupported_value(name, True, _NO_STORE)


def _read_prompt(
    request: CreateResponse | TokenCountsBody,
    sealer: Sealer | None,
    context: Context | None,
    modalities: Collection[str],
) -> tuple[ChatPrompt, ToolChoice, RemoteTools | None]:
    if isinstance(request, TokenCountsBody):
        refuse_given(request, {"personality": "is not supported by this server"})
    items = own_input(request) if context is None else context.own
    earlier = () if context is None else context.earlier
    if not given(request.input) and not earlier:
        raise missing_required_parameter("input")
    reasoning = or_default(request.reasoning, Reasoning())
    kwargs, budget = {}, None
    if isinstance(request, CreateResponse):
        kwargs = or_default(request.chat_template_kwargs, {})
        budget = or_default(request.thinking_token_budget, None)
    entries = read_entries(items, sealer, earlier)
    past = read_past(entries)
    tools, servers, choice = read_tools(request, shown_tools(or_default(request.tools, []), entries))
    prompt = ChatPrompt(
        messages=read_messages(entries, past, or_default(request.instructions, None), sealer, modalities),
        tools=tools,
        template_kwargs=template_variables(kwargs),
        effort=or_default(reasoning.effort, None),
        thinking_budget=budget,
    )
    return prompt, choice, read_remote(request, tools, servers, past)


def own_input(request: Continuing) -> str | Sequence[InputItem]:
    """Return a request's own input; empty if it has no input."""
    return request.input if given(request.input) else []  # type: ignore[return-value]

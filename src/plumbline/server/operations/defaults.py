"""Add to requests what the operator sets for all of them."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from plumbline.answer.turn import Turn
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract._generated.shared_fields import ChatCompletionStreamOptions
from plumbline.server.protocols.common.fields import given, or_default
from plumbline.server.settings import Settings

__all__ = ["response_with_defaults", "truncatable", "with_defaults"]

R = TypeVar("R", CreateChatCompletionRequest, CreateCompletionRequest)


def with_defaults(request: R, settings: Settings) -> R:
    """Return a chat or legacy completion request with the operator's values.

    Args:
        request: the request. Its own `return_tokens_as_token_ids` and `truncate_prompt_tokens` win.
        settings: with `enable_force_include_usage`, `return_tokens_as_token_ids` and `allow_auto_truncate`.
    """
    changes: dict[str, Any] = {}
    if settings.enable_force_include_usage and request.stream is True:
        options = or_default(request.stream_options, ChatCompletionStreamOptions())
        changes["stream_options"] = msgspec.structs.replace(options, include_usage=True)
    if settings.return_tokens_as_token_ids and not given(request.return_tokens_as_token_ids):
        changes["return_tokens_as_token_ids"] = True
    if settings.allow_auto_truncate and _may_lose_beginning(request):
        changes["truncate_prompt_tokens"] = -1
    return msgspec.structs.replace(request, **changes) if changes else request


def _may_lose_beginning(request: CreateChatCompletionRequest | CreateCompletionRequest) -> bool:
    """Return whether a prompt may lose its beginning: a text, but not one with a gap, whose markers are there."""
    if isinstance(request, CreateChatCompletionRequest):
        return False
    return not given(request.truncate_prompt_tokens) and not given(request.suffix)


def truncatable(turn: Turn, settings: Settings) -> Turn:
    """Return a chat's turn that may lose its oldest messages, if the operator allows that.

    Chat requests have no field `truncation`. Their `truncate_prompt_tokens` wins.
    """
    if not settings.allow_auto_truncate or turn.keep_tokens is not None:
        return turn
    return msgspec.structs.replace(turn, truncate_prompt=True)


def response_with_defaults(request: CreateResponse, settings: Settings) -> CreateResponse:
    """Return a Responses request with the operator's `truncation`, unless it has its own."""
    if not settings.allow_auto_truncate or given(request.truncation):
        return request
    return msgspec.structs.replace(request, truncation="auto")

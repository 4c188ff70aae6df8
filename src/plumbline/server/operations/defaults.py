"""Add to requests what the operator sets for all of them."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from plumbline._generated.chat import ChatCompletionStreamOptions, CreateChatCompletionRequest
from plumbline._generated.completions import CreateCompletionRequest
from plumbline.protocols.common.fields import given, or_default
from plumbline.server.settings import Settings

__all__ = ["with_defaults"]

R = TypeVar("R", CreateChatCompletionRequest, CreateCompletionRequest)


def with_defaults(request: R, settings: Settings) -> R:
    """Return a chat or legacy completion request with the operator's values.

    Args:
        request: the request. Its own `return_tokens_as_token_ids` wins.
        settings: with `enable_force_include_usage` and `return_tokens_as_token_ids`.
    """
    changes: dict[str, Any] = {}
    if settings.enable_force_include_usage and request.stream is True:
        options = or_default(request.stream_options, ChatCompletionStreamOptions())
        changes["stream_options"] = msgspec.structs.replace(options, include_usage=True)
    if settings.return_tokens_as_token_ids and not given(request.return_tokens_as_token_ids):
        changes["return_tokens_as_token_ids"] = True
    return msgspec.structs.replace(request, **changes) if changes else request

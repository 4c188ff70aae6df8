"""Read the smallest request of each API, with changes."""

from __future__ import annotations

from typing import Any

import pytest
from support.models import TOKENIZER

from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.decode import decode, encode
from plumbline.contract.wire.errors import ApiError
from plumbline.server.protocols.chat.reader import read_chat
from plumbline.server.protocols.common.sampling.parameters import Defaults
from plumbline.server.protocols.completions.reader import read_completion
from plumbline.server.protocols.responses.reader import read_response

__all__ = ["DEFAULTS", "FLAT_TOOL", "MINIMAL", "ROOTS", "TOOL", "USER", "read", "refusal"]

DEFAULTS = Defaults(vocab_size=TOKENIZER.vocab_size)
USER = {"role": "user", "content": "hi"}

MINIMAL: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [USER]},
    "completions": {"model": "m", "prompt": "hi"},
    "responses": {"model": "m", "input": "hi"},
}
ROOTS: dict[str, Any] = {
    "chat": (CreateChatCompletionRequest, read_chat),
    "completions": (CreateCompletionRequest, read_completion),
    "responses": (CreateResponse, read_response),
}

TOOL = {"type": "function", "function": {"name": "f"}}
FLAT_TOOL = {"type": "function", "name": "f", "parameters": None, "strict": None}


def read(api: str, **changes: Any) -> Any:
    root, reader = ROOTS[api]
    return reader(decode(root, encode({**MINIMAL[api], **changes})), DEFAULTS)


def refusal(api: str, **changes: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(api, **changes)
    assert caught.value.status == 400
    return caught.value

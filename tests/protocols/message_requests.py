"""Requests of the Messages API, and what is read from them."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.answer.turn import ChatPrompt, Turn
from plumbline.contract._generated.messages import CreateMessageRequest
from plumbline.contract.wire.decode import decode, encode
from plumbline.contract.wire.errors import ApiError
from plumbline.server.protocols.common.sampling.parameters import Defaults
from plumbline.server.protocols.common.sealing import Sealer
from plumbline.server.protocols.messages.reader import read_message

Json = dict[str, Any]
SEALER = Sealer("a secret")
BODY: Json = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"x": {"type": "string"}}}}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": "a"}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": SEALER.seal("hm")}
SAID = {"type": "text", "text": "so"}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "b"}


def read(**changes: Any) -> Turn:
    request = decode(CreateMessageRequest, encode({**BODY, **changes}))
    return read_message(request, Defaults(vocab_size=300), SEALER, thinks=True, modalities=("image",))


def prompt(**changes: Any) -> ChatPrompt:
    found = read(**changes).prompt
    assert isinstance(found, ChatPrompt)
    return found


def refusal(**changes: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(**changes)
    assert caught.value.status == 400
    return caught.value


PREFILLED = {"messages": [*BODY["messages"], {"role": "assistant", "content": "so"}]}


def after_call(*content: Any) -> Any:
    return [
        *BODY["messages"],
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": list(content)},
    ]

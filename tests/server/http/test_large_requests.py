"""What an API reads from a large request is read beside the event loop, so that other streams go on (`Call.read`)."""

from __future__ import annotations

import threading
from functools import wraps
from typing import Any

import pytest
from support.models import scripted, served
from support.servers.asgi import serving

from plumbline.contract.wire.decode import encode
from plumbline.server.operations import chat, completions, messages, responses, tokens

LONG = "a word " * 40_000
SAID = [{"role": "user", "content": "%s"}]
READERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "/v1/chat/completions": (chat, "read_chat", {"messages": SAID}),
    "/v1/completions": (completions, "read_completion", {"prompt": "%s"}),
    "/v1/messages": (messages, "read_message", {"messages": SAID, "max_tokens": 1}),
    "/v1/messages/count_tokens": (messages, "read_message_prompt", {"messages": SAID}),
    "/v1/responses": (responses, "read_response", {"input": "%s"}),
    "/v1/responses/input_tokens": (responses, "read_response_prompt", {"input": "%s"}),
    "/v1/responses/compact": (responses, "read_input", {"input": "%s"}),
    "/tokenize": (tokens, "read_messages", {"messages": SAID}),
}


@pytest.mark.parametrize("path", READERS)
async def test_a_large_request_is_read_beside_the_loop_and_a_small_one_at_once(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, body = READERS[path]
    read, threads = getattr(module, name), list[int]()

    @wraps(read)
    def noted(*args: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return read(*args, **options)

    monkeypatch.setattr(module, name, noted)
    async with serving(served(scripted())) as server:
        for text in ("Hello.", LONG):
            whole = encode({"model": "test-model", **body}).replace(b"%s", text.encode())
            await server.post(path, whole)
    assert threads[0] == threading.get_ident()
    assert len(threads) == 2
    assert threads[1] != threading.get_ident()

"""Send the requests of the generation tests and return the answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from support.models import (
    served,
    tiny_engine,
)
from support.servers.asgi import Server, serving

__all__ = ["GREEDY", "SEEDED", "USER", "Json", "chat", "complete", "native_server", "respond", "streamed"]

Json = dict[str, Any]
USER = [{"role": "user", "content": "hello world"}]
GREEDY = {"temperature": 0}
SEEDED = {"temperature": 1.0, "seed": 7, "top_p": 0.95}


@asynccontextmanager
async def native_server(**settings: Any) -> AsyncGenerator[Server, None]:
    """Serve the native engine with a random model, which writes any bytes, the same in any batch."""
    async with serving(served(tiny_engine(batch_invariant=True)), **settings) as server:
        yield server


async def chat(server: Server, **options: Any) -> Json:
    answer = await server.post("/v1/chat/completions", {"model": "test-model", "messages": USER, **options})
    assert answer.status == 200, answer.body
    return answer.json  # type: ignore[no-any-return]


async def complete(server: Server, **options: Any) -> Json:
    answer = await server.post("/v1/completions", {"model": "test-model", "prompt": "hello", **options})
    assert answer.status == 200, answer.body
    return answer.json  # type: ignore[no-any-return]


async def respond(server: Server, **options: Any) -> Json:
    answer = await server.post("/v1/responses", {"model": "test-model", "input": "hello world", **options})
    assert answer.status == 200, answer.body
    return answer.json  # type: ignore[no-any-return]


async def streamed(server: Server, path: str, body: Json) -> list[Json]:
    answer = await server.post(path, {"model": "test-model", "stream": True, **body})
    assert answer.status == 200, answer.body
    events = answer.events
    assert events.pop().data == "[DONE]"
    return [event.json for event in events]

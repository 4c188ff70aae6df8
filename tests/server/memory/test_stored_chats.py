"""Chat completions are stored if a request wants that (CHAT-16).

- A stored completion is what the client got, streamed or not; its messages are those of the request.
- Lists are filtered by model and metadata, and cut into pages; metadata can be changed.
- A stream that fails, or that its client leaves, is not stored.
- Other keys see nothing, and nothing is kept without `store`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.models import GatedEngine, served, text_chunks, tiny_engine
from support.servers.asgi import Server, serving

from plumbline.port.engine import GenerateRequest, TokenChunk

CHAT = "/v1/chat/completions"
BODY = {
    "model": "test-model",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "hi", "name": "bob"},
    ],
    "max_tokens": 4,
    "store": True,
}


async def create(server: Server, **fields: Any) -> dict[str, Any]:
    answer = await server.post(CHAT, {**BODY, **fields})
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


async def test_a_stored_completion_is_what_the_client_got(tmp_path: Path) -> None:
    async with serving(served(tiny_engine()), store=str(tmp_path / "s.db")) as server:
        made = await create(server, metadata={"a": "b"})
        stream = await server.post(CHAT, {**BODY, "stream": True})
        chunks = [event.json for event in stream.events if event.data != "[DONE]"]
        streamed = (await server.get(f"{CHAT}/{chunks[0]['id']}")).json
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)

        assert (await server.get(f"{CHAT}/{made['id']}")).json == made
        assert streamed["choices"][0]["message"]["content"] == text


async def test_its_messages_are_those_of_the_request(tmp_path: Path) -> None:
    async with serving(served(tiny_engine()), store=str(tmp_path / "s.db")) as server:
        made = await create(server)
        page = (await server.get(f"{CHAT}/{made['id']}/messages")).json
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

        assert page["data"] == [
            {
                "id": f"{made['id']}-0",
                "role": "system",
                "content": None,
                "content_parts": parts,
            },
            {"id": f"{made['id']}-1", "role": "user", "content": "hi", "content_parts": None, "name": "bob"},
        ]


async def test_lists_are_filtered_and_cut_into_pages(tmp_path: Path) -> None:
    async with serving(served(tiny_engine()), store=str(tmp_path / "s.db")) as server:
        made = [(await create(server, metadata={"n": str(n % 2)}))["id"] for n in range(4)]

        async def ids(query: str) -> list[str]:
            return [one["id"] for one in (await server.get(f"{CHAT}?{query}")).json["data"]]

        assert await ids("limit=3") == made[:3]
        assert await ids(f"after={made[1]}&order=asc") == made[2:]
        assert await ids("order=desc") == made[::-1]
        assert await ids("metadata%5Bn%5D=1") == [made[1], made[3]]
        assert await ids("model=other") == []
        assert (await server.get(f"{CHAT}?after=no")).status == 400


async def test_metadata_can_be_changed_and_a_completion_deleted(tmp_path: Path) -> None:
    async with serving(served(tiny_engine()), store=str(tmp_path / "s.db")) as server:
        made = await create(server, metadata={"a": "b"})
        path = f"{CHAT}/{made['id']}"
        changed = (await server.post(path, {"metadata": {"c": "d"}})).json

        assert changed == {**made, "metadata": {"c": "d"}} == (await server.get(path)).json
        assert (await server.request("DELETE", path)).json == {
            "id": made["id"],
            "object": "chat.completion.deleted",
            "deleted": True,
        }
        for method in ("GET", "DELETE"):
            assert (await server.request(method, path)).status == 404


async def test_nothing_is_kept_without_store(tmp_path: Path) -> None:
    async with serving(served(tiny_engine()), store=str(tmp_path / "s.db")) as server:
        for fields in ({"store": False}, {"store": None}):
            made = await create(server, **fields)
            assert (await server.get(f"{CHAT}/{made['id']}")).status == 404
    async with serving(served(tiny_engine())) as server:
        refused = await server.post(CHAT, BODY)
        assert (refused.status, refused.error["param"]) == (400, "store")


@pytest.mark.parametrize("ending", ["left", "failed"])
async def test_a_stream_that_does_not_end_is_not_stored(ending: str, tmp_path: Path) -> None:
    def script(request: GenerateRequest) -> Iterator[TokenChunk]:
        yield from text_chunks(request, "half an answer")
        yield TokenChunk(finish_reason="error", error="broken")

    engine = GatedEngine(
        lambda request: [chunk for chunk in script(request) if chunk.finish_reason != "stop"]
    )
    async with serving(served(engine), store=str(tmp_path / "s.db")) as server:
        engine.let(4 if ending == "left" else 100)
        exchange = server.open("POST", CHAT, {**BODY, "max_tokens": 100, "stream": True})
        writes = exchange.writes()
        begun = [await anext(writes), await anext(writes)]
        if ending == "left":
            exchange.leave()
            await exchange.finished()
        else:
            begun += [write async for write in writes]
        left = await server.tasks_left()
        listed = (await server.get(CHAT)).json["data"]

    assert b"broken" in begun[-2] or ending == "left"
    assert (left, listed) == (set(), [])

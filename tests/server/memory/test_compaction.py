"""A compacted conversation is one item that stands for all of it (ST-15, ST-16).

- A request that goes on from it has the same prompt as one with all items; so has one that continues a response.
- Compacting again does not nest. What this server did not seal, or sealed for another purpose, is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.models import served, tiny_engine
from support.servers.asgi import Server, serving

from plumbline.server.protocols.common.sealing import Sealer

COMPACT = "/v1/responses/compact"
KEY = "a key of the server"
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "My name is Ada."},
    {"role": "assistant", "content": "Hello, Ada."},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "41 mm"},
]
NEXT = {"role": "user", "content": "And now?"}


async def compact(server: Server, **fields: Any) -> list[dict[str, Any]]:
    answer = await server.post(COMPACT, {"model": "test-model", **fields})
    assert answer.status == 200, answer.body
    output: list[dict[str, Any]] = answer.json["output"]
    return output


async def tokens(server: Server, items: list[dict[str, Any]], **fields: Any) -> int:
    answer = await server.post(
        "/v1/responses", {"model": "test-model", "input": items, "max_output_tokens": 16, **fields}
    )
    assert answer.status == 200, answer.body
    count: int = answer.json["usage"]["input_tokens"]
    return count


async def test_a_compacted_conversation_goes_on_as_the_whole_one() -> None:
    async with serving(served(tiny_engine()), sealing_key=KEY) as server:
        whole = await tokens(server, [*TALK, NEXT])
        output = await compact(server, input=TALK)
        again = await compact(server, input=[*output, NEXT])

        assert [item["type"] for item in output] == ["compaction"]
        assert await tokens(server, [*output, NEXT]) == whole
        assert await tokens(server, again) == whole


async def test_a_stored_conversation_can_be_compacted(tmp_path: Path) -> None:
    async with serving(served(tiny_engine()), store=str(tmp_path / "s.db")) as server:
        first = await server.post(
            "/v1/responses", {"model": "test-model", "input": TALK, "max_output_tokens": 16}
        )
        output = await compact(server, previous_response_id=first.json["id"], input=[NEXT])

        assert await tokens(server, output) == await tokens(
            server, [NEXT], previous_response_id=first.json["id"]
        )


async def test_what_was_not_sealed_as_a_compaction_is_refused() -> None:
    """ST-16: whatever a client sends, it cannot put items into the prompt that it has not sent before."""
    sealer = Sealer(KEY)
    foreign = Sealer("another key of sixteen").seal("[]", "compaction")
    async with serving(served(tiny_engine()), sealing_key=KEY) as server:
        for content in ("x", foreign, sealer.seal("[]")):
            item = {"type": "compaction", "encrypted_content": content}
            answer = await server.post("/v1/responses", {"model": "test-model", "input": [item, NEXT]})

            assert (answer.status, answer.error["param"]) == (400, "input[0].encrypted_content")
            assert answer.error["code"] == "invalid_encrypted_content"


async def test_a_reference_behind_a_compaction_has_its_own_index() -> None:
    """The items of a compaction do not count in the names of fields."""
    async with serving(served(tiny_engine()), sealing_key=KEY) as server:
        output = await compact(server, input=TALK)
        image = {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}
        answer = await server.post("/v1/responses", {"model": "test-model", "input": [*output, image]})

        assert answer.error["param"].startswith("input[1]")

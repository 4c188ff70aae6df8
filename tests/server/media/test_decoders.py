"""Decoding a file costs the server itself nothing.

Laws:
    1. A decoder that exceeds its time or memory, or dies, is a 400 that says so, and the next file is decoded.
    2. Clients take turns: one that sends large files does not keep another's waiting for all of them.
"""

from __future__ import annotations

import asyncio
import io
from functools import cache

import pytest
from PIL import Image
from support.eyes import PNG, Eyes, chat
from support.servers.asgi import serving

from plumbline.base.workers.pool import WorkerPool
from plumbline.server.media import load

CHAT = "/v1/chat/completions"


@cache
def large() -> bytes:
    """A file of 40 KB with 30 million pixels, which takes some tenths of a second."""
    file = io.BytesIO()
    Image.new("RGBA", (6000, 5000), (1, 2, 3, 4)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("_CPU_SECONDS", 0.02, "seconds of a CPU"), ("_MEMORY", -40 * 10**6 * 32 + (8 << 20), "memory")],
)
async def test_a_file_that_exceeds_a_bound_is_refused_and_the_next_one_is_decoded(
    name: str, value: float, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, name, value)
    async with serving(Eyes().model) as server:
        refused = await server.post(CHAT, chat(large()))
        assert refused.status == 400
        assert message in refused.error["message"]
        assert refused.error["param"].endswith("image_url.url")
        assert (await server.post(CHAT, chat(PNG))).status == 200


async def test_a_decoder_that_dies_is_an_error_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(Eyes().model) as server:
        made: list[WorkerPool] = []
        worker = WorkerPool.worker

        def watched(pool: WorkerPool, client: str) -> object:
            made.append(pool)
            return worker(pool, client)

        monkeypatch.setattr(WorkerPool, "worker", watched)
        hanging = asyncio.create_task(server.post(CHAT, chat(large())))
        while not made or made[0]._template is None or not made[0]._template._workers:
            await asyncio.sleep(0.001)
        made[0]._template.kill(1)
        answer = await hanging
        assert answer.status == 400
        assert "the decoder broke off" in answer.error["message"]
        assert (await server.post(CHAT, chat(PNG))).status == 200


async def test_clients_take_turns_at_the_decoders() -> None:
    eyes = Eyes()
    async with serving(eyes.model, api_keys=("a", "b")) as server:
        many = [
            asyncio.create_task(server.post(CHAT, chat(large()), headers={"authorization": "Bearer a"}))
            for _ in range(5)
        ]
        await asyncio.sleep(0.05)
        other = await server.post(CHAT, chat(PNG), headers={"authorization": "Bearer b"})
        assert other.status == 200
        assert sum(each.done() for each in many) <= 1
        assert [each.status for each in await asyncio.gather(*many)] == [200] * 5

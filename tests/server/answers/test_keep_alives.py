"""`sse_ping_interval`: a request sets after how much silence its stream gets a comment, as in llama.cpp (SSE-08)."""

from __future__ import annotations

import asyncio

import pytest
from support.bodies import BODIES
from support.models import GatedEngine, served
from support.servers.asgi import serving


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_request_chooses_its_keep_alives(path: str) -> None:
    async def comments(interval: int, server_interval: float, enough: int) -> int:
        engine = GatedEngine()
        async with serving(served(engine), keep_alive_interval=server_interval) as server:
            exchange = server.open(
                "POST", path, {**BODIES[path], "stream": True, "sse_ping_interval": interval}
            )
            if not enough:
                asyncio.get_running_loop().call_later(0.05, engine.let)
            found = 0
            async for write in exchange.writes():
                found += write == b": keep-alive\n\n"
                if enough and found == enough:
                    engine.let()
        return found

    assert await comments(-1, 0.001, 0) == await comments(0, 0.001, 0) == 0
    assert await comments(1, 600, 1) == 1

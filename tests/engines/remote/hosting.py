"""Serve an engine to engines in other processes, here in one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from plumbline.engines.remote.client import RemoteEngine
from plumbline.engines.remote.host import EngineHost
from plumbline.port.engine import (
    Engine,
    GenerateRequest,
    SamplingParams,
    TokenChunk,
)


def request(name: str, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id=name, prompt_token_ids=(5, 6, 7), sampling=SamplingParams(max_tokens=50, **sampling)
    )


@asynccontextmanager
async def hosted(engine: Engine, folder: Path, users: int = 1) -> AsyncIterator[list[RemoteEngine]]:
    """Serve an engine and connect to it some times."""
    path = folder / "engine.sock"
    host = EngineHost(engine, path)
    await host.start()
    remotes = [await RemoteEngine.connect(path) for _ in range(users)]
    for remote in remotes:
        await remote.start()
    try:
        yield remotes
    finally:
        for remote in remotes:
            await remote.stop()
        await host.stop()


async def chunks_of(engine: Engine, wanted: GenerateRequest) -> list[TokenChunk]:
    return [chunk async for chunk in engine.generate(wanted)]

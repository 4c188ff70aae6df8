"""Measure tokens per second and time per output token over HTTP: our server and `transformers serve`, same folder.

All servers run at the same time and are measured in turn, A B C A B C …, so that load on the machine affects all.
`transformers serve` runs twice: with its defaults, and with continuous batching. Tokens are counted by the servers'
usage; greedy decoding of the same weights gives all servers the same work, which is checked. The CPU time of the whole
server process is reported next to the wall clock, because it depends less on other load.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.serving.processes import RunningServer, cpu_seconds, peak_memory, serve

__all__ = ["measure"]

PROMPTS = [
    f"Count from {start} to {start + 28}."
    for start in (1, 2, 3, 5, 8, 11, 13, 17, 20, 22, 25, 27, 30, 31, 34, 36)
]
MAX_TOKENS = 96
OURS = "plumbline"


@dataclass(slots=True)
class StreamTimes:
    """Measurements of one streamed answer."""

    tokens: int
    first: float
    """Seconds from sending the request to the first content."""
    whole: float
    text: str


async def one(client: httpx2.AsyncClient, server: RunningServer, prompt: str) -> StreamTimes:
    """Stream one answer."""
    body: dict[str, Any] = {
        "model": server.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    first = 0.0
    tokens = 0
    text: list[str] = []
    async with client.stream("POST", f"{server.base_url}/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            for choice in chunk["choices"]:
                content = choice["delta"].get("content")
                if content:
                    first = first or time.perf_counter() - started
                    text.append(content)
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
    return StreamTimes(tokens, first, time.perf_counter() - started, "".join(text))


async def load(server: RunningServer, concurrency: int, requests: int) -> dict[str, Any]:
    """Request `requests` answers, `concurrency` at a time."""
    limits = httpx2.Limits(max_connections=concurrency)
    async with httpx2.AsyncClient(timeout=600, limits=limits) as client:
        gate = asyncio.Semaphore(concurrency)
        found: list[StreamTimes] = []

        async def run(index: int) -> None:
            async with gate:
                found.append(await one(client, server, PROMPTS[index % len(PROMPTS)]))

        cpu = cpu_seconds(server.pid)
        started = time.perf_counter()
        await asyncio.gather(*(run(index) for index in range(requests)))
        wall = time.perf_counter() - started
        cpu = cpu_seconds(server.pid) - cpu
    tokens = sum(stream.tokens for stream in found)
    return {
        "tokens": tokens,
        "tokens_per_second": tokens / wall,
        "tokens_per_cpu_second": tokens / cpu if cpu else None,
        "ttft_ms": statistics.median(stream.first for stream in found) * 1e3,
        "tpot_ms": statistics.median(
            (stream.whole - stream.first) / max(stream.tokens - 1, 1) for stream in found
        )
        * 1e3,
        # Answers are compared, and transformers serve sends the two line ends after an empty thought as text.
        "texts": sorted({stream.text.strip() for stream in found}),
    }


def measure(folder: Path, names: list[str], *, rounds: int = 5) -> list[dict[str, Any]]:
    """Return rows of medians for concurrency 1, 8 and 32, with the ratios to each peer."""
    from contextlib import ExitStack

    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        servers = [stack.enter_context(serve(name, folder)) for name in names]
        for server in servers:  # Warm every server up, so that no first call is measured.
            asyncio.run(load(server, 4, 8))
        for concurrency, requests in ((1, 4), (8, 16), (32, 64)):
            runs: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
            for _ in range(rounds):
                for server in servers:
                    runs[server.name].append(asyncio.run(load(server, concurrency, requests)))
            rows += [_row(server, concurrency, requests, runs) for server in servers]
        for server in servers:
            for row in rows:
                if row["server"] == server.name:
                    row["peak_memory_mb"] = peak_memory(server.pid) / 1e6
    return rows


def _row(
    server: RunningServer, concurrency: int, requests: int, runs: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    mine = runs[server.name]
    peers = {name: theirs for name, theirs in runs.items() if name != OURS}
    row: dict[str, Any] = {
        "server": server.name,
        "concurrency": concurrency,
        "requests": requests,
        "rounds": len(mine),
        "same_text_as_peers": all(mine[0]["texts"] == theirs[0]["texts"] for theirs in peers.values()),
    }
    for key in ("tokens", "tokens_per_second", "tokens_per_cpu_second", "ttft_ms", "tpot_ms"):
        values = [run[key] for run in mine]
        row[key] = statistics.median(values)
        row[f"{key}_range"] = [min(values), max(values)]
    for peer, theirs in peers.items():
        for key in ("tokens_per_second", "tokens_per_cpu_second"):
            ratios = [a[key] / b[key] for a, b in zip(mine, theirs, strict=True)]
            row[f"{key}_ratio_to_{peer}"] = statistics.median(ratios)
    return row

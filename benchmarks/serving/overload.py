"""Measure the goodput of a server that gets several times as many requests as it can answer.

Clients that wait for their answers find the most that the server can do. Then requests arrive at random (Poisson) at a
multiple of that rate, whether or not others have been answered. Good tokens are those of answers that come whole, with
the first token within 5 s; a refusal at once costs none of them.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serving.processes import free_port, started

__all__ = ["measure"]

_SECONDS = 20.0
_TOKENS = 24
_QUEUE_SECONDS = 2.0
_FIRST_TOKEN_SECONDS = 5.0
"""Within which a first token counts as good."""
_RUNNING = 8
_WORDS = [
    "tell",
    "me",
    "of",
    "a",
    "red",
    "cat",
    "and",
    "the",
    "stars",
    "that",
    "sing",
    "in",
    "winter",
    "by",
    "an",
    "old",
    "river",
]


def measure(model: Path, times: tuple[float, ...] = (1.0, 4.0, 16.0)) -> list[dict[str, Any]]:
    """Return a row for the peak and one for each multiple of it, without and with `--max-queue-seconds`."""
    rows = []
    for limit in (0.0, _QUEUE_SECONDS):
        port = free_port()
        command = [
            *(
                sys.executable,
                "-m",
                "plumbline",
                "serve",
                f"--model={model}",
                f"--port={port}",
                "--store=none",
            ),
            *("--served-model-name=m", f"--max-num-seqs={_RUNNING}", f"--max-queue-seconds={limit:g}"),
            "--max-seqs-per-client=0",
        ]
        with started(command, port):
            rows += asyncio.run(_measure(port, limit, times))
    return rows


async def _measure(port: int, limit: float, times: tuple[float, ...]) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", timeout=120, limits=httpx.Limits(max_connections=None)
    ) as client:
        load = _Load(client)
        await load.closed(5.0)  # Warms up.
        peak = await load.closed(_SECONDS)
        rows = [{**peak, "max_queue_seconds": limit, "load": "peak", "ratio": 1.0}]
        for factor in times:
            found = await load.open(factor * peak["answers_per_second"], _SECONDS)
            ratio = found["good_tokens_per_second"] / peak["good_tokens_per_second"]
            rows.append({**found, "max_queue_seconds": limit, "load": f"{factor:g} x", "ratio": ratio})
        return rows


class _Load:
    """Requests to one server, and what came of them."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._random = random.Random(1)
        self._first_tokens: list[float] = []
        self._good = 0
        self._answers = 0
        self._refused = 0
        self._end = 0.0

    async def closed(self, seconds: float) -> dict[str, Any]:
        """Let as many clients as run at a time send one request after the other."""
        self._begin(seconds)

        async def client() -> None:
            while time.perf_counter() < self._end:
                await self._send()

        await asyncio.gather(*(client() for _ in range(_RUNNING)))
        return self._row(seconds)

    async def open(self, rate: float, seconds: float) -> dict[str, Any]:
        """Send requests at a rate a second, at random times."""
        self._begin(seconds)
        sending: list[asyncio.Task[None]] = []
        due = time.perf_counter()
        while due < self._end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sending.append(asyncio.create_task(self._send()))
            due += self._random.expovariate(rate)
        await asyncio.wait(sending, timeout=max(0.0, self._end - time.perf_counter()) + 0.01)
        row = self._row(seconds)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await asyncio.sleep(1.0)
        return row

    def _begin(self, seconds: float) -> None:
        self._first_tokens, self._good, self._answers, self._refused = [], 0, 0, 0
        self._end = time.perf_counter() + seconds

    async def _send(self) -> None:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": " ".join(self._random.choices(_WORDS, k=20))}],
            "max_tokens": _TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        began = time.perf_counter()
        first = 0.0
        async with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if not first and '"content"' in line:
                    first = time.perf_counter() - began
        now = time.perf_counter()
        if answer.status_code == 429:
            self._refused += 1
        elif answer.status_code == 200 and now <= self._end:
            self._answers += 1
            self._first_tokens.append(first)
            self._good += _TOKENS if first <= _FIRST_TOKEN_SECONDS else 0

    def _row(self, seconds: float) -> dict[str, Any]:
        waits = sorted(self._first_tokens) or [float("inf")]
        return {
            "good_tokens_per_second": self._good / seconds,
            "answers_per_second": self._answers / seconds,
            "refused": self._refused,
            "ttft_ms": waits[len(waits) // 2] * 1e3,
            "ttft_ms_p99": waits[len(waits) * 99 // 100] * 1e3,
        }

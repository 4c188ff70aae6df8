"""Put load on a server: a number of requests at a time, or requests per second."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from plumbline_conformance.bench.sample import RequestSample

__all__ = ["Load", "LoadRun", "apply"]

Send = Callable[[Any, int], Awaitable[RequestSample]]


class Load(msgspec.Struct, frozen=True):
    """How many requests come: `concurrency` at a time, or `rate` per second at random (a Poisson process)."""

    concurrency: int = 0
    rate: float = 0.0

    @property
    def requests(self) -> int:
        """How many requests a round has by default: four times the load, and at least 16."""
        return max(16, 4 * self.concurrency, round(4 * self.rate))

    @property
    def label(self) -> str:
        """The load in words."""
        return f"{self.rate:g} requests/s" if self.rate else f"{self.concurrency} at a time"


class LoadRun(msgspec.Struct, frozen=True):
    """The requests of one load on one server."""

    samples: list[RequestSample]
    seconds: float
    """From the first request to the end of the last answer."""
    client_cpu: float
    """Part of one core that the benchmark itself used; near 1 the client is what is measured."""


async def apply(
    load: Load, send: Send, asked: Iterator[tuple[Any, int]], requests: int, seed: int
) -> LoadRun:
    """Send requests at a load, and return their samples when all are answered."""
    cpu, began = time.process_time(), time.perf_counter()
    if load.rate:
        samples = await _at_rate(load.rate, send, asked, requests, seed)
    else:
        samples = await _at_a_time(load.concurrency, send, asked, requests)
    seconds = time.perf_counter() - began
    return LoadRun(samples, seconds, (time.process_time() - cpu) / seconds)


async def _at_a_time(
    concurrency: int, send: Send, asked: Iterator[tuple[Any, int]], requests: int
) -> list[RequestSample]:
    left = iter(range(requests))

    async def work() -> list[RequestSample]:
        return [await send(*next(asked)) for _ in left]

    workers = await asyncio.gather(*(work() for _ in range(min(concurrency, requests))))
    return [sample for found in workers for sample in found]


async def _at_rate(
    rate: float, send: Send, asked: Iterator[tuple[Any, int]], requests: int, seed: int
) -> list[RequestSample]:
    source = random.Random(seed)
    due = time.perf_counter()
    tasks: list[asyncio.Task[RequestSample]] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(requests):
            # The times do not depend on the answers: a slow server gets no fewer requests.
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(group.create_task(_sent(send, *next(asked))))
            due += source.expovariate(rate)
    return [task.result() for task in tasks]


async def _sent(send: Send, prompt: Any, tokens: int) -> RequestSample:
    return await send(prompt, tokens)

"""Measure what an overloaded server still does: answers per second within a bound, at 1, 4 and 16 times its capacity.

    python -m benchmarks.serving.overload --to result.json

The capacity is what clients that wait for their answers get. Then requests come at random (a Poisson process), whatever
becomes of the earlier ones, from a client that keeps its connections, as official clients do. An answer is good if it
is whole and its first token came within the bound, counted from when the request was due. Every rate is measured in
turn, several times, because the speed of a machine changes. Goal: at 4 and 16 times the capacity 90 % of the good
answers of the best load.

Real clients have machines of their own. So the server gets one core and the client another, and the CPU time of both is
in the rows: where the client needs its whole core, the rate is what it could send and not what was asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import uvloop

from benchmarks.environment import environment
from benchmarks.serving.processes import cpu_seconds, free_port, posted, started

__all__ = ["measure"]

_MODEL = "bench"
_FACTORS = (0.5, 1.0, 4.0, 16.0)
_CLIENTS = 16
"""Clients that wait for their answers, to find the capacity."""
_BOUND = 2.0
"""Seconds to the first token of a good answer."""
_QUEUE_SECONDS = 1.0
"""The server's `--max-queue-seconds`: half of the bound, because a step and a prompt come after the queue."""
_WORDS = ("barn", "candle", "drift", "ember", "fable", "garnet", "hollow", "island", "jigsaw", "kettle")


class RequestOutcome(NamedTuple):
    """What became of a request."""

    status: int
    """0 if the connection failed."""
    first: float
    """Seconds from when it was due to the first token."""
    whole: bool
    """Whether the answer came to its end."""


class LoadRound(NamedTuple):
    """One load in one round."""

    answers: list[RequestOutcome]
    client_cores: float
    """CPU seconds of the client per second."""
    server_cores: float


def measure(seconds: float, rounds: int, tokens: int, options: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each load."""
    cores = sorted(os.sched_getaffinity(0))
    port = free_port()
    command = [sys.executable, "-m", "plumbline.cli", "serve", "--port", str(port), "--store", "none"]
    command += ["--max-queue-seconds", str(_QUEUE_SECONDS), "--served-model-name", _MODEL, *options]
    found: dict[float, list[LoadRound]] = {factor: [] for factor in _FACTORS}
    os.sched_setaffinity(0, cores[:1])  # The server inherits it.
    with started(command, port) as server:
        os.sched_setaffinity(0, cores[1:] or cores)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            client = _Client(port, tokens)
            loop.run(client.capacity(2.0))
            for number in range(rounds):
                capacity = loop.run(client.capacity(seconds))
                for factor in _FACTORS if number % 2 == 0 else _FACTORS[::-1]:
                    began, own, its = time.perf_counter(), time.process_time(), cpu_seconds(server.pid)
                    answers = loop.run(client.at_rate(seconds, factor * capacity, number))
                    took = time.perf_counter() - began
                    own, its = time.process_time() - own, cpu_seconds(server.pid) - its
                    found[factor].append(LoadRound(answers, own / took, its / took))
    best = [max(_good(found[factor][number], seconds) for factor in _FACTORS) for number in range(rounds)]
    return [_row(factor, runs, best, seconds) for factor, runs in found.items()]


def _good(run: LoadRound, seconds: float) -> float:
    return sum(each.whole and each.first <= _BOUND for each in run.answers) / seconds


def _row(factor: float, runs: list[LoadRound], best: list[float], seconds: float) -> dict[str, Any]:
    good = [_good(run, seconds) for run in runs]
    parts = [one / most for one, most in zip(good, best, strict=True)]
    every = [each for run in runs for each in run.answers]
    firsts = sorted(each.first for each in every if each.whole)
    return {
        "load": factor,
        "sent_per_second": len(every) / len(runs) / seconds,
        "good_per_second": statistics.median(good),
        "good_of_best": statistics.median(parts),
        "good_of_best_least": min(parts),
        "refused": sum(each.status in (429, 503) for each in every) / len(every),
        "broken": sum(not each.whole and each.status not in (429, 503) for each in every),
        "client_cores": statistics.median(run.client_cores for run in runs),
        "server_cores": statistics.median(run.server_cores for run in runs),
        "first_token_ms": statistics.median(firsts) * 1e3 if firsts else None,
        "first_token_ms_p99": firsts[len(firsts) * 99 // 100] * 1e3 if firsts else None,
    }


class _Client:
    """Clients of one server, which share connections."""

    def __init__(self, port: int, tokens: int) -> None:
        self._port = port
        self._tokens = tokens
        self._idle: list[_Connection] = []
        self._prompts = random.Random(0)
        """Of all loads together: the prefix cache would have the prompts that an earlier load has sent."""

    async def capacity(self, seconds: float) -> float:
        """Return the answers per second of clients that send a request after the other."""
        began = time.perf_counter()

        async def work() -> int:
            count = 0
            while time.perf_counter() < began + seconds:
                answer = await self._send(time.perf_counter())
                if answer.whole:
                    count += 1
                elif answer.status == 429:
                    await asyncio.sleep(0.1)
                else:
                    raise RuntimeError(f"a request was answered with status {answer.status}")
            return count

        counts = await asyncio.gather(*(work() for _ in range(_CLIENTS)))
        return sum(counts) / (time.perf_counter() - began)

    async def at_rate(self, seconds: float, rate: float, seed: int) -> list[RequestOutcome]:
        """Return the answers to requests that come at random."""
        source = random.Random(seed)
        tasks = []
        due = began = time.perf_counter()
        while due < began + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self._send(due)))
            due += source.expovariate(rate)
        return await asyncio.gather(*tasks)

    async def _send(self, due: float) -> RequestOutcome:
        prompt = " ".join(self._prompts.choices(_WORDS, k=60))
        fields = {"model": _MODEL, "prompt": prompt, "max_tokens": self._tokens, "ignore_eos": True}
        body = {**fields, "temperature": 0.7, "stream": True}
        try:
            while not (connection := self._idle.pop() if self._idle else await self._opened()).is_open:
                pass
        except OSError:
            return RequestOutcome(0, 0.0, False)
        answer = await connection.send(posted("/v1/completions", body, closes=False), due)
        if connection.is_open:
            self._idle.append(connection)
        return answer

    async def _opened(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, "127.0.0.1", self._port)
        return connection


class _Connection(asyncio.Protocol):
    """A connection with one request at a time. Streams of asyncio would take several times as much CPU."""

    def __init__(self) -> None:
        self.is_open = True
        self._answer: asyncio.Future[RequestOutcome] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what writes."""
        self._transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes, due: float) -> asyncio.Future[RequestOutcome]:
        """Send a request; the result is its answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._due, self._first, self._head, self._tail = due, 0.0, b"", b""
        self._status, self._left = 0, -1
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        """Take bytes of an answer, which has a length or ends with an empty chunk."""
        if not self._status:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._status = int(head.split(b" ", 2)[1])
            length = re.search(rb"\r\ncontent-length: (\d+)", head)
            self._left = int(length[1]) if length else -1
        if not self._first and b"data:" in data:
            self._first = time.perf_counter() - self._due
        self._tail = (self._tail + data)[-64:]
        if self._left >= 0:
            self._left -= len(data)
        if self._left == 0 or (self._left < 0 and self._tail.endswith(b"\r\n0\r\n\r\n")):
            self._end(
                RequestOutcome(self._status, self._first, self._status == 200 and b"[DONE]" in self._tail)
            )

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the request that is on its way."""
        self.is_open = False
        self._end(RequestOutcome(0, 0.0, False))

    def _end(self, answer: RequestOutcome) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)


def _print(rows: list[dict[str, Any]], show: Callable[[str], object] = print) -> None:
    for row in rows:
        late = "–" if row["first_token_ms"] is None else f"{row['first_token_ms']:.0f} ms"
        show(
            f"{row['load']:4g} times: {row['sent_per_second']:7.1f} sent/s, {row['good_per_second']:6.1f} good/s "
            f"({row['good_of_best']:.0%} of the best load, least {row['good_of_best_least']:.0%}), "
            f"{row['refused']:.0%} refused, {row['broken']} broken, first token {late}, "
            f"cores: server {row['server_cores']:.2f}, client {row['client_cores']:.2f}"
        )


def main() -> None:
    """Measure, print, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--to", type=Path)
    arguments, options = parser.parse_known_args()
    rows = measure(arguments.seconds, arguments.rounds, arguments.tokens, options)
    _print(rows)
    if arguments.to is not None:
        result = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": environment(),
            "rows": rows,
        }
        arguments.to.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()

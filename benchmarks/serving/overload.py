"""Measure what an overloaded server still does: answers per second within a bound, at 1, 4 and 16 times its capacity.

    python -m benchmarks.serving.overload --to result.json

The capacity is what clients that wait for their answers get. Then requests come at random (a Poisson process), whatever
becomes of the earlier ones, from a client of raw sockets that keeps up with them. An answer is good if it
is whole and its first token came within the bound, counted from when the request was due. Every rate is measured in
turn, several times, because the speed of a machine changes. Goal: at 4 and 16 times the capacity 90 % of the good
answers of the best load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.environment import environment
from benchmarks.serving.processes import free_port, started

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


class Answer(NamedTuple):
    """What became of a request."""

    status: int
    """0 if the connection failed."""
    first: float
    """Seconds from when it was due to the first token."""
    whole: bool
    """Whether the answer came to its end."""


def measure(seconds: float, rounds: int, tokens: int, options: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each load."""
    port = free_port()
    command = [sys.executable, "-m", "plumbline.cli", "serve", "--port", str(port), "--store", "none"]
    command += ["--max-queue-seconds", str(_QUEUE_SECONDS), "--served-model-name", _MODEL, *options]
    found: dict[float, list[list[Answer]]] = {factor: [] for factor in _FACTORS}
    capacities = []
    with started(command, port):
        asyncio.run(_capacity(port, tokens, 2.0))
        for number in range(rounds):
            capacities.append(asyncio.run(_capacity(port, tokens, seconds)))
            for factor in _FACTORS if number % 2 == 0 else _FACTORS[::-1]:
                rate = factor * capacities[-1]
                found[factor].append(asyncio.run(_at_rate(port, tokens, seconds, rate, number)))
    best = [max(_good(found[factor][number], seconds) for factor in _FACTORS) for number in range(rounds)]
    return [_row(factor, runs, best, seconds) for factor, runs in found.items()]


def _good(run: list[Answer], seconds: float) -> float:
    return sum(each.whole and each.first <= _BOUND for each in run) / seconds


def _row(factor: float, runs: list[list[Answer]], best: list[float], seconds: float) -> dict[str, Any]:
    good = [_good(run, seconds) for run in runs]
    parts = [one / most for one, most in zip(good, best, strict=True)]
    every = [each for run in runs for each in run]
    firsts = sorted(each.first for each in every if each.whole)
    return {
        "load": factor,
        "sent_per_second": len(every) / len(runs) / seconds,
        "good_per_second": statistics.median(good),
        "good_of_best": statistics.median(parts),
        "good_of_best_least": min(parts),
        "refused": sum(each.status in (429, 503) for each in every) / len(every),
        "broken": sum(not each.whole and each.status not in (429, 503) for each in every),
        "first_token_ms": statistics.median(firsts) * 1e3 if firsts else None,
        "first_token_ms_p99": firsts[len(firsts) * 99 // 100] * 1e3 if firsts else None,
    }


async def _capacity(port: int, tokens: int, seconds: float) -> float:
    """Return the answers per second of clients that send a request after the other."""
    began = time.perf_counter()

    async def work(source: random.Random) -> int:
        count = 0
        while time.perf_counter() < began + seconds:
            answer = await _send(port, _body(source, tokens), time.perf_counter())
            if answer.whole:
                count += 1
            elif answer.status == 429:
                await asyncio.sleep(0.1)
            else:
                raise RuntimeError(f"a request was answered with status {answer.status}")
        return count

    counts = await asyncio.gather(*(work(random.Random(number)) for number in range(_CLIENTS)))
    return sum(counts) / (time.perf_counter() - began)


async def _at_rate(port: int, tokens: int, seconds: float, rate: float, seed: int) -> list[Answer]:
    """Return the answers to requests that come at random."""
    source = random.Random(seed)
    tasks = []
    due = began = time.perf_counter()
    while due < began + seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(_send(port, _body(source, tokens), due)))
        due += source.expovariate(rate)
    return await asyncio.gather(*tasks)


def _body(source: random.Random, tokens: int) -> bytes:
    prompt = " ".join(source.choices(_WORDS, k=60))
    body = {"model": _MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0.7}
    return json.dumps({**body, "stream": True}).encode()


async def _send(port: int, body: bytes, due: float) -> Answer:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return Answer(0, 0.0, False)
    try:
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        status, first, tail = int(head.split(b" ", 2)[1]), 0.0, b""
        while data := await reader.read(1 << 16):
            if not first and b"data:" in data:
                first = time.perf_counter() - due
            tail = (tail + data)[-64:]
        return Answer(status, first, status == 200 and b"[DONE]" in tail)
    except (OSError, asyncio.IncompleteReadError):
        return Answer(0, 0.0, False)
    finally:
        writer.close()


def _print(rows: list[dict[str, Any]], show: Callable[[str], object] = print) -> None:
    for row in rows:
        late = "–" if row["first_token_ms"] is None else f"{row['first_token_ms']:.0f} ms"
        show(
            f"{row['load']:4g} times: {row['sent_per_second']:7.1f} sent/s, {row['good_per_second']:6.1f} good/s "
            f"({row['good_of_best']:.0%} of the best load, least {row['good_of_best_least']:.0%}), "
            f"{row['refused']:.0%} refused, {row['broken']} broken, first token {late}"
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

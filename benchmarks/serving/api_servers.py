"""Measure the CPU time that an event of a chat stream costs the API servers and the engine's process.

A server of one process spends `c` seconds of CPU on each event, on one core. With several API servers, each spends `a`
on each of its events, and the engine's process spends `e` on every event. On a machine with enough cores, `n` API
servers send `min(n / a, 1 / e)` events per second, `c * min(n / a, 1 / e)` times as many as the one process. The shared
cost `e` is the bound. Two cores suffice to measure `c`, `a` and `e`, because CPU time does not depend on the number of
cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.serving.processes import cpu_seconds, free_port, posted, started

__all__ = ["measure"]

ROOT = Path(__file__).parents[2]


def measure(
    *, streams: int = 500, tokens: int = 100, rate: float = 4.0, numbers: tuple[int, ...] = (1, 2, 4)
) -> list[dict[str, Any]]:
    """Return a row for each number of API servers, 1 being a server of one process.

    Args:
        streams: streams at a time.
        tokens: events of each stream.
        rate: events per second of each stream.
        numbers: how many API servers.
    """
    rows: list[dict[str, Any]] = []
    for number in numbers:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.serving.scripted_server", str(port), "none", str(tokens)]
        with started([*command, str(1 / rate), str(number)], port, folder=ROOT) as process:
            asyncio.run(_read(port, 20, 20))  # Every process has warmed up.
            children = _children(process.pid)
            idle = sum(map(_memory, [process.pid, *children]))
            before = cpu_seconds(process.pid), sum(map(cpu_seconds, children))
            began = time.monotonic()
            events, busy = asyncio.run(_watched(port, streams, tokens, [process.pid, *children]))
            took = time.monotonic() - began
            first, others = cpu_seconds(process.pid) - before[0], sum(map(cpu_seconds, children)) - before[1]
        front, engine = (others, first) if number > 1 else (first, 0.0)
        rows.append(
            {
                "api_servers": number,
                "events": events,
                "events_per_second": events / took,
                "api_server_us": front / events * 1e6,
                "engine_process_us": engine / events * 1e6,
                "events_per_cpu_second": events / (front + engine),
                "memory_mb": idle / 1e6,
                "kb_per_stream": (busy - idle) / streams / 1e3,
            }
        )
    for row in rows:
        row["most_events_per_second"] = 1e6 * min(
            row["api_servers"] / row["api_server_us"],
            1 / row["engine_process_us"] if row["engine_process_us"] else 1e12,
        )
        row["ratio"] = row["most_events_per_second"] / rows[0]["most_events_per_second"]
    return rows


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def _memory(pid: int) -> int:
    """Return the resident size of a process in bytes (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _watched(port: int, streams: int, tokens: int, pids: list[int]) -> tuple[int, int]:
    """Read streams; return how many events there were, and the largest memory of the processes meanwhile in bytes."""
    reading = asyncio.create_task(_read(port, streams, tokens))
    largest = 0
    while not reading.done():
        largest = max(largest, sum(map(_memory, pids)))
        await asyncio.sleep(0.5)
    return reading.result(), largest


async def _read(port: int, streams: int, tokens: int) -> int:
    """Read streams side by side; return how many events there were."""
    return sum(await asyncio.gather(*(_stream(port, tokens) for _ in range(streams))))


async def _stream(port: int, tokens: int) -> int:
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": "bench", "messages": messages, "stream": True, "max_tokens": 20_000}
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(posted("/v1/chat/completions", body))
    count = 0
    while count < tokens and (data := await reader.read(1 << 16)):
        count += data.count(b'"content":')
    writer.close()
    return count


if __name__ == "__main__":
    os.chdir(ROOT)
    for line in measure():
        print(json.dumps(line))

"""Measure how long an event of a Responses stream takes from the engine to a client, with many streams at once.

The engine is scripted: the text of each token is the time at which the engine sent it, and a client of raw sockets on
the same machine reads it. The same streams from a bare asyncio server, which only writes bytes, show the cost of the
machine, the sleeping and the client.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.serving.processes import cpu_seconds, free_port, posted, started

__all__ = ["measure"]

ROOT = Path(__file__).parents[2]
_TIME = re.compile(rb'"delta":"([0-9.]+) ')
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def measure(
    *, streams: int = 500, tokens: int = 60, rates: tuple[float, ...] = (2.0, 5.0, 10.0)
) -> list[dict[str, Any]]:
    """Return a row for each number of events per second and stream. Goal: 500 streams with p99 under 5 ms."""
    rows = []
    for rate in rates:
        for name, command in (
            ("bare asyncio", [sys.executable, "-m", "benchmarks.serving.streams"]),
            ("plumbline", [sys.executable, "-m", "benchmarks.serving.scripted_server"]),
        ):
            port = free_port()
            options = [str(port), "none", str(tokens), str(1 / rate)]
            with started([*command, *options], port, folder=ROOT) as process:
                before = cpu_seconds(process.pid)
                began = time.monotonic()
                delays = asyncio.run(_read(port, streams, 1 / rate))
                took = time.monotonic() - began
                busy = (cpu_seconds(process.pid) - before) / took
            delays.sort()
            rows.append(
                {
                    "server": name,
                    "streams": streams,
                    "events_per_second": streams * rate,
                    "delay_ms": statistics.median(delays) * 1e3,
                    "delay_ms_p99": delays[len(delays) * 99 // 100] * 1e3,
                    "delay_ms_max": delays[-1] * 1e3,
                    "server_cpu": busy,
                }
            )
    return rows


async def _read(port: int, streams: int, interval: float) -> list[float]:
    """Return the delays of all events in seconds; the streams begin one after the other."""
    delays: list[float] = []
    # Streams that begin within one interval are spread over it, as requests of independent clients are.
    starts = [number * interval / streams * max(1.0, 2.0 / interval) for number in range(streams)]
    counted_from = time.monotonic() + max(starts) + 1.0
    await asyncio.gather(*(_stream(port, start, interval, delays, counted_from) for start in starts))
    return delays


async def _stream(port: int, start: float, interval: float, delays: list[float], counted_from: float) -> None:
    await asyncio.sleep(start)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(posted("/v1/responses", {"model": "bench", "input": "Hi", "stream": True}))
    while data := await reader.read(1 << 16):
        now = time.monotonic()
        if now > counted_from:
            delays += [now - float(sent) - interval for sent in _TIME.findall(data)]
    writer.close()


async def _bare(port: int, tokens: int, interval: float) -> None:
    """Write the events of streams without doing anything else."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(_HEAD)
        for _ in range(tokens if head.startswith(b"POST") else 0):
            sent = time.monotonic()
            await asyncio.sleep(interval)
            writer.write(b'event: x\ndata: {"type":"response.output_text.delta","delta":"%.6f "}\n\n' % sent)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_bare(int(sys.argv[1]), int(sys.argv[3]), float(sys.argv[4])))

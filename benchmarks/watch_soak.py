"""What `plumbline watch` adds to an event: many streams at once, straight to a server and through the proxy.

    python benchmarks/watch_soak.py --streams 100 --events 200 --interval 0.02 --out benchmarks/results/FILE.json

Every event carries the time at which it was written, so its delay is what passed until a client had it. Server and
clients share one process and one loop in both runs, the proxy is a process of its own; the difference is what it adds.
Every byte is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from environment import environment

try:
    import uvloop
except ModuleNotFoundError:
    uvloop = None

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}).encode()


class Upstream:
    """Streams chat chunks at a steady pace and remembers what it sent on each."""

    def __init__(self, events: int, interval: float) -> None:
        self._events = events
        self._interval = interval
        self.sent: dict[str, bytes] = {}

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(BODY))
        name = head.split(b"x-stream: ")[1].split(b"\r\n")[0].decode()
        wire = HEAD
        writer.write(HEAD)
        for number in range(self._events):
            await asyncio.sleep(self._interval)
            event = self._event(name, number)
            piece = b"%x\r\n%s\r\n" % (len(event), event)
            wire += piece
            writer.write(piece)
            await writer.drain()
        end = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
        writer.write(end)
        self.sent[name] = wire + end
        await writer.drain()
        writer.close()

    def _event(self, name: str, number: int) -> bytes:
        last = number == self._events - 1
        delta: dict[str, Any] = {"role": "assistant", "content": ""} if number == 0 else {"content": "word "}
        choice = {
            "index": 0,
            "delta": {} if last else delta,
            "logprobs": None,
            "finish_reason": "stop" if last else None,
        }
        chunk = {
            "id": f"chatcmpl-{name}",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "sent": time.perf_counter(),
        }
        return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def listen(port: int, name: str, delays: list[float]) -> bytes:
    """One client: the bytes that it got; delays of its events are added to the list."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nx-stream: {name}\r\ncontent-length: {len(BODY)}\r\n\r\n"
    writer.write(head.encode() + BODY)
    wire = b""
    while data := await reader.read(65536):
        now = time.perf_counter()
        delays += [now - float(part.split(b"}")[0]) for part in data.split(b'"sent": ')[1:] if b"}" in part]
        wire += data
    writer.close()
    return wire


async def measure(port: int, upstream: Upstream, streams: int) -> dict[str, float]:
    """All clients at once, not in step."""
    delays: list[float] = []

    async def late(number: int) -> bytes:
        await asyncio.sleep(number * 0.0017)
        return await listen(port, str(number), delays)

    upstream.sent.clear()
    found = await asyncio.gather(*(late(number) for number in range(streams)))
    assert [found[number] == upstream.sent[str(number)] for number in range(streams)] == [True] * streams
    cuts = statistics.quantiles(delays, n=100)
    return {
        "events": len(delays),
        "mean_ms": 1000 * statistics.fmean(delays),
        "p50_ms": 1000 * cuts[49],
        "p99_ms": 1000 * cuts[98],
    }


async def main() -> int:
    """Measure straight and through the proxy, in turns; 0 if the mean is within what is allowed and nothing changes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--interval", type=float, default=0.02)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=float, default=1.0, help="milliseconds that may be added in the mean")
    parser.add_argument("--out", type=Path, help="write the row, with the machine that it was taken on")
    arguments = parser.parse_args()
    upstream = Upstream(arguments.events, arguments.interval)
    server = await asyncio.start_server(upstream, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    machine = environment()
    command = [sys.executable, "-m", "plumbline_conformance.cli", "watch", "--listen", ":0"]
    proxy = await asyncio.create_subprocess_exec(
        *command,
        *("--upstream", f"http://127.0.0.1:{port}"),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert proxy.stdout is not None
    said = (await proxy.stdout.readline()).decode()
    front = int(said.split(",")[0].rpartition(":")[2])
    rows: dict[str, list[dict[str, float]]] = {"straight": [], "through": []}
    for number in range(2 * arguments.rounds + 1):
        name, place = ("through", front) if number % 2 else ("straight", port)
        rows[name].append(await measure(place, upstream, arguments.streams))
        print(name, {key: round(value, 3) for key, value in rows[name][-1].items()})
    proxy.terminate()
    report = (await proxy.stdout.read()).decode().strip()
    print(report)
    status = await proxy.wait()
    server.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    events = sum(row["events"] for row in rows["through"])
    result = {
        "streams": arguments.streams,
        "events": arguments.events,
        "interval_ms": 1000 * arguments.interval,
        "added_mean_ms": _added(rows, "mean_ms"),
        "added_p50_ms": _added(rows, "p50_ms"),
        "added_p99_ms": _added(rows, "p99_ms"),
        "processor_us_per_event": 1e6 * (used.ru_utime + used.ru_stime) / events,
        "judged": report.splitlines()[-1],
        **rows,
    }
    print(f"processor time, judging and start included: {result['processor_us_per_event']:.0f} µs per event")
    mean, p99 = result["added_mean_ms"], result["added_p99_ms"]
    print(f"added: {mean:.3f} ms in the mean, {p99:.3f} ms at p99; exit status of the proxy {status}")
    if arguments.out is not None:
        taken = datetime.now(UTC).isoformat(timespec="seconds")
        row = {"taken": taken, "environment": machine, "watch": [result]}
        arguments.out.write_text(json.dumps(row, indent=1) + "\n", "utf-8")
    return 0 if status == 0 and result["added_mean_ms"] <= arguments.most else 1


def _added(rows: dict[str, list[dict[str, float]]], key: str) -> float:
    """The median of the rounds, each against the straight ones around it: a busy machine changes by the minute."""
    straight = [row[key] for row in rows["straight"]]
    pairs = zip(rows["through"], itertools.pairwise(straight), strict=True)
    return statistics.median(through[key] - sum(around) / 2 for through, around in pairs)


if __name__ == "__main__":
    factory = None if uvloop is None else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        sys.exit(runner.run(main()))

"""What `plumbline watch` adds to an event: many streams at once, straight to a server and through the proxy.

    python benchmarks/watch_soak.py --streams 100 --events 100 --interval 0.02 --out benchmarks/results/FILE.json

Every event carries the time at which it was written, so its delay is what passed until a client had it. Server and
clients share one process and one loop in both runs, and do as little as they can, so that it is the proxy that is
measured; the difference is what it adds. Clients begin one after the other, and each asks again when its stream has
ended, so that at any time some streams begin, some end, and others are judged; delays count while all are at it.
Every byte is compared. With `--in-step` the events of all streams are written at the same moments, as by an engine that
finishes one token of each at a time: the last of a hundred waits for all others, straight or not.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from environment import environment

try:
    import uvloop
except ModuleNotFoundError:
    uvloop = None

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}).encode()
SENT = re.compile(rb'"sent": ([0-9.]+)\}\n\n\r\n')


class Upstream(asyncio.Protocol):
    """Streams chat chunks at a steady pace and remembers what it sent on each."""

    def __init__(self, events: int, interval: float, sent: dict[str, bytes]) -> None:
        self._events = events
        self._interval = interval
        self._sent = sent
        self._request = b""
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._request += data
        head, end, body = self._request.partition(b"\r\n\r\n")
        if end and len(body) == len(BODY):
            self._name = head.split(b"x-stream: ")[1].split(b"\r\n")[0].decode()
            self._events_of(self._name)
            self._wire = [HEAD]
            self._transport.write(HEAD)
            self._loop = asyncio.get_running_loop()
            self._due = self._loop.time()
            self._next()

    def _events_of(self, name: str) -> None:
        """Everything of the events but their times: writing JSON would keep the clients waiting."""
        chunk = {"id": f"chatcmpl-{name}", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        word = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
        last: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "stop"}
        self._parts = [
            json.dumps({**chunk, "choices": [choice | {"logprobs": None}]}).encode()[:-1]
            for choice in (first, word, last)
        ]

    def _next(self) -> None:
        if self._number:
            part = self._parts[1 if self._number > 1 else 0]
            part = self._parts[2] if self._number == self._events else part
            event = b'data: %s, "sent": %.9f}\n\n' % (part, time.perf_counter())
            self._write(b"%x\r\n%s\r\n" % (len(event), event))
        if self._number == self._events:
            self._write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            self._sent[self._name] = b"".join(self._wire)
            self._transport.close()
            return
        self._number += 1
        self._due += self._interval
        self._loop.call_at(self._due, self._next)

    def _write(self, piece: bytes) -> None:
        self._wire.append(piece)
        self._transport.write(piece)


class Client(asyncio.Protocol):
    """Notes what it reads and when, and looks at it when the stream has ended."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._reads: list[tuple[float, bytes]] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nx-stream: {self._name}\r\n"
        end = f"content-length: {len(BODY)}\r\n\r\n"
        cast(asyncio.Transport, transport).write(head.encode() + end.encode() + BODY)

    def data_received(self, data: bytes) -> None:
        self._reads.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)

    @property
    def wire(self) -> bytes:
        """All that came."""
        return b"".join(data for _, data in self._reads)

    def delays(self) -> Iterator[tuple[float, float]]:
        """Of each event: when it was written, and the seconds until its last byte was read."""
        read, now, reads = 0, 0.0, iter(self._reads)
        for match in SENT.finditer(self.wire):
            while read < match.end():
                now, data = next(reads)
                read += len(data)
            yield float(match[1]), now - float(match[1])


async def measure(
    port: int, sent: dict[str, bytes], streams: int, turns: int, seconds: float, late: float
) -> dict[str, float]:
    """All clients, of which each stream takes so many seconds, and begins up to `late` seconds after its turn."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter()

    async def listen(number: int) -> list[Client]:
        found = []
        await asyncio.sleep(number * seconds / streams + late * (number * 0.618 % 1))
        for turn in range(turns):
            name = f"{number}-{turn}"
            _, client = await loop.create_connection(lambda name=name: Client(name), "127.0.0.1", port)
            await client.ended
            found.append(client)
        return found

    sent.clear()
    clients = await asyncio.gather(*(listen(number) for number in range(streams)))
    for number, found in enumerate(clients):
        assert [client.wire for client in found] == [sent[f"{number}-{turn}"] for turn in range(turns)]
    first, last = began + seconds, began + turns * seconds
    events = [event for found in clients for client in found for event in client.delays()]
    delays = [delay for moment, delay in events if first < moment < last]
    cuts = statistics.quantiles(delays, n=100)
    return {
        "events": len(delays),
        "mean_ms": 1000 * statistics.fmean(delays),
        "p50_ms": 1000 * cuts[49],
        "p99_ms": 1000 * cuts[98],
    }


async def main() -> int:
    """Measure straight and through the proxy, in turns; 0 if what is added is within what is allowed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--interval", type=float, default=0.02)
    parser.add_argument("--turns", type=int, default=4, help="streams of each client, one after the other")
    parser.add_argument("--in-step", action="store_true", help="write the events of all streams at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=float, default=1.0, help="milliseconds that may be added at p99")
    parser.add_argument("--out", type=Path, help="add the row, with the machine that it was taken on")
    arguments = parser.parse_args()
    late = 0.0 if arguments.in_step else arguments.interval
    sent: dict[str, bytes] = {}
    server = await asyncio.get_running_loop().create_server(
        lambda: Upstream(arguments.events, arguments.interval, sent), "127.0.0.1", 0
    )
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
        seconds = arguments.events * arguments.interval
        rows[name].append(await measure(place, sent, arguments.streams, arguments.turns, seconds, late))
        print(name, {key: round(value, 3) for key, value in rows[name][-1].items()})
    proxy.terminate()
    report = (await proxy.stdout.read()).decode().strip()
    print(report)
    status = await proxy.wait()
    server.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    events = arguments.rounds * arguments.streams * arguments.turns * arguments.events
    result = {
        "streams": arguments.streams,
        "events": arguments.events,
        "turns": arguments.turns,
        "in_step": arguments.in_step,
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
        rows_before = json.loads(arguments.out.read_text("utf-8"))["watch"] if arguments.out.is_file() else []
        row = {"taken": taken, "environment": machine, "watch": [*rows_before, result]}
        arguments.out.write_text(json.dumps(row, indent=1) + "\n", "utf-8")
    return 0 if status == 0 and p99 <= arguments.most else 1


def _added(rows: dict[str, list[dict[str, float]]], key: str) -> float:
    """The median of the rounds, each against the straight ones around it: a busy machine changes by the minute."""
    straight = [row[key] for row in rows["straight"]]
    pairs = zip(rows["through"], itertools.pairwise(straight), strict=True)
    return statistics.median(through[key] - sum(around) / 2 for through, around in pairs)


if __name__ == "__main__":
    factory = None if uvloop is None else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        sys.exit(runner.run(main()))

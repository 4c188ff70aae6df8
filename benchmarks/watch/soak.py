"""Measure the delay that `plumbline watch` adds to an event, with many streams at once.

    python -m benchmarks.watch.soak --streams 100 --events 100 --interval 0.02 --out benchmarks/results/FILE.json

Every event carries the time at which it was written, so its delay is the time until a client has read it. Streams run
directly to the server, through a minimal relay (relay.py) and through the proxy; the difference to the direct run is
the added delay. Server and clients share one process and one event loop in all runs. Clients start one after the other
and request again when their stream has ended, so that at any time some streams begin, some end and others are judged;
delays count while all clients are active. Every byte is compared. With `--in-step` the events of all streams are
written at the same moments, as by an engine that finishes one token of each stream at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from benchmarks.environment import environment

try:
    import uvloop
except ModuleNotFoundError:
    uvloop = None

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}).encode()
SENT = re.compile(rb'"sent": ([0-9.]+)\}\n\n\r\n')


class SteadyUpstream(asyncio.Protocol):
    """Stream chat chunks at a steady pace and record what was sent on each stream."""

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
        """Prepare the events except for their times, because writing JSON would delay the clients."""
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
    """Record the received bytes and their times; parse them after the stream has ended."""

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
        """Return all bytes read."""
        return b"".join(data for _, data in self._reads)

    def delays(self) -> Iterator[tuple[float, float]]:
        """Return for each event when it was written and the seconds until its last byte was read."""
        read, now, reads = 0, 0.0, iter(self._reads)
        for match in SENT.finditer(self.wire):
            while read < match.end():
                now, data = next(reads)
                read += len(data)
            yield float(match[1]), now - float(match[1])


async def measure(
    port: int, sent: dict[str, bytes], streams: int, turns: int, seconds: float, late: float
) -> dict[str, float]:
    """Run all clients; a stream takes `seconds` and starts up to `late` seconds after its turn."""
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
    """Measure directly, through a relay and through the proxy; returns 0 if the added delay is within the limits."""
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
        lambda: SteadyUpstream(arguments.events, arguments.interval, sent), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    machine = environment()
    watch = ("-m", "plumbline_conformance.cli", "watch", "--listen", ":0")
    proxy, front = await _started(*watch, f"http://127.0.0.1:{port}")
    relay, plain = await _started(
        str(Path(__file__).with_name("relay.py")), "--upstream", f"http://127.0.0.1:{port}"
    )
    places = {"straight": port, "relay": plain, "watch": front}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in places}
    seconds = arguments.events * arguments.interval
    for _ in range(arguments.rounds):
        for name, place in places.items():
            rows[name].append(await measure(place, sent, arguments.streams, arguments.turns, seconds, late))
            print(f"{name:8}", {key: round(value, 3) for key, value in rows[name][-1].items()})
    for process in (relay, proxy):
        process.terminate()
    await relay.communicate()
    report = (await proxy.communicate())[0].decode().strip()
    print(report)
    server.close()
    added = {name: _added(rows["straight"], rows[name]) for name in ("relay", "watch")}
    for name, found in added.items():
        print(f"{name} adds", ", ".join(f"{value:.3f} {key}" for key, value in found.items()))
    if arguments.out is not None:
        before = json.loads(arguments.out.read_text("utf-8"))["watch"] if arguments.out.is_file() else []
        result = {
            "streams": arguments.streams,
            "events": arguments.events,
            "turns": arguments.turns,
            "interval_ms": 1000 * arguments.interval,
            "in_step": arguments.in_step,
            "added": added,
            "judged": report.splitlines()[-1],
            "rounds": rows,
        }
        taken = datetime.now(UTC).isoformat(timespec="seconds")
        row = {"taken": taken, "environment": machine, "watch": [*before, result]}
        arguments.out.write_text(json.dumps(row, indent=1) + "\n", "utf-8")
    return 0 if proxy.returncode == 0 and added["watch"]["p99_ms"] <= arguments.most else 1


async def _started(*command: str) -> tuple[asyncio.subprocess.Process, int]:
    """Start a process with this Python and read from its output the port that it listens on."""
    variables = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, env=variables
    )
    assert process.stdout is not None
    said = (await process.stdout.readline()).decode()
    return process, int(said.split(",")[0].rpartition(":")[2])


def _added(straight: list[dict[str, float]], through: list[dict[str, float]]) -> dict[str, float]:
    """Return the median over rounds, each compared with its own direct run, because load changes over minutes."""
    pairs = list(zip(straight, through, strict=True))
    return {
        key: statistics.median(slow[key] - fast[key] for fast, slow in pairs)
        for key in ("mean_ms", "p50_ms", "p99_ms")
    }


if __name__ == "__main__":
    factory = None if uvloop is None else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        sys.exit(runner.run(main()))

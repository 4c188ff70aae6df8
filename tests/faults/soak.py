"""Saturate a server with a mix of requests, hostile ones and random faults, and look for what it leaks.

    python tests/faults/soak.py --seconds 3600

Prints a line a minute, and at the end what was sent and what is left. Fails if memory grows by more than 1 MB a minute
after the warm-up, if it is more than 5 % above its level after ten minutes, or if a block, a request, a process, a
descriptor, a thread or a row is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

sys.path[:0] = [str(Path(__file__).parents[1])]

from faults.hostile_traffic import HostileTraffic  # noqa: E402
from faults.running import Running, running, wait_for  # noqa: E402
from support.servers.family import family  # noqa: E402

CLIENTS = 16
"""Requests at a time; the server runs four."""
_WARM_UP = 0.3
"""The part of the time in which caches fill; memory is judged afterwards."""
MOST_GROWTH = 1.0
"""MB a minute."""
_HOSTILE = 0.02
"""The part of hostile traffic."""
_SETTLED = 600.0
"""Seconds after which memory keeps its level,"""
_SETTLING = 10_000
"""but not before as many requests as a machine of two cores answers in that time: caches fill with requests."""
_MOST_ABOVE = 1.05
_WORKERS = 64
"""Descriptors and threads of processes that start with their first use; what leaks in an hour is thousands."""
_SHORTEST = 300.0
"""Seconds after the warm-up that a slope needs: steps of the allocator are larger than what leaks in less."""


class Sample(NamedTuple):
    """What the server and its processes hold at a time."""

    at: float
    megabytes: float
    descriptors: int
    threads: int
    requests: int
    """Requests that have been answered."""
    parts: dict[str, float]
    """Megabytes by kind of process: the server, its engine, workers."""


class Soak:
    """The clients, the faults, and what they have seen.

    Args:
        server: the server.
        database: the file of its store.
        seed: of the choices.
    """

    def __init__(self, server: Running, database: Path, seed: int) -> None:
        self.server = server
        self.sent: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self._database = database
        self._random = random.Random(seed)
        self._hostile = HostileTraffic(server.url, server.port, seed)
        self._client = httpx2.AsyncClient(
            base_url=server.url, timeout=120, limits=httpx2.Limits(max_connections=None)
        )

    async def run(self, seconds: float) -> None:
        """Send requests and cause faults for so long, then let the server become idle."""
        end = time.monotonic() + seconds
        working = [asyncio.ensure_future(self._send(end)) for _ in range(CLIENTS)]
        others = (self._break, self._sample, self._hostile.each_once)
        working += [asyncio.ensure_future(each(end)) for each in others]
        await asyncio.gather(*working)
        await self._client.aclose()

    async def _send(self, end: float) -> None:
        acts = [self._chat, self._stored, self._conversation, self._background, self._message]
        acts += [self._constrained, self._leaving, self._wrong]
        while time.monotonic() < end:
            if self._random.random() < _HOSTILE:
                self.sent[f"hostile {await self._hostile.act()}"] += 1
                continue
            act = self._random.choice(acts)
            with contextlib.suppress(
                httpx2.TransportError
            ):  # Its connection was reset, or the server was stopped.
                status = await act()
                assert status < 500 or status == 503, (act.__name__, status)
                self.sent[f"{act.__name__[1:]} {status}"] += 1

    def _body(self, **fields: Any) -> dict[str, Any]:
        words = " ".join(self._random.choices(["tell", "me", "of", "a", "red", "cat", "and", "stars"], k=12))
        length = self._random.choice([1, 8, 40, 120])
        return {"model": "pocket", "input": words, "max_output_tokens": max(16, length), **fields}

    def _chat_body(self, **fields: Any) -> dict[str, Any]:
        body = self._body()
        messages = [{"role": "user", "content": body["input"]}]
        return {"model": "pocket", "messages": messages, "max_tokens": body["max_output_tokens"], **fields}

    async def _post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        return await self._client.post(path, json=body)

    async def _chat(self) -> int:
        return (await self._post("/v1/chat/completions", self._chat_body(stream=True))).status_code

    async def _message(self) -> int:
        return (await self._post("/v1/messages", self._chat_body(stream=True))).status_code

    async def _constrained(self) -> int:
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
        }
        schema["additionalProperties"] = False
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
        return (await self._post("/v1/chat/completions", self._chat_body(response_format=form))).status_code

    async def _wrong(self) -> int:
        return (await self._post("/v1/chat/completions", self._chat_body(temperature="hot"))).status_code

    async def _leaving(self) -> int:
        """Read some of a stream, slowly, and leave."""
        body = self._chat_body(stream=True, ignore_eos=True, max_tokens=400)
        async with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
            count = self._random.randrange(20)
            async for _ in answer.aiter_lines():
                await asyncio.sleep(0.005)
                count -= 1
                if count < 0:
                    break
        return answer.status_code

    async def _stored(self) -> int:
        made = await self._post("/v1/responses", self._body())
        if made.status_code == 200:
            name = made.json()["id"]
            further = await self._post("/v1/responses", self._body(previous_response_id=name, stream=True))
            names = {name}
            if further.status_code == 200:
                names |= set(_ids(further.text))
            await asyncio.gather(*(self._delete(f"/v1/responses/{each}") for each in names))
        return made.status_code

    async def _conversation(self) -> int:
        made = await self._post("/v1/conversations", {})
        if made.status_code != 200:
            return made.status_code
        name = made.json()["id"]
        try:
            answer = await self._post("/v1/responses", self._body(conversation=name))
            if answer.status_code == 200:
                await self._delete(f"/v1/responses/{answer.json()['id']}")
        finally:  # Also after a request that was too slow for its client.
            await self._delete(f"/v1/conversations/{name}")
        return answer.status_code

    async def _background(self) -> int:
        made = await self._post("/v1/responses", self._body(background=True))
        if made.status_code == 200:
            path = f"/v1/responses/{made.json()['id']}"
            if self._random.random() < 0.5:
                await self._client.post(f"{path}/cancel")
            while (found := await self._client.get(path)).status_code == 200:
                if found.json()["status"] not in ("queued", "in_progress"):
                    break
                await asyncio.sleep(0.05)
            await self._delete(path)
        return made.status_code

    async def _delete(self, path: str) -> None:
        """Delete, again while the store is locked."""
        while (await self._client.delete(path)).status_code == 503:
            await asyncio.sleep(0.1)

    # Faults

    async def _break(self, end: float) -> None:
        faults = [self._lock, self._stop, self._reset]
        while time.monotonic() < end - 5:
            await asyncio.sleep(self._random.uniform(1, 5))
            fault = self._random.choice(faults)
            await fault()
            self.faults[fault.__name__[1:]] += 1

    async def _lock(self) -> None:
        """Another process holds the lock of the database."""
        connection = sqlite3.connect(self._database, isolation_level=None, timeout=30)
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(self._random.uniform(0.1, 1.5))
        connection.close()

    async def _stop(self) -> None:
        self.server.signal(signal.SIGSTOP)
        await asyncio.sleep(self._random.uniform(0.1, 1.0))
        self.server.signal(signal.SIGCONT)

    async def _reset(self) -> None:
        """Clients break off in the middle of what they send or read."""
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
            body = b'{"model": "pocket", "messages": [{"role": "user", "content": "hi"}], "stream": true}'
            head = (
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            )
            data = head + b"content-length: %d\r\n\r\n" % len(body) + body
            writer.write(data[: self._random.randrange(len(data) + 1)])
            await asyncio.sleep(0.01)
            writer.transport.abort()

    # What the server holds

    async def _sample(self, end: float) -> None:
        began = time.monotonic()
        while time.monotonic() < end:
            self.samples.append(self.held())
            if len(self.samples) % 60 == 0:
                sample = self.samples[-1]
                print(
                    f"{sample.at - began:6.0f} s  {sample.megabytes:7.1f} MB  {sample.descriptors} descriptors  "
                    f"{sum(self.sent.values())} requests  {self.faults.total()} faults  "
                    + "  ".join(f"{kind} {size:.0f}" for kind, size in sorted(sample.parts.items())),
                    flush=True,
                )
            await asyncio.sleep(1)

    def held(self) -> Sample:
        """Return what the processes hold now."""
        descriptors = threads = 0
        parts: Counter[str] = Counter()
        for process in family(self.server.process.pid):
            folder = Path(f"/proc/{process}")
            with contextlib.suppress(OSError, ValueError):  # It has just ended.
                # Workers share most of their memory with the process that forked them; files are shared with others.
                shares = (folder / "smaps_rollup").read_text().splitlines()
                memory = sum(int(line.split()[1]) for line in shares if line.startswith("Pss_Anon:"))
                parts[_kind((folder / "cmdline").read_bytes())] += memory
                fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
                descriptors += len(list((folder / "fd").iterdir()))
                threads += int(fields["Threads"])
        megabytes = {kind: size / 1024 for kind, size in parts.items()}
        answered = sum(self.sent.values())
        return Sample(time.monotonic(), sum(megabytes.values()), descriptors, threads, answered, megabytes)

    def level(self, since: float, until: float) -> float:
        """Return the median of memory between two times after the beginning, in MB."""
        began = self.samples[0].at
        found = sorted(each.megabytes for each in self.samples if since <= each.at - began <= until)
        return found[len(found) // 2]

    def settled(self) -> float:
        """Return the seconds after the beginning at which memory has to keep its level."""
        began = self.samples[0].at
        return max(_SETTLED, next((s.at - began for s in self.samples if s.requests >= _SETTLING), math.inf))

    def growth(self) -> float:
        """Return the slope of memory after the warm-up, in MB a minute (Theil and Sen's median of slopes)."""
        kept = self.samples[int(len(self.samples) * _WARM_UP) :]
        kept = kept[:: max(1, len(kept) // 300)]
        slopes = [
            (later.megabytes - sooner.megabytes) / (later.at - sooner.at)
            for index, sooner in enumerate(kept)
            for later in kept[index + 1 :]
        ]
        return sorted(slopes)[len(slopes) // 2] * 60 if slopes else 0.0


def _kind(command: bytes) -> str:
    if b"workers" in command or b"forkserver" in command:
        return "workers"
    return "engine" if b"engine_process" in command else "server"


def _ids(stream: str) -> list[str]:
    """Return the ids of the responses that a stream creates."""
    found = []
    for line in stream.splitlines():
        if line.startswith("data: {") and '"response.created"' in line:
            start = line.index('"resp_') + 1
            found.append(line[start : line.index('"', start)])
    return found


def rows(database: Path) -> dict[str, int]:
    """Return how many rows the tables have that keep what clients store."""
    connection = sqlite3.connect(database, timeout=30)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    kept = [name for name in names if name not in ("alembic_version", "secrets")]
    found = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in kept}
    connection.close()
    return {name: count for name, count in found.items() if count}


def soak(folder: Path, seconds: float, seed: int) -> None:
    """Run a server and saturate it.

    Raises:
        AssertionError: something is left behind.
    """
    database = folder / "store.db"
    options = (
        "--max-num-seqs=4",
        "--kv-cache-bytes=32MiB",
        "--max-model-len=1024",
        "--no-page",
        "--access-log",
        "--trust-request-chat-template",
    )
    with running(folder, *options) as server:
        work = Soak(server, database, seed)
        before = work.held()
        asyncio.run(work.run(seconds))
        wait_for(server.is_idle)
        wait_for(lambda: server.metric("plumbline_http_requests_open") == 1)  # This request.
        wait_for(lambda: work.held().descriptors <= before.descriptors + _WORKERS, 120)
        after, left, growth = work.held(), rows(database), work.growth()
        print(f"answers: {dict(sorted(work.sent.items()))}")
        print(f"faults: {dict(work.faults)}")
        print(
            f"memory {before.megabytes:.0f} to {after.megabytes:.0f} MB, {growth:.2f} MB a minute after the warm-up; "
            f"threads {before.threads} to {after.threads}, descriptors {before.descriptors} to {after.descriptors}"
        )
        assert "Traceback" not in server.log, server.log[server.log.index("Traceback") :][:4000]
        assert not left, f"rows are left: {left}"
        assert after.threads <= before.threads + _WORKERS, "threads are left"
        if seconds >= 2 * (since := work.settled()):
            settled, last = work.level(since, since + 120), work.level(seconds - 120, seconds)
            print(f"memory {settled:.0f} MB after {since / 60:.0f} minutes, {last:.0f} MB in the last two")
            assert last <= _MOST_ABOVE * settled, f"memory grew from {settled:.0f} to {last:.0f} MB"
        if seconds * (1 - _WARM_UP) >= _SHORTEST:
            assert growth <= MOST_GROWTH, f"memory grows by {growth:.2f} MB a minute"
        wanted = {"chat", "message", "constrained", "leaving", "stored", "conversation", "background"}
        assert wanted <= {name.removesuffix(" 200") for name in work.sent}, (
            "some kind of request never succeeded"
        )


def main(arguments: list[str]) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="plumbline-soak-") as folder:
        soak(Path(folder), options.seconds, options.seed)


if __name__ == "__main__":
    main(sys.argv[1:])

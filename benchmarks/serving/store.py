"""Measure the cost of storing a response, and of reading one among a million.

Requests with `store: false` and stored ones alternate on one server with a scripted engine, so the difference is the
cost of the store. A plain commit of as many bytes with Python's sqlite3, in the same run, shows what the disk costs.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.serving.processes import free_port, started
from plumbline.server.store.open import open_store
from plumbline.server.store.sql.sweep import Retention

__all__ = ["measure"]

CONCURRENCY = 8
_REQUESTS = 50
"""Requests of each client in one block."""
_BLOCKS = 10


def measure(*, records: int = 1_000_000) -> list[dict[str, Any]]:
    """Return rows. Goals: 1 ms more for a request at concurrency 8; 5 ms for a read; 2 s for a start."""
    with tempfile.TemporaryDirectory() as folder:
        rows = _requests(Path(folder) / "paced.db", "request of 64 ms", 0.004)
        # An engine that takes no time keeps the server busy, so that each client waits for the work of all eight.
        rows += _requests(Path(folder) / "busy.db", "request at full load", 0.0)
        rows.append(_plain_commits(Path(folder) / "plain.db"))
    with tempfile.TemporaryDirectory() as folder:
        rows += asyncio.run(_reads(Path(folder) / "large.db", records))
    return rows


def _requests(path: Path, name: str, seconds: float) -> list[dict[str, Any]]:
    """Compare requests that are stored with others; the engine takes `seconds` for each of 16 tokens."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "benchmarks.serving.scripted_server",
        str(port),
        str(path),
        "16",
        str(seconds),
    ]
    times: dict[bool, list[float]] = {False: [], True: []}
    walls: dict[bool, list[float]] = {False: [], True: []}
    with started(command, port, folder=Path(__file__).parents[2]):
        _block(port, store=True)  # warms up
        for _ in range(_BLOCKS):
            for store in (False, True):
                found, wall = _block(port, store=store)
                times[store] += found
                walls[store].append(wall)
    names = {False: f"{name}, store: false", True: f"{name}, stored"}
    rows = [_row(names[store], times[store]) for store in times]
    # A client sends its requests one after the other, so a block takes the sum of their times.
    more = statistics.median(walls[True]) - statistics.median(walls[False])
    rows.append({"name": f"{name}, more for a stored one", "median_ms": more / _REQUESTS * 1e3})
    return rows


def _block(port: int, *, store: bool) -> tuple[list[float], float]:
    """Send requests of several clients side by side; return the time of each, and of all."""
    body = json.dumps({"model": "bench", "input": "Hello, how are you?", "store": store}).encode()
    times: list[float] = []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(_REQUESTS):
            began = time.perf_counter()
            connection.request("POST", "/v1/responses", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            times.append(time.perf_counter() - began)
        connection.close()

    clients = [threading.Thread(target=client) for _ in range(CONCURRENCY)]
    began = time.perf_counter()
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    return times, time.perf_counter() - began


def _plain_commits(path: Path) -> dict[str, Any]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE t (id TEXT PRIMARY KEY, body BLOB)")
    times = []
    for number in range(2_000):
        began = time.perf_counter()
        connection.execute("INSERT INTO t VALUES (?, ?)", (str(number), b"x" * 2_000))
        times.append(time.perf_counter() - began)
    connection.close()
    return _row("commit of 2,000 bytes with sqlite3", times)


async def _reads(path: Path, records: int) -> list[dict[str, Any]]:
    store = open_store(str(path), Retention(max_age=None))
    await store.start()
    await store.stop()
    _fill(path, records)
    began = time.perf_counter()
    store = open_store(str(path), Retention(max_age=None))
    await store.start()
    opened = time.perf_counter() - began
    pick = random.Random(1)
    times = []
    for _ in range(3_000):
        name = f"resp_{pick.randrange(records)}"
        began = time.perf_counter()
        assert await store.response("a", name) is not None
        times.append(time.perf_counter() - began)
    await store.stop()
    return [
        _row(f"read of one of {records:,} responses", times),
        {"name": f"start with {records:,} responses", "median_ms": opened * 1e3},
    ]


def _fill(path: Path, records: int) -> None:
    """Write responses of the size of short answers into the tables, in one transaction."""
    connection = sqlite3.connect(path)
    items = msgspec.msgpack.encode([("msg_in", b'{"type":"message","text":"%s"}' % (b"x" * 200))])
    response = b'{"output":[],"text":"%s"}' % (b"x" * 1_200)
    connection.executemany(
        "INSERT INTO responses (id, owner, thread, created_at, size, status, compacts, response, input, events) "
        "VALUES (?, 'a', ?, ?, 1700, 'completed', 0, ?, ?, ?)",
        (
            (f"resp_{number}", f"resp_{number}", 1_800_000_000 + number, response, items, b"x" * 300)
            for number in range(records)
        ),
    )
    connection.commit()
    connection.close()


def _row(name: str, times: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(times)
    return {
        "name": name,
        "median_ms": statistics.median(ordered) * 1e3,
        "p99_ms": ordered[len(ordered) * 99 // 100] * 1e3,
        "count": len(ordered),
    }

"""Laws of the pool: a call ends within its bounds, and whatever ended it leaves the pool as it was."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from plumbline.base.workers.pool import Bounds, WorkerError, WorkerPool, WorkersBusyError

BOUNDS = Bounds(cpu_seconds=0.3, seconds=1.0, memory=256 * 1024**2, result=1024**2)
DEADLY = {
    b"spin": "time",
    b"sleep": "time",
    b"native": "time",
    b"take 1000000000": "memory",
    b"abort": "memory",
    b"give 2000000": "result",
    b"segfault": "crash",
    b"exit": "crash",
    b"unknown": "crash",
}
"""Calls that end without a result, and the reason that the error names."""


@pytest.fixture(autouse=True)
def handlers_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def with_pool(work: Callable[[WorkerPool], Awaitable[None]], **options: int) -> None:
    async def run() -> None:
        pool = WorkerPool("handlers:make", b"d:", bounds=BOUNDS, **options)
        try:
            await work(pool)
        finally:
            await pool.close()

    asyncio.run(run())


def test_every_way_to_end_a_call_is_named_and_leaves_the_pool_usable() -> None:
    async def work(pool: WorkerPool) -> None:
        for payload, reason in DEADLY.items():
            with pytest.raises(WorkerError) as caught:
                await pool.call(payload, "a")
            assert (payload, caught.value.reason) == (payload, reason)
            assert await pool.call(b"echo b", "a") == b"d:b"

    with_pool(work)


def test_calls_of_any_size_come_back_as_they_went() -> None:
    async def work(pool: WorkerPool) -> None:
        for size in (0, 1, 65_535, 65_536, 1_000_000):
            assert await pool.call(b"echo " + b"x" * size, "a") == b"d:" + b"x" * size

    with_pool(work)


def test_a_cancelled_call_ends_its_worker_and_frees_the_place() -> None:
    async def work(pool: WorkerPool) -> None:
        for order in (b"sleep", b"spin"):
            waiting = asyncio.create_task(pool.call(order, "a"))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await asyncio.wait_for(pool.call(b"echo b", "a"), 0.9) == b"d:b"

    with_pool(work, processes=1)


def test_a_worker_that_has_grown_is_replaced_and_others_are_kept() -> None:
    async def work(pool: WorkerPool) -> None:
        first = await pool.call(b"pid", "a")
        assert await pool.call(b"pid", "a") == first
        assert await pool.call(b"take 100000000", "a") == b"100000000"
        assert await pool.call(b"pid", "a") != first

    with_pool(work)


def test_a_killed_template_process_is_started_again() -> None:
    async def work(pool: WorkerPool) -> None:
        await pool.start()
        assert pool._template is not None
        pool._template._process.kill()
        await asyncio.to_thread(pool._template._process.wait)
        for _ in range(100):  # Its end is seen by a task.
            if pool._template.has_ended:
                break
            await asyncio.sleep(0.01)
        assert await pool.call(b"echo b", "a") == b"d:b"

    with_pool(work)


def test_calls_beyond_the_queue_are_refused_and_half_of_it_is_for_others() -> None:
    async def work(pool: WorkerPool) -> None:
        await pool.start()
        calls = [asyncio.create_task(pool.call(b"sleep", "a")) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(WorkersBusyError):
            await pool.call(b"echo b", "a")
        other = asyncio.create_task(pool.call(b"echo b", "b"))
        for call in calls[:1]:
            call.cancel()
        assert await asyncio.wait_for(other, 5) == b"d:b"
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    with_pool(work, processes=1, waiting=4)


def test_a_factory_that_fails_is_an_error_of_the_call() -> None:
    async def run() -> None:
        pool = WorkerPool("handlers:missing", bounds=BOUNDS)
        with pytest.raises(WorkerError):
            await pool.call(b"", "a")
        await pool.close()

    asyncio.run(run())


def test_no_process_outlives_its_pool() -> None:
    children: list[int] = []

    async def work(pool: WorkerPool) -> None:
        children.append(int(await pool.call(b"pid", "a")))
        busy = asyncio.create_task(pool.call(b"spin", "b"))
        await asyncio.sleep(0.05)
        busy.cancel()

    with_pool(work)
    gc.collect()
    for process in children:
        for _ in range(500):  # The system ends workers after the process that forked them.
            if not is_running(process):
                break
            time.sleep(0.01)
        assert not is_running(process)


def is_running(process: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

"""Laws of the pool of models.

- The models that are not unloaded never take more memory than the bound.
- A leased model is never unloaded.
- Among idle models the least recently used leaves first.
- Requests for one model load it once.
- A request whose model loads gets it, or an error that names the model and the reason.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.laws import EXPLORED

from plumbline.port.engine import EngineClosedError, EngineFullError
from plumbline.server.loading.pool import ModelLoadError, ModelPool

SIZES = {"a": 1, "b": 2, "c": 3, "huge": 9}
CAPACITY = 4


class Loader:
    """Loads names as models, and records what happens."""

    def __init__(self) -> None:
        self.live: list[str] = []
        self.log: list[tuple[str, str]] = []
        self.broken: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self, name: str) -> str:
        self.log.append(("load", name))
        await self.gate.wait()
        if name in self.broken:
            raise ValueError("no weights")
        self.live.append(name)
        return name

    async def unload(self, name: str) -> None:
        self.log.append(("unload", name))
        await asyncio.sleep(0)
        self.live.remove(name)

    def pool(
        self, capacity: int = CAPACITY, max_waiting: int = 100, max_per_client: int = 0
    ) -> ModelPool[str]:
        return ModelPool(
            SIZES,
            self.load,
            self.unload,
            capacity=capacity,
            max_waiting=max_waiting,
            max_per_client=max_per_client,
        )


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loader = Loader()
        self.models = self.loader.pool()
        self.requests: list[tuple[str, asyncio.Event, asyncio.Task[None]]] = []
        self.held: dict[str, int] = dict.fromkeys(SIZES, 0)

    def settle(self) -> None:
        self.loop.run_until_complete(settle())

    async def request(self, name: str, done: asyncio.Event) -> None:
        async with self.models.lease(name) as model:
            assert model == name
            self.held[name] += 1
            try:
                await done.wait()
                assert name in self.loader.live
            finally:
                self.held[name] -= 1

    @rule(name=st.sampled_from("abc"))
    def ask(self, name: str) -> None:
        done = asyncio.Event()
        self.requests.append((name, done, self.loop.create_task(self.request(name, done))))
        self.settle()

    @rule(name=st.sampled_from("abc"))
    def ask_without_settling(self, name: str) -> None:
        done = asyncio.Event()
        self.requests.append((name, done, self.loop.create_task(self.request(name, done))))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), cancel=st.booleans())
    def end(self, data: st.DataObject, cancel: bool) -> None:
        _, done, task = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        if cancel:
            task.cancel()
        done.set()
        self.settle()

    @rule(name=st.sampled_from("abc"))
    def unload_by_operator(self, name: str) -> None:
        task = self.loop.create_task(self.models.unload(name))
        self.settle()
        assert task.done() or self.held[name] or not self.loader.gate.is_set()
        task.cancel()
        self.settle()

    @rule()
    def toggle_gate(self) -> None:
        if self.loader.gate.is_set():
            self.loader.gate.clear()
        else:
            self.loader.gate.set()
        self.settle()

    @invariant()
    def within_the_bound(self) -> None:
        statuses = self.models.statuses()
        assert sum(SIZES[name] for name, status in statuses.items() if status != "unloaded") <= CAPACITY
        assert len(set(self.loader.live)) == len(self.loader.live), "loaded twice"

    @invariant()
    def leased_models_are_live(self) -> None:
        assert all(name in self.loader.live for name, count in self.held.items() if count)

    def teardown(self) -> None:
        self.loader.gate.set()
        for _, done, _ in self.requests:
            done.set()
        for _ in range(10):
            self.settle()
        assert all(task.done() for _, _, task in self.requests), "a request waits for ever"
        assert not any(self.held.values())
        self.loop.run_until_complete(self.models.close())
        assert self.loader.live == []
        self.loop.close()


PoolMachine.TestCase.settings = settings(max_examples=EXPLORED or 25, deadline=None)
TestPool = PoolMachine.TestCase


def test_the_least_recently_used_idle_model_leaves() -> None:
    async def run() -> None:
        loader = Loader()
        pool = loader.pool()
        await pool.load("a")
        await pool.load("b")
        await pool.load("a")
        await pool.load("c")
        assert pool.statuses() == {"a": "loaded", "b": "unloaded", "c": "loaded", "huge": "unloaded"}

    asyncio.run(run())


def test_requests_for_one_model_load_it_once() -> None:
    async def run() -> None:
        loader = Loader()
        pool = loader.pool()
        await asyncio.gather(*(pool.load("a") for _ in range(10)))
        assert loader.log == [("load", "a")]

    asyncio.run(run())


def test_a_failed_load_is_told_to_all_who_wait_and_harms_no_other_model() -> None:
    async def run() -> None:
        loader = Loader()
        loader.broken = {"b"}
        pool = loader.pool()
        results = await asyncio.gather(pool.load("b"), pool.load("b"), pool.load("a"), return_exceptions=True)
        assert [str(error) for error in results[:2]] == ["The model 'b' could not be loaded: no weights"] * 2
        assert results[2] is None
        loader.broken = set()
        await pool.load("b")

    asyncio.run(run())


def test_a_model_beyond_the_bound_is_refused() -> None:
    async def run() -> None:
        with pytest.raises(
            ModelLoadError, match="'huge' could not be loaded: it needs 9 bytes, and all models may have 4"
        ):
            await Loader().pool().load("huge")

    asyncio.run(run())


def test_a_busy_model_leaves_after_its_requests() -> None:
    async def run() -> None:
        loader = Loader()
        pool = loader.pool(capacity=3)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(pool.lease("b"))
            loading = asyncio.ensure_future(pool.load("c"))
            await settle()
            later = asyncio.ensure_future(pool.load("b"))
            await settle()
            assert loader.live == ["b"]
            assert not loading.done()
        await asyncio.gather(loading, later)
        assert loader.log == [("load", "b"), ("unload", "b"), ("load", "c"), ("unload", "c"), ("load", "b")]

    asyncio.run(run())


def test_too_many_who_wait_are_refused() -> None:
    async def run() -> None:
        loader = Loader()
        loader.gate.clear()
        pool = loader.pool(max_waiting=1)
        first = asyncio.ensure_future(pool.load("a"))
        await settle()
        with pytest.raises(EngineFullError):
            await pool.load("a")
        loader.gate.set()
        await first

    asyncio.run(run())


def test_one_client_leaves_room_for_others_to_wait() -> None:
    async def run() -> None:
        loader = Loader()
        loader.gate.clear()
        pool = loader.pool(max_per_client=2)
        waiting = [asyncio.ensure_future(pool.acquire(name, "x")) for name in "ab"]
        await settle()
        with pytest.raises(EngineFullError, match="2 of your requests"):
            await pool.acquire("c", "x")
        waiting.append(asyncio.ensure_future(pool.acquire("c", "y")))
        await settle()
        loader.gate.set()
        for request in waiting:
            (await request).release()
        (await pool.acquire("a", "x")).release()

    asyncio.run(run())


def test_a_shared_lease_keeps_its_model_after_the_first_one() -> None:
    async def run() -> None:
        loader = Loader()
        pool = loader.pool()
        first = await pool.acquire("a")
        second = first.share()
        first.release()
        first.release()
        unloading = asyncio.ensure_future(pool.unload("a"))
        await settle()
        assert loader.live == ["a"]
        second.release()
        await unloading
        assert loader.live == []

    asyncio.run(run())


def test_a_model_that_does_not_unload_properly_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async def unload(name: str) -> None:
            raise ValueError("stuck")

        pool = ModelPool(SIZES, Loader().load, unload, capacity=CAPACITY, max_waiting=1)
        await pool.load("b")
        await pool.load("c")
        assert pool.statuses()["b"] == "unloaded"
        assert pool.loaded == ["c"]

    asyncio.run(run())
    assert "the model 'b' was not unloaded properly" in caplog.text


def test_close_refuses_those_who_wait_and_cancels_the_load() -> None:
    async def run() -> None:
        loader = Loader()
        loader.gate.clear()
        pool = loader.pool()
        first = asyncio.ensure_future(pool.load("a"))
        await settle()
        await pool.close()
        with pytest.raises(EngineClosedError):
            await first
        with pytest.raises(EngineClosedError):
            await pool.load("a")
        assert loader.live == []
        loader.gate.set()
        pool.open()
        await pool.load("a")
        assert loader.live == ["a"]

    asyncio.run(run())


def test_a_client_that_leaves_as_its_model_arrives_keeps_no_lease() -> None:
    async def run() -> None:
        loader = Loader()
        pool = loader.pool()
        request = asyncio.ensure_future(pool.load("a"))
        while pool.statuses()["a"] != "loaded":
            await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await asyncio.wait_for(pool.unload("a"), 5)
        assert loader.live == []

    asyncio.run(run())


def test_a_load_that_no_client_waits_for_does_not_begin() -> None:
    async def run() -> None:
        loader = Loader()
        pool = loader.pool(capacity=3)
        async with pool.lease("b"):
            loading = asyncio.ensure_future(pool.load("c"))
            await settle()
            loading.cancel()
            await settle()
        await settle()
        assert loader.log == [("load", "b"), ("unload", "b")]

    asyncio.run(run())

"""Laws of an engine whose thread dies, whose core breaks, or whose step does not end.

- Requests in flight end with an error, requests afterwards get the tokens that they always get.
- A step that ends after all changes nothing.
- An engine that cannot go on reports itself dead, and refuses with a hint when to try again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, cast

import pytest
import torch

from plumbline.engines.native import core
from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.engine import NativeEngine
from plumbline.engines.native.models.transformer import Transformer
from plumbline.engines.native.runner import ModelRunner
from plumbline.port.engine import EngineClosedError, TokenChunk

from .test_threaded import collect, request, run, running, until


def tokens(chunks: list[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def broken(*_: Any) -> None:
    raise RuntimeError("out of luck")


async def in_flight(
    engine: NativeEngine, count: int, patch: pytest.MonkeyPatch
) -> list[asyncio.Task[list[TokenChunk]]]:
    """Return requests that have begun to run; a step takes at least 10 ms, so none ends soon."""
    forward = ModelRunner.forward

    def slow(runner: ModelRunner, inputs: Any) -> None:
        time.sleep(0.01)
        forward(runner, inputs)

    patch.setattr(ModelRunner, "forward", slow)
    tasks = [
        asyncio.ensure_future(collect(engine, request(f"in flight {index}", max_tokens=200)))
        for index in range(count)
    ]
    await until(lambda: engine.stats().num_running == count)
    return tasks


async def test_a_thread_that_dies_is_replaced(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(model) as engine:
        whole = tokens(await collect(engine, request("whole")))
        with monkeypatch.context() as patch:
            first, *others = await in_flight(engine, 3, patch)
            patch.setattr(cast(Any, engine._keeper.core).scheduler, "check_integrity", broken)
            engine.abort("in flight 0")
            for task in others:
                assert (await task)[-1].error == "The engine has failed."
        await until(lambda: engine.stats().num_restarts == 1)
        assert engine.stats().alive
        assert tokens(await collect(engine, request("afterwards"))) == whole
        first.cancel()


async def test_a_core_that_breaks_is_replaced_and_one_that_cannot_work_at_all_is_dead(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(model) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(engine._keeper.core._runner, "forward", broken)  # type: ignore[attr-defined]
            for index in range(5):
                assert (await collect(engine, request(str(index))))[-1].finish_reason == "error"
        await until(lambda: engine.stats().num_restarts == 1)
        assert engine.stats().num_failed_steps == 5
        assert (await collect(engine, request("well"))).pop().finish_reason == "length"

        monkeypatch.setattr(ModelRunner, "forward", broken)
        count = 0
        while engine.stats().alive:
            try:
                assert (await collect(engine, request(f"ill {count}")))[-1].finish_reason == "error"
            except EngineClosedError:
                await asyncio.sleep(0.001)
            count += 1
        with pytest.raises(EngineClosedError, match="has failed") as refused:
            await collect(engine, request("in vain"))
        assert refused.value.retry_after == 10
        assert engine.stats().num_restarts == 1 + 4


@pytest.mark.parametrize("requests", [1, 3])
async def test_a_lost_device_ends_the_engine_at_the_first_step_that_fails(
    requests: int, model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an illegal access every call of CUDA fails: no request is at fault, and only a new process helps."""

    def illegal(*_: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")

    async with running(model) as engine:
        with monkeypatch.context() as patch:
            tasks = await in_flight(engine, requests, patch)
            patch.setattr(core, "device_works", lambda _: False)
            patch.setattr(ModelRunner, "forward", illegal)
            patch.setattr(ModelRunner, "release", illegal)  # Nothing of the device is touched again.
            for task in tasks:
                assert (await task)[-1].finish_reason == "error"
        stats = engine.stats()
        assert (stats.alive, stats.num_failed_steps, stats.num_restarts) == (False, 1, 0)
        assert "illegal memory access" in stats.failure
        assert "Compile" not in stats.failure
        with pytest.raises(EngineClosedError, match="has failed"):
            await collect(engine, request("in vain"))


async def test_a_gpu_has_no_room_for_a_second_cache_beside_that_of_a_step_that_hangs(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(model) as engine:
        assert engine._renew(abandoned=True) is not None
        with monkeypatch.context() as on_gpu:
            on_gpu.setattr(ModelRunner, "device", property(lambda _: torch.device("cuda")))
            assert engine._renew(abandoned=True) is None
        assert engine._renew(abandoned=False) is not None


class Hanging:
    """A forward pass that waits for the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on = threading.Event()
        self.hangs = True
        self.num_hanging = 0
        forward = ModelRunner.forward

        def slow(runner: ModelRunner, inputs: Any) -> None:
            if self.hangs:
                self.num_hanging += 1
                self.goes_on.wait(30)
                self.num_hanging -= 1
            forward(runner, inputs)

        monkeypatch.setattr(ModelRunner, "forward", slow)


async def test_a_step_that_hangs_is_left_alone(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(model, stuck_after=0.1) as engine:
        whole = tokens(await collect(engine, request("whole")))
        hanging = Hanging(monkeypatch)
        try:
            last = (await collect(engine, request("x")))[-1]
            assert last.error == "The engine has failed."
            hanging.hangs = False
            await until(lambda: engine.stats().num_restarts == 1)
            assert hanging.num_hanging == 1
            assert tokens(await collect(engine, request("beside it"))) == whole
        finally:
            hanging.goes_on.set()
        await until(lambda: not engine.has_hanging_thread)
        assert tokens(await collect(engine, request("after it"))) == whole
        assert engine.stats().kv_cache_usage == 0.0
        assert engine.stats().alive


async def test_a_second_step_that_hangs_is_the_end(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(model, stuck_after=0.05) as engine:
        hanging = Hanging(monkeypatch)
        try:
            assert (await collect(engine, request("x")))[-1].finish_reason == "error"
            await until(lambda: engine.stats().num_restarts == 1)
            assert (await collect(engine, request("y")))[-1].finish_reason == "error"
            assert not engine.stats().alive
        finally:
            hanging.goes_on.set()


async def test_requests_that_come_while_it_starts_again_are_told_to_try_again(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plumbline.engines.threaded.core_thread._FATAL_FAILURES", 1)
    ready, renewed = threading.Event(), ModelRunner.renewed

    def slowly(runner: ModelRunner, **options: Any) -> ModelRunner:
        ready.wait(30)
        return renewed(runner, **options)

    async with running(model) as engine:
        monkeypatch.setattr(ModelRunner, "renewed", slowly)
        with monkeypatch.context() as patch:
            patch.setattr(ModelRunner, "forward", broken)
            assert (await collect(engine, request("x")))[-1].finish_reason == "error"
        try:
            await until(lambda: engine._keeper.restarting is not None)
            with pytest.raises(EngineClosedError, match="again") as refused:
                await collect(engine, request("y"))
            assert refused.value.retry_after == 1
            assert engine.stats().alive
        finally:
            ready.set()
        await until(lambda: engine.stats().num_restarts == 1)
        assert (await collect(engine, request("z")))[-1].finish_reason == "length"


async def test_an_engine_that_cannot_start_again_is_dead(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For instance because the memory for a second cache is not there."""
    monkeypatch.setattr("plumbline.engines.threaded.core_thread._FATAL_FAILURES", 1)
    async with running(model) as engine:
        monkeypatch.setattr(EngineCore, "_step", broken)
        monkeypatch.setattr(ModelRunner, "renewed", broken)
        assert (await collect(engine, request("x")))[-1].finish_reason == "error"
        await until(lambda: not engine.stats().alive)


async def test_stopping_does_not_wait_for_a_step_that_hangs(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plumbline.engines.threaded.core_keeper._LAST_STEP", 0.05)
    hanging = Hanging(monkeypatch)
    try:
        async with running(model) as engine:
            task = asyncio.ensure_future(collect(engine, request("x")))
            await until(lambda: hanging.num_hanging == 1)
            await engine.stop()
            assert (await task)[-1].finish_reason == "abort"
    finally:
        hanging.goes_on.set()


def test_an_hour_in_which_the_process_was_stopped_is_no_hang(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock jumps within one step; the watchdog has looked twice by then."""

    async def work() -> None:
        async with running(model, stuck_after=1.0) as engine:
            hanging = Hanging(monkeypatch)
            task = asyncio.ensure_future(collect(engine, request("x", max_tokens=3)))
            await until(lambda: hanging.num_hanging == 1)
            thread = engine._keeper.thread
            assert thread is not None
            assert thread.busy_since is not None
            thread.busy_since -= 3600.0
            assert engine.stats().seconds_since_step >= 3600.0
            hanging.hangs = False
            await asyncio.sleep(0.7)
            hanging.goes_on.set()
            assert (await task)[-1].finish_reason == "length"
            assert engine.stats().num_restarts == 0

    run(work())

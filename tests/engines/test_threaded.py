"""Laws of the engine thread and its port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import torch
from support.models import hold_steps

from plumbline.engines.native.engine import NativeEngine
from plumbline.engines.native.models.transformer import Transformer
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.threaded import threaded_engine as threaded
from plumbline.port.engine import (
    EngineClosedError,
    EngineFullError,
    GenerateRequest,
    RefusedRequestError,
    SamplingParams,
    TokenChunk,
)

from .conftest import EOS, config


@asynccontextmanager
async def running(
    model: Transformer, stuck_after: float = 120.0, **changes: Any
) -> AsyncIterator[NativeEngine]:
    """A started engine on the tiny model."""
    settings = config(**changes)
    runner = ModelRunner(
        model, num_blocks=settings.num_blocks, block_size=settings.block_size, device=torch.device("cpu")
    )
    engine = NativeEngine(settings, runner, model="tiny", eos_token_ids=EOS, stuck_after=stuck_after)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def request(name: str, prompt: list[int] | None = None, **sampling: Any) -> GenerateRequest:
    """A greedy request."""
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, **sampling})
    return GenerateRequest(request_id=name, prompt_token_ids=prompt or [2, 3, 4], sampling=params)


async def collect(engine: NativeEngine, wanted: GenerateRequest) -> list[TokenChunk]:
    """All chunks of a request."""
    return [chunk async for chunk in engine.generate(wanted)]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the engine thread has reacted."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def run(work: Awaitable[None]) -> None:
    """Run a test's coroutine; nothing here may take long."""
    asyncio.run(asyncio.wait_for(work, 30))


def test_concurrent_requests_do_not_mix_tokens(model: Transformer) -> None:
    """HTTP-14: many at once give what each gives alone."""

    async def work() -> None:
        async with running(model) as engine:
            prompts = [[2 + i, 3 + i % 7, 5] for i in range(30)]
            alone = [await collect(engine, request(f"a{i}", p)) for i, p in enumerate(prompts)]
            together = await asyncio.gather(
                *(collect(engine, request(f"b{i}", p)) for i, p in enumerate(prompts))
            )
            for left, right in zip(alone, together, strict=True):
                assert [c.token_ids for c in left] == [c.token_ids for c in right]
                assert right[-1].finish_reason == "length"
                assert all(chunk.finish_reason is None for chunk in right[:-1])

    run(work())


def test_closing_the_stream_frees_its_blocks(model: Transformer) -> None:
    async def work() -> None:
        async with running(model) as engine:
            stream = engine.generate(request("x", max_tokens=200))
            await anext(stream)
            assert engine.stats().num_running == 1
            await stream.aclose()
            await until(lambda: engine.stats().num_running == 0)
            assert engine.stats().kv_cache_usage == 0.0

    run(work())


def test_cancelling_the_reader_frees_its_blocks(model: Transformer) -> None:
    async def work() -> None:
        async with running(model) as engine:
            task = asyncio.ensure_future(collect(engine, request("x", max_tokens=240)))
            await until(lambda: engine.stats().num_running == 1)
            task.cancel()
            await until(lambda: engine.stats().num_running == 0)
            assert engine.stats().kv_cache_usage == 0.0

    run(work())


def test_an_abort_from_outside_ends_the_stream(model: Transformer) -> None:
    async def work() -> None:
        async with running(model) as engine:
            task = asyncio.ensure_future(collect(engine, request("x", max_tokens=240)))
            await until(lambda: engine.stats().num_running == 1)
            engine.abort("x")
            assert (await task)[-1].finish_reason == "abort"

    run(work())


def test_a_full_engine_refuses_one_more(model: Transformer) -> None:
    async def work() -> None:
        async with running(model, max_num_seqs=1, max_num_waiting=1, max_num_batched_tokens=64) as engine:
            tasks = [
                asyncio.ensure_future(collect(engine, request(str(i), max_tokens=100))) for i in range(2)
            ]
            await until(lambda: len(engine._streams) == 2)
            with pytest.raises(EngineFullError):
                await collect(engine, request("one more"))
            await asyncio.gather(*tasks)
            assert (await collect(engine, request("now"))).pop().finish_reason == "length"

    run(work())


def test_who_waits_longer_than_any_may_is_refused_unless_it_was_begun(model: Transformer) -> None:
    """What runs is not disturbed; a later choice of an answer waits, because the first one may have begun."""

    async def work() -> None:
        async with running(model, max_num_seqs=1) as engine:
            alone = await collect(engine, request("alone"))
            engine.admission.max_queue_seconds = 0.01
            let = hold_steps(engine)
            slow = asyncio.create_task(collect(engine, request("slow")))
            await until(lambda: engine.stats().num_running == 1)
            choice = asyncio.create_task(collect(engine, msgspec.structs.replace(request("z"), patient=True)))
            late = asyncio.create_task(collect(engine, request("late")))
            await asyncio.sleep(0.1)
            let.set()
            with pytest.raises(EngineFullError, match=r"has waited 0\.01 s") as refused:
                await late
            assert refused.value.retry_after >= 1
            assert [chunk.token_ids for chunk in await slow] == [chunk.token_ids for chunk in alone]
            assert (await choice).pop().finish_reason == "length"
            assert not engine.admission.ids

    run(work())


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (request("x", [96]), "token ids"),
        (request("x", [-1]), "token ids"),
        (request("x", [2] * 256), "limit"),
        (request("x", logit_bias={96: 1.0}), "logit_bias"),
        (request("x", allowed_token_ids=frozenset()), "allowed_token_ids"),
        (request("x", allowed_token_ids=EOS, min_tokens=1), "allowed_token_ids"),
        (GenerateRequest(request_id="x", prompt_token_ids=[], sampling=SamplingParams()), "no tokens"),
    ],
)
def test_what_would_break_a_step_is_refused_before_it(
    model: Transformer, wanted: GenerateRequest, text: str
) -> None:
    async def work() -> None:
        async with running(model) as engine:
            with pytest.raises(RefusedRequestError, match=text):
                await collect(engine, wanted)
            assert (await collect(engine, request("fine"))).pop().finish_reason == "length"

    run(work())


def test_one_failed_step_fails_its_requests_only(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with running(model) as engine:
            core: Any = engine._keeper.core
            runner = core._runner

            def broken(*_: Any) -> None:
                raise RuntimeError("out of luck")

            with monkeypatch.context() as patch:
                patch.setattr(runner, "forward", broken)
                last = (await collect(engine, request("x")))[-1]
            assert last.finish_reason == "error"
            assert last.error is not None
            assert "luck" not in last.error
            assert (await collect(engine, request("y"))).pop().finish_reason == "length"
            assert engine.stats().alive

    run(work())


def test_stopping_ends_what_still_runs(model: Transformer) -> None:
    async def work() -> None:
        async with running(model) as engine:
            task = asyncio.ensure_future(collect(engine, request("x", max_tokens=240)))
            await until(lambda: engine.stats().num_running == 1)
            await engine.stop()
            assert (await task)[-1].finish_reason in ("abort", "error")
            with pytest.raises(EngineClosedError):
                await collect(engine, request("y"))
            await engine.stop()

    run(work())


def test_an_idle_engine_is_not_stuck(model: Transformer) -> None:
    async def work() -> None:
        async with running(model) as engine:
            await collect(engine, request("x"))
            await until(lambda: engine.stats().seconds_since_step == 0.0)
            assert engine.stats().num_steps > 0

    run(work())


def test_a_request_that_nobody_reads_is_paused_and_goes_on_with_the_same_tokens(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that lags, and lags again, costs no steps and holds no blocks, and its answer is that of a fast one."""
    monkeypatch.setattr(threaded, "_UNREAD_PAUSES", 8)
    monkeypatch.setattr(threaded, "_UNREAD_RESUMES", 2)

    async def work() -> None:
        async with running(model) as engine:
            wanted = [chunk.token_ids for chunk in await collect(engine, request("a", max_tokens=240))]
            stream = engine.generate(request("b", max_tokens=240))
            found = [(await anext(stream)).token_ids]
            await until(lambda: engine.stats().num_running == 0)
            stopped = engine.stats().generation_tokens
            assert stopped < 240 + 200
            assert engine.stats().kv_cache_usage == 0.0
            other = await collect(engine, request("c", max_tokens=240))
            assert [chunk.token_ids for chunk in other] == wanted
            assert engine.stats().generation_tokens == stopped + 240
            while engine.stats().num_running == 0:
                found.append((await anext(stream)).token_ids)
            await until(lambda: engine.stats().num_running == 0)
            assert engine.stats().generation_tokens < 3 * 240, "it is paused a second time"
            found += [chunk.token_ids async for chunk in stream]
            assert found == wanted

    run(work())


def test_a_paused_request_can_be_aborted(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threaded, "_UNREAD_PAUSES", 8)

    async def work() -> None:
        async with running(model) as engine:
            stream = engine.generate(request("x", max_tokens=200))
            await anext(stream)
            await until(lambda: engine.stats().num_running == 0)
            engine.abort("x")
            rest = [chunk async for chunk in stream]
            assert rest[-1].finish_reason == "abort"
            assert engine.stats().kv_cache_usage == 0.0
            assert len(await collect(engine, request("x", max_tokens=5))) == 5

    run(work())

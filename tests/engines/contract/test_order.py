"""Aborts, the order of requests and the bounds of an engine obey the port."""

from __future__ import annotations

import asyncio

import pytest
from support.weights.engines import NUM_WAITING, Harness, Reference

from plumbline.port.engine import EngineFullError

from .conftest import PROMPTS


def test_an_abort_at_any_moment_leaves_nothing(engine: Harness, reference: Reference) -> None:
    async def scenario() -> None:
        for after in range(6):
            request = engine.request(PROMPTS[after], max_tokens=None, ignore_eos=True)
            other = asyncio.ensure_future(
                engine.collect(engine.request(PROMPTS[7], max_tokens=20, ignore_eos=True))
            )
            stream = engine.stream(request)
            for _ in range(after):
                await anext(stream)
            if after == 0:
                first = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                engine.engine.abort(request.request_id)
                chunk = await first
                rest = [chunk] + [chunk async for chunk in stream]
            else:
                engine.engine.abort(request.request_id)
                rest = [chunk async for chunk in stream]
            assert rest[-1].finish_reason == "abort"
            assert (await other).token_ids == undisturbed
            await engine.idle()

    undisturbed = reference.greedy(PROMPTS[7], 20)
    engine.run(scenario())
    engine.engine.abort("unknown")


def test_closing_and_cancelling_a_stream_end_its_request(engine: Harness) -> None:
    async def scenario() -> None:
        stream = engine.stream(engine.request(PROMPTS[0], max_tokens=None, ignore_eos=True))
        await anext(stream)
        await stream.aclose()
        await engine.idle()
        task = asyncio.ensure_future(
            engine.collect(engine.request(PROMPTS[0], max_tokens=None, ignore_eos=True))
        )
        while not engine.stats().num_running:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.idle()

    engine.run(scenario())


def test_of_waiting_requests_the_lowest_priority_number_runs_first(engine: Harness) -> None:
    """All places are taken; of those that wait, the urgent ones begin before the others."""
    begun: list[int] = []

    async def one(priority: int) -> None:
        request = engine.request(PROMPTS[1], priority=priority, max_tokens=4, ignore_eos=True)
        async for chunk in engine.stream(request):
            if chunk.token_ids and priority not in begun:
                begun.append(priority)

    async def scenario() -> None:
        fillers = [
            engine.request(PROMPTS[0], max_tokens=60 + 4 * index, ignore_eos=True)
            for index in range(engine.kind.num_places)
        ]
        busy = [asyncio.ensure_future(engine.collect(request)) for request in fillers]
        while engine.stats().num_running < engine.kind.num_places:
            await asyncio.sleep(0.001)
        await asyncio.gather(*(one(priority) for priority in (9, 5, 2)))
        await asyncio.gather(*busy)

    engine.run(scenario())
    assert begun == [2, 5, 9]


def test_a_full_queue_is_refused_and_recovers(engine: Harness) -> None:
    async def scenario() -> None:
        limit = engine.kind.num_places + NUM_WAITING
        streams = [
            engine.stream(engine.request(PROMPTS[0], max_tokens=None, ignore_eos=True)) for _ in range(limit)
        ]
        first = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0.05)
        with pytest.raises(EngineFullError) as refusal:
            await engine.collect(engine.request(PROMPTS[0]))
        assert refusal.value.retry_after >= 1
        for task in first:
            task.cancel()
        await asyncio.gather(*first, return_exceptions=True)
        for stream in streams:
            await stream.aclose()
        await engine.idle()
        assert (await engine.collect(engine.request(PROMPTS[0]))).reason == "stop"

    engine.run(scenario())


def test_prefixes_are_shared_within_a_salt(engine: Harness) -> None:
    if not engine.kind.shares_prefixes:
        pytest.skip(f"{engine.kind.name} keeps no prefixes")
    prompt = [*PROMPTS[3], *PROMPTS[8], *PROMPTS[13]]
    first, again = (engine.answers(engine.request(prompt, salt="a"))[0] for _ in range(2))
    other = engine.answers(engine.request(prompt, salt="b"))[0]
    assert first.chunks[0].num_cached_tokens == 0
    assert all(found.chunks[0].queued_seconds > 0 for found in (first, again, other))
    assert len(prompt) > again.chunks[0].num_cached_tokens > len(prompt) // 2
    assert other.chunks[0].num_cached_tokens == 0
    assert first.token_ids == again.token_ids == other.token_ids

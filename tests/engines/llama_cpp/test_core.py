"""Laws of the llama.cpp core, on a cache that checks every call and a model that is a function of the tokens.

The model itself is tried by `tests/engines/contract`, where llama-cpp-python is installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from .checking_cache import Run, logits_of

prompts = st.lists(st.integers(2, 6), min_size=1, max_size=45)


@settings(max_examples=EXPLORED or 15, deadline=None)
@given(
    longest=st.integers(40, 90),
    shorts=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), min_size=1, max_size=6),
    streams=st.booleans(),
)
def test_a_short_prompt_does_not_wait_for_a_long_one_which_keeps_half_of_each_batch(
    longest: int, shorts: list[tuple[int, int]], streams: bool
) -> None:
    """Batches have 16 tokens. The prompts share nothing."""
    run = Run(streams=streams, places=8, num_sequences=8)
    run.add("long", [2] * longest, 1)
    begun: dict[str, int] = {}
    answered: dict[str, int] = {}
    step = of_long = 0
    while run.core.has_work or len(begun) < len(shorts):
        for number, (at, length) in enumerate(shorts):
            if at == step:
                begun[str(number)] = step
                run.add(str(number), [3 + number] * length, 1)
        before = of_long
        states = [*run.core.queues.running, *run.core.queues.waiting]
        long = next((each for each in states if each.request.request_id == "long"), None)
        run.take(run.core.step())
        of_long = longest if long is None or "long" in run.reasons else long.num_computed_tokens
        assert of_long - before >= min(8, longest - before)
        answered |= {name: step for name in run.reasons if name not in answered}
        step += 1
    # At most six short prompts of 8 tokens are before one of them, and each batch computes as many.
    assert all(answered[name] - begun[name] <= 6 for name in begun)


@settings(max_examples=EXPLORED or 15, deadline=None)
@given(
    requests=st.lists(st.tuples(prompts, st.integers(1, 20)), min_size=1, max_size=9),
    cells=st.integers(70, 300),
    streams=st.sampled_from([True, False, None]),
    saves=st.booleans(),
)
def test_answers_do_not_depend_on_the_room_or_on_each_other(
    requests: list[tuple[list[int], int]], cells: int, streams: bool | None, saves: bool
) -> None:
    """Prompts of few tokens share beginnings; small caches make requests wait again."""
    run = Run(num_cells=cells, streams=streams, saves=saves)
    for index, (prompt, limit) in enumerate(requests):
        run.add(str(index), prompt, limit)
        run.take(run.core.step())
    run.finish()
    run.check()


@settings(max_examples=EXPLORED or 15, deadline=None)
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["abort", "pause", "resume", "add", "step", "step"]), st.integers(0, 5), prompts
        ),
        max_size=25,
    ),
    streams=st.sampled_from([True, False, None]),
)
def test_aborts_and_pauses_at_any_moment_disturb_nobody(
    moves: list[tuple[str, int, list[int]]], streams: bool | None
) -> None:
    run = Run(num_cells=150, streams=streams)
    for number, (move, index, prompt) in enumerate(moves):
        name = str(index)
        if move == "abort" and name in run.prompts and name not in run.reasons:
            run.take(run.core.abort(name))
        elif move == "pause":
            run.core.pause(name)
        elif move == "resume":
            run.core.resume(name)
        elif move == "add":
            run.add(name if name not in run.prompts else f"more{number}", prompt)
        else:
            run.take(run.core.step())
        run.core.check_integrity()
    for index in range(6):
        run.core.resume(str(index))
    run.finish()
    run.check()


@pytest.mark.parametrize("streams", [False, True, None])
def test_a_shared_beginning_is_not_computed_again(streams: bool | None) -> None:
    run = Run(streams=streams)
    prompt = list(range(2, 42))
    run.add("first", prompt, 3)
    run.finish()
    before = run.cache.num_computed
    run.add("second", [*prompt, 45, 46], 3)
    run.finish()
    assert run.cached == {"first": 0, "second": 40}
    assert run.cache.num_computed - before == 2 + 2
    run.add("foreign", prompt, 3, cache_salt="other")
    run.finish()
    assert run.cached["foreign"] == 0
    run.check()


@pytest.mark.parametrize("streams", [False, True, None])
def test_a_running_request_is_shared_with_too(streams: bool | None) -> None:
    run = Run(streams=streams)
    prompt = list(range(2, 42))
    run.add("first", prompt, 20)
    for _ in range(5):
        run.take(run.core.step())
    run.add("second", prompt, 20)
    run.finish()
    assert run.cached["second"] == 39
    run.check()


def test_a_prompt_whose_logprobs_are_wanted_is_computed_whole() -> None:
    run = Run()
    prompt = list(range(2, 42))
    run.add("first", prompt, 1)
    run.finish()
    chunks = []
    run.add("second", prompt, 1, prompt_logprobs=2)
    while run.core.has_work:
        chunks += [chunk for _, chunk in run.core.step()]
    entries: Any = chunks[0].prompt_logprobs
    assert len(entries) == len(prompt)
    assert entries[0] is None
    for position, entry in enumerate(entries[1:], start=1):
        row = logits_of(prompt[:position]).astype(np.float64)
        row -= row.max() + np.log(np.exp(row - row.max()).sum())
        assert entry.token_id == prompt[position]
        assert entry.logprob == pytest.approx(row[prompt[position]], abs=1e-4)
        assert entry.rank == 1 + int((row > row[prompt[position]]).sum())


@settings(max_examples=EXPLORED or 12, deadline=None)
@given(steps=st.integers(1, 3), neighbours=st.integers(0, 5))
def test_prompt_logprobs_are_whole_after_a_pause(steps: int, neighbours: int) -> None:
    """Streams that began during the pause take their share of each batch, so the prompt is cut elsewhere."""
    run = Run(places=6, max_batch=24)
    prompt = [2 + i % 7 for i in range(80)]
    run.add("scored", prompt, 1, prompt_logprobs=1)
    for _ in range(steps):
        run.take(run.core.step())
    run.core.pause("scored")
    for index in range(neighbours):
        run.add(str(index), [3], 20, ignore_eos=True)
    run.take(run.core.step())
    run.core.resume("scored")
    chunks = []
    while run.core.has_work:
        chunks += [chunk for name, chunk in run.core.step() if name == "scored"]
    entries: Any = chunks[0].prompt_logprobs
    assert [entry.token_id for entry in entries[1:]] == prompt[1:]


@settings(max_examples=EXPLORED or 12, deadline=None)
@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=6))
def test_the_rows_of_logits_of_a_batch_are_bounded(lengths: list[int]) -> None:
    """However many prompts are scored together."""
    run = Run(places=6, max_batch=500)
    for index, length in enumerate(lengths):
        run.add(str(index), [2 + (index + i) % 7 for i in range(length)], 2, prompt_logprobs=1)
    run.finish()
    run.check()
    assert run.cache.most_rows <= 64 + len(lengths)


def test_what_is_kept_for_others_is_bounded() -> None:
    run = Run()
    for index in range(6):
        run.add(str(index), [index + 2] * 60, 5, ignore_eos=True)
        run.finish()
        assert sum(map(len, run.cache.cells.values())) <= run.cache.max_model_len
        assert len(run.cache.cells) == 1


def test_the_last_request_in_order_makes_room() -> None:
    """A later request of an earlier priority keeps its place."""
    run = Run(num_cells=130)
    run.add("late", [2] * 30, 60, ignore_eos=True)
    run.take(run.core.step())
    run.add("soon", [3] * 30, 60, ignore_eos=True, priority=-1)
    while len(run.tokens["soon"]) < 60:
        run.take(run.core.step())
    assert run.core.stats().num_preemptions
    assert len(run.tokens["late"]) < 60
    run.finish()
    assert len(run.tokens["late"]) == 60


def test_decodes_come_before_the_chunks_of_a_long_prompt() -> None:
    run = Run(max_batch=8)
    run.add("stream", [2, 3], 30)
    run.take(run.core.step())
    run.add("long", [4] * 60, 2)
    for _ in range(6):
        before = len(run.tokens["stream"])
        run.take(run.core.step())
        assert len(run.tokens["stream"]) == before + 1 or "stream" in run.reasons
    run.finish()
    run.check()


@pytest.mark.parametrize("streams", [False, True, None])
def test_a_failed_step_clears_everything(streams: bool | None) -> None:
    run = Run(streams=streams)
    run.add("0", [2, 3, 4], 20, ignore_eos=True)
    run.take(run.core.step())
    run.take(run.core.recover("it failed"))
    assert run.reasons == {"0": "error"}
    run.core.check_integrity()
    assert not run.core.has_work
    assert not run.cache.cells
    run.tokens.clear()
    run.add("again", [2, 3], 5)
    run.finish()
    run.check()

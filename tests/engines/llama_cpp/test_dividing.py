"""The cache is divided anew where requests need it, and what it holds moves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from .checking_cache import Run


def test_requests_move_when_the_cache_is_divided_anew() -> None:
    """Neither more requests, nor a longer answer computes anything twice."""
    run = Run(streams=None, places=12, num_cells=40_000, max_model_len=2000)
    run.add("first", [2] * 700, 400, ignore_eos=True)
    while len(run.tokens["first"]) < 10:
        run.take(run.core.step())
    for index in range(11):
        run.add(str(index), [3 + index] * 15, 20, ignore_eos=True)
    run.finish()
    run.check(ends=False)
    assert run.cache.num_divided == 2
    assert run.core.stats().num_preemptions == 0
    assert run.cache.num_computed == 700 + 399 + 11 * (15 + 19)


@settings(max_examples=EXPLORED or 12, deadline=None)
@given(bursts=st.lists(st.integers(1, 8), min_size=1, max_size=8), shared=st.integers(0, 45))
def test_requests_run_together_however_they_come(bursts: list[int], shared: int) -> None:
    """The cache follows them, also if they share a beginning."""
    run = Run(streams=None, places=32, num_cells=8000, max_batch=512)
    number = 0
    for burst in bursts:
        for _ in range(min(burst, 32 - number)):
            run.add(str(number), [*[2] * shared, *[3 + number] * (46 - shared)], 50, ignore_eos=True)
            number += 1
        run.take(run.core.step())
    for _ in range(10):
        run.take(run.core.step())
    assert run.core.stats().num_running == number


def test_a_longer_request_starts_as_soon_as_nothing_runs() -> None:
    """However much was lost when the cache was divided the last time."""
    run = Run(streams=None, num_cells=40_000, max_model_len=4000, max_batch=4000, saves=False)
    run.add("first", [2] * 700, 1000, ignore_eos=True)
    while not run.cache.num_divided:
        run.take(run.core.step())
        run.cache.max_batch = 16 if len(run.tokens["first"]) > 320 else 4000
    run.take(run.core.abort("first"))
    run.cache.max_batch = 4000
    run.add("long", [4] * 3000, 3)
    run.finish()
    assert len(run.tokens["long"]) == 3


def test_what_finished_requests_left_moves_too() -> None:
    run = Run(streams=None, places=12, num_cells=4000)
    run.add("first", [2] * 20, 2)
    run.finish()
    for index in range(12):
        run.add(str(index), [3 + index] * 60, 10)
    run.finish()
    assert run.cache.num_divided
    run.add("again", [2] * 21, 2)
    run.finish()
    assert run.cached["again"] == 20


def test_a_running_request_that_outgrows_its_sequence_goes_on() -> None:
    """Also where llama.cpp gives no states, so that it is computed again."""
    run = Run(streams=None, places=2, num_cells=10_000, max_model_len=2000, saves=False)
    run.add("first", [2] * 700, 400, ignore_eos=True)
    run.add("second", [3] * 5, 20, ignore_eos=True)
    run.finish()
    run.check(ends=False)
    assert run.cache.num_divided


@settings(max_examples=EXPLORED or 12, deadline=None)
@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=12), cells=st.integers(100, 900))
def test_the_memory_bounds_every_shape(lengths: list[int], cells: int) -> None:
    run = Run(streams=None, places=8, num_cells=cells)
    for index, length in enumerate(lengths):
        run.add(str(index), [2 + index] * length, 100 - length, ignore_eos=True)
    run.finish()
    run.check(ends=False)
    assert run.cache.most_cells <= cells

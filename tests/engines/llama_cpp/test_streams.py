"""Laws of sequences with cells of their own: those that run follow each other, and what was used last is kept."""

from __future__ import annotations

from engines.llama_cpp.checking_cache import Run
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

prompts = st.lists(st.integers(2, 4), min_size=1, max_size=40)


@settings(max_examples=EXPLORED or 25, deadline=None)
@given(
    requests=st.lists(st.tuples(prompts, st.integers(1, 30), st.integers(0, 3)), min_size=2, max_size=12),
    spare=st.integers(1, 4),
)
def test_no_batch_has_a_gap_between_its_sequences(
    requests: list[tuple[list[int], int, int]], spare: int
) -> None:
    """Whoever ends first; the budget holds a token of each request and a prompt."""
    run = Run(places=4, streams=True, num_sequences=4 + spare, max_batch=64)
    for index, (prompt, limit, steps) in enumerate(requests):
        run.add(str(index), prompt, limit, ignore_eos=True)
        for _ in range(steps):
            run.take(run.core.step())
            run.core.check_integrity()
    run.finish()
    assert not run.cache.num_broken


def test_a_turn_that_continues_the_last_one_copies_nothing() -> None:
    """Also beside the turns of another conversation."""
    run = Run(streams=True)
    history = {name: [number] * 20 for number, name in enumerate("ab", start=2)}
    for turn in range(3):
        for name, tokens in history.items():
            run.add(f"{name}{turn}", list(tokens), 5, ignore_eos=True)
            run.finish()
            assert run.cached[f"{name}{turn}"] == (len(tokens) - 2 if turn else 0)
            tokens += [*run.tokens[f"{name}{turn}"], 9]
    assert not run.cache.num_copies


def test_a_beginning_outlives_the_requests_that_share_it() -> None:
    run = Run(places=4, streams=True, num_sequences=5, max_batch=64)
    shared = [2] * 30
    run.add("first", shared, 1)
    run.finish()
    for turn in range(3):
        for index in range(4):
            run.add(f"{turn}.{index}", [*shared, 3 + turn, 3 + index], 3 + index, ignore_eos=True)
        run.finish()
        assert all(run.cached[f"{turn}.{index}"] == 30 for index in range(4))
    run.tokens.clear()


def test_what_was_used_longest_ago_makes_way() -> None:
    run = Run(places=1, streams=True, num_sequences=3)
    for number in (2, 3, 4):
        run.add(str(number), [number] * 30, 1)
        run.finish()
    run.add("2 again", [2] * 31, 1)
    run.finish()
    run.add("5", [5] * 30, 1)
    run.finish()
    for number, cached in ((4, 30), (2, 30), (3, 0)):
        run.add(f"{number} at last", [number] * 31, 1)
        run.finish()
        assert run.cached[f"{number} at last"] == cached, number

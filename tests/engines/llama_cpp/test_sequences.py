"""Laws of the sequences of llama.cpp's cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.llama_cpp.placement import SharedSequence
from plumbline.engines.llama_cpp.sequences import Sequences

tokens = st.lists(st.integers(0, 1), max_size=60)


def common(left: list[int], right: list[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )


@given(
    kept=st.lists(st.tuples(st.sampled_from([None, "a"]), tokens), max_size=6),
    running=st.lists(st.tuples(tokens, st.integers(0, 60)), max_size=3),
    prompt=tokens.filter(bool),
    head=st.integers(0, 60),
)
def test_the_longest_prefix_is_the_longest(
    kept: list[tuple[str | None, list[int]]],
    running: list[tuple[list[int], int]],
    prompt: list[int],
    head: int,
) -> None:
    """Compared with looking at every token; some sequences begin as the prompt does."""
    sequences = Sequences(12)
    lengths = [0]
    for index, (salt, own) in enumerate(kept):
        sequence = sequences.take(salt)
        assert sequence is not None
        held = prompt[:head] + own if index % 2 else own
        sequences.keep(sequence, held)
        if salt is None:
            lengths.append(common(held, prompt))
    others = []
    for own, computed in running:
        sequence = sequences.take(None)
        assert sequence is not None
        others.append(SharedSequence(sequence, own, min(computed, len(own))))
        lengths.append(common(own[:computed], prompt))
    found, length = sequences.longest_prefix(prompt, None, others)
    best = min(max(lengths), len(prompt) - 1)
    assert length == (best if best >= 16 else 0)
    assert (found < 0) == (length == 0)
    sequences.check_integrity()


@given(st.lists(st.sampled_from(["take", "keep", "free", "evict"]), max_size=40))
def test_each_sequence_is_in_one_state(moves: list[str]) -> None:
    sequences = Sequences(4)
    held: list[int] = []
    for move in moves:
        if move == "take":
            taken = sequences.take(None)
            assert (taken is None) == (len(held) + sequences.num_kept == 4)
            held += [] if taken is None else [taken]
        elif move == "evict":
            empty = sequences.num_kept == 0
            assert (sequences.evict() is None) == empty
        elif held and move == "keep":
            sequences.keep(held.pop(), [1, 2, 3])
        elif held:
            sequences.free(held.pop())
        sequences.check_integrity()


def test_what_was_used_longest_ago_is_evicted_first() -> None:
    sequences = Sequences(3)
    first, second, third = numbers = [sequences.take(None) or 0 for _ in range(3)]
    for token, number in enumerate(numbers, start=1):
        sequences.keep(number, [token] * 20)
    assert sequences.longest_prefix([1] * 30, None, []) == (first, 20)
    assert [sequences.evict() for _ in range(4)] == [second, third, first, None]

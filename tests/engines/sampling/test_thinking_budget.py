"""Laws of thinking budgets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.constraints.grammar import num_words
from plumbline.engines.constraints.thinking_budget import ThinkingBudgetMatcher
from plumbline.port.engine import ThinkingBudget

VOCAB = 40
tokens = st.lists(st.integers(0, 5), max_size=40)
limits = st.builds(
    lambda bound, begin, end, inside: ThinkingBudget(
        max_tokens=bound, begin=(tuple(begin),), end=tuple(end), inside=inside
    ),
    st.integers(0, 6),
    st.lists(st.integers(0, 3), min_size=1, max_size=2),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.booleans(),
)


def allowed(matcher: ThinkingBudgetMatcher) -> set[int]:
    row = np.zeros(num_words(VOCAB), dtype=np.int32)
    matcher.mask_into(row)
    return {token for token in range(VOCAB) if row[token // 32] >> (token % 32) & 1}


def drawn(limit: ThinkingBudget, wanted: list[int]) -> tuple[list[int], ThinkingBudgetMatcher]:
    """What comes of a model that wants these tokens and may not have all of them."""
    matcher = ThinkingBudgetMatcher(limit)
    taken: list[int] = []
    for token in wanted:
        choices = allowed(matcher)
        taken.append(token if token in choices else min(choices))
        assert matcher.accept(taken[-1])
    return taken, matcher


def spent(limit: ThinkingBudget, taken: list[int]) -> int | None:
    """Count thinking tokens independently; None if thinking did not begin."""
    start = 0 if limit.inside else None
    if start is None:
        start = next((len(begin) for begin in limit.begin if tuple(taken[: len(begin)]) == begin), None)
    if start is None:
        return None
    for at in range(start, len(taken)):
        if tuple(taken[at : at + len(limit.end)]) == limit.end:
            return at - start
    return len(taken) - start


@given(limits, tokens)
def test_no_more_tokens_than_the_bound_and_the_end(limit: ThinkingBudget, wanted: list[int]) -> None:
    taken, _ = drawn(limit, wanted)
    inside = spent(limit, taken)
    # While the end is being written its own tokens stand there, too.
    assert inside is None or inside < limit.max_tokens + len(limit.end)


@given(limits, tokens)
def test_a_thought_that_ends_within_the_budget_is_unchanged(limit: ThinkingBudget, wanted: list[int]) -> None:
    inside = spent(limit, wanted)
    if inside is None or (inside <= limit.max_tokens and inside < len(wanted) and len(limit.end) == 1):
        assert drawn(limit, wanted)[0] == wanted


@given(limits, tokens, st.integers(0, 40))
def test_tokens_can_be_taken_back(limit: ThinkingBudget, wanted: list[int], back: int) -> None:
    taken, matcher = drawn(limit, wanted)
    back = min(back, len(taken))
    matcher.rollback(back)
    assert allowed(matcher) == allowed(drawn(limit, taken[: len(taken) - back])[1])


def test_the_end_is_forced_when_the_bound_is_reached() -> None:
    taken, _ = drawn(ThinkingBudget(max_tokens=2, end=(7, 8), inside=True), [1, 1, 1, 1, 1])
    assert taken == [1, 1, 7, 8, 1]
    taken, _ = drawn(ThinkingBudget(max_tokens=1, begin=((3,),), end=(7,)), [3, 1, 1, 1])
    assert taken == [3, 1, 7, 1]
    taken, _ = drawn(ThinkingBudget(max_tokens=0, begin=((3,),), end=(7,)), [3, 1, 1])
    assert taken == [3, 7, 1]


def test_what_looks_like_a_beginning_in_the_text_begins_nothing() -> None:
    wanted = [1, 3, 1, 1, 1]
    assert drawn(ThinkingBudget(max_tokens=1, begin=((3,),), end=(7,)), wanted)[0] == wanted


def test_all_thoughts_of_an_output_share_one_budget() -> None:
    again = ThinkingBudget(
        max_tokens=3, begin=((3, 4),), end=(7,), after=((7,), (5, 6)), blank=frozenset({9})
    )
    # Behind the end, and behind what is named, blanks aside, another one begins; the bound is what is left of it.
    for between in ([], [9, 9], [1, 5, 6], [5, 6, 9], [3, 5, 6]):
        taken, _ = drawn(again, [3, 4, 1, 7, *between, 3, 4, 1, 1, 1])
        assert taken == [3, 4, 1, 7, *between, 3, 4, 1, 1, 7], between
    # Elsewhere the same tokens are text.
    for text in ([1], [9, 1], [5, 1, 6], [6, 5], [3, 3]):
        wanted = [3, 4, 1, 7, *text, 3, 4, 1, 1, 1, 1]
        assert drawn(again, wanted)[0] == wanted, text
    # Where nothing is left, the end comes at once; blanks may stand before the first one, too.
    assert drawn(again, [9, 3, 4, 1, 1, 1, 1])[0] == [9, 3, 4, 1, 1, 1, 7]
    assert drawn(again, [3, 4, 1, 1, 1, 7, 3, 4, 1])[0] == [3, 4, 1, 1, 1, 7, 3, 4, 7]


@given(tokens, st.integers(0, 8), st.integers(0, 40))
def test_no_number_of_thoughts_exceeds_the_budget(wanted: list[int], bound: int, back: int) -> None:
    limit = ThinkingBudget(
        max_tokens=bound, begin=((3,),), end=(2,), after=((2,), (1,)), blank=frozenset({0})
    )
    taken, matcher = drawn(limit, wanted)
    inside = number = 0
    place, thinking = True, False
    for token in taken:
        if thinking:
            inside += token != 2
            place, thinking = token == 2, token != 2
        else:
            thinking = place and token == 3
            place = token in (1, 2) or (place and token == 0)
        number += thinking
    assert inside <= bound
    back = min(back, len(taken))
    matcher.rollback(back)
    assert allowed(matcher) == allowed(drawn(limit, taken[: len(taken) - back])[1])


@given(tokens, st.integers(0, 6))
def test_a_thought_amid_text_counts_where_thoughts_may_begin_anywhere(wanted: list[int], bound: int) -> None:
    limit = ThinkingBudget(max_tokens=bound, begin=((3,),), end=(7,), anywhere=True)
    taken, _ = drawn(limit, wanted)
    thinking = 0
    inside = False
    for token in taken:
        inside, thinking = (token != 7, thinking + (token != 7)) if inside else (token == 3, thinking)
    assert thinking <= bound

"""Laws of DRY's history.

- Its penalties are those of comparing every place with the end, token by token.
- They do not depend on how much of the text was the prompt.
- With a penalty window of 0 there are none.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.weights.reference_samplers import dry_penalties

from plumbline.engines.filters.dry import DryHistory, suffix_matches
from plumbline.port.engine import Dry

tokens = st.lists(st.integers(0, 3), max_size=40)
shapes = st.fixed_dictionaries(
    {
        "multiplier": st.sampled_from([0.5, 1.0, 3.0]),
        "base": st.sampled_from([1.0, 1.75, 2.0]),
        "allowed_length": st.integers(0, 4),
        "last_n": st.integers(-1, 12),
    }
)
breakers = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=2)


def history(
    prompt: list[int], output: list[int], shape: dict[str, Any], ends: list[tuple[int, ...]]
) -> DryHistory:
    params = Dry(
        **shape,
        breaker_ids=frozenset(end[0] for end in ends if len(end) == 1),
        breaker_sequences=tuple(end for end in ends if len(end) > 1),
    )
    found = DryHistory(params, prompt)
    for token in output:
        found.accept(token)
    return found


def penalties(found: DryHistory) -> dict[int, float]:
    ids, values = found.penalties()
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


@given(tokens, tokens, shapes)
def test_penalties_are_those_of_comparing_every_place(
    prompt: list[int], output: list[int], shape: dict[str, Any]
) -> None:
    expected = dict(shape)
    last_n = expected.pop("last_n")
    window = len(prompt) + len(output) if last_n < 0 else last_n
    assert penalties(history(prompt, output, shape, [])) == dry_penalties(
        prompt + output, window=window, **expected
    )


@given(tokens, tokens, shapes, breakers)
def test_a_breaker_ends_every_match(
    prompt: list[int], output: list[int], shape: dict[str, Any], ends: list[tuple[int, ...]]
) -> None:
    expected = {**shape, "last_n": -1}
    found = penalties(history(prompt, output, expected, ends))
    expected.pop("last_n")
    assert found == dry_penalties(
        prompt + output, window=len(prompt) + len(output), breakers=ends, **expected
    )


@given(tokens, shapes, breakers, st.integers(0, 40))
def test_penalties_do_not_depend_on_where_the_prompt_ends(
    text: list[int], shape: dict[str, Any], ends: list[tuple[int, ...]], cut: int
) -> None:
    # A breaker that reaches out of the window is seen by the longer history only.
    shape = {**shape, "last_n": -1}
    assert penalties(history(text[:cut], text[cut:], shape, ends)) == penalties(
        history(text, [], shape, ends)
    )


@given(tokens)
def test_the_linear_algorithm_counts_equal_endings(text: list[int]) -> None:
    expected = []
    for place in range(len(text)):
        length = 0
        while length <= place and text[place - length] == text[len(text) - 1 - length]:
            length += 1
        expected.append(length)
    assert suffix_matches(text).tolist() == [*expected[:-1], *[0][: len(text)]]


def test_a_long_repetition_has_a_finite_penalty() -> None:
    ids, values = history([7] * 2000, [], {"multiplier": 100.0, "base": 16.0}, []).penalties()
    assert ids.tolist() == [7]
    assert 1e30 < values[0] < 3e40

"""Intervals and tests of `plumbline verify`: right by enumeration, and rarely wrong about servers that are the same."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline_conformance.verify.statistics import Share, fisher, mean, share, triggers

Rows = list[tuple[list[bool], list[bool]]]


@given(st.integers(0, 200), st.integers(0, 200))
def test_an_interval_has_the_share_within_it(right: int, wrong: int) -> None:
    found = share(right, right + wrong)
    assert 0 <= found.low <= found.high <= 1
    if found.value is not None:
        assert found.low - 1e-9 <= found.value <= found.high + 1e-9


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_the_exact_test_counts_the_tables(a: int, b: int, c: int, d: int) -> None:
    """Fisher's test is the share of the assignments with the same margins that have as few right ones, or fewer."""
    server, baseline = share(a, a + b), share(c, c + d)
    answers = [True] * (a + c) + [False] * (b + d)
    if not a + b or not c + d:
        assert fisher(server, baseline) == 1
        return
    counts = [
        sum(answers[i] for i in chosen) for chosen in itertools.combinations(range(len(answers)), a + b)
    ]
    assert fisher(server, baseline) == pytest.approx(sum(count <= a for count in counts) / len(counts))


def drawn(chance: random.Random, rates: list[float], repeats: int, of_server: list[float]) -> Rows:
    return [
        ([chance.random() < rate], [chance.random() < other for _ in range(repeats)])
        for rate, other in zip(rates, of_server, strict=True)
    ]


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_server_that_is_the_same_is_rarely_found_to_differ(repeats: int) -> None:
    chance = random.Random(1)
    found = []
    for number in range(60):
        rates = [chance.random() for _ in range(12)]
        found.append(triggers(drawn(chance, rates, repeats, rates), seed=number).p)
    assert sum(p < 0.05 for p in found) <= 7  # Three are expected, and eight have a probability of 1 %.


def test_a_server_that_differs_is_found() -> None:
    chance = random.Random(1)
    rates = [float(chance.random() < 0.5) for _ in range(60)]
    other = [1 - rate if chance.random() < 0.2 else rate for rate in rates]
    assert triggers(drawn(chance, rates, 3, other)).p < 0.01
    assert triggers(drawn(chance, rates, 3, rates)).p == 1


def test_a_server_that_draws_nothing_differs_from_one_that_draws() -> None:
    """Its answers agree with each other more than with the baseline."""
    chance = random.Random(1)
    rates = [0.5] * 100
    assert triggers(drawn(chance, rates, 3, [float(chance.random() < 0.5) for _ in rates])).p < 0.01


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_f1_is_that_of_the_confusion_matrix(pairs: list[tuple[bool, bool]]) -> None:
    found = triggers([([wanted], [got]) for wanted, got in pairs])
    hits = sum(wanted and got for wanted, got in pairs)
    extra = sum(got and not wanted for wanted, got in pairs)
    missed = sum(wanted and not got for wanted, got in pairs)
    if hits + extra + missed == 0:
        assert found.f1 is None
    else:
        assert found.f1 == pytest.approx(2 * hits / (2 * hits + extra + missed))
        assert found.f1 is not None
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.f1 + 1e-9
        assert found.high >= found.f1 - 1e-9
    assert found.more == pytest.approx((extra - missed) / len(pairs))


def test_many_rows_are_compared_without_overflow() -> None:
    """The tests are linear in the rows that differ: here all of them, the most expensive case."""
    rows: Rows = [([True], [False, True, False])] * 400
    assert triggers(rows).p < 0.01
    assert math.isclose(fisher(Share(3000, 12000, 0, 1), Share(3000, 12000, 0, 1)), 0.5, abs_tol=0.02)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_a_mean_of_rows_has_the_interval_of_as_many_answers(parts: list[int]) -> None:
    """Asking a row again adds no row; rows of one answer each are a share."""
    value, low, high = mean([part / 4 for part in parts])

    assert 0 <= low <= value + 1e-9
    assert value - 1e-9 <= high <= 1
    alone = [part // 4 for part in parts]
    found = share(sum(alone), len(alone))
    assert mean([float(one) for one in alone]) == pytest.approx((found.value, found.low, found.high))

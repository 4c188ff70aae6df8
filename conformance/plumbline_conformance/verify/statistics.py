"""Say how sure a difference between two servers is.

Answers are drawn, so that a server differs from itself too. Every figure has an interval, and a verdict has the
probability that a server without a difference would show at least as much.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import msgspec

__all__ = ["Share", "Triggers", "fisher", "mean", "share", "triggers"]

_Z = 1.959963984540054
"""The quantile of the normal distribution for intervals of 95 %."""
_DRAWS = 1_000
"""Permutations of a test; the least probability that it can show is 2 of 1,001."""


class Share(msgspec.Struct, frozen=True):
    """A share of answers, with the interval of 95 % (Wilson 1927)."""

    right: int
    all: int
    low: float
    high: float

    @property
    def value(self) -> float | None:
        """The share; None of nothing."""
        return self.right / self.all if self.all else None


def share(right: int, total: int) -> Share:
    """Return `right` of `total` with its interval."""
    if not total:
        return Share(0, 0, 0.0, 1.0)
    return Share(right, total, *_wilson(right / total, total))


def mean(shares: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of shares, one for each row, with its interval.

    The answers of a row are alike, so a row counts once, however often it was asked. A share varies at most as much
    as one answer does, so the interval is that of so many answers, or too wide.

    >>> mean([1.0, 1.0, 0.5, 0.5])[0]
    0.75
    """
    value = math.fsum(shares) / len(shares)
    return value, *_wilson(value, len(shares))


def _wilson(rate: float, total: int) -> tuple[float, float]:
    square = _Z * _Z / total
    middle = (rate + square / 2) / (1 + square)
    half = _Z / (1 + square) * math.sqrt(rate * (1 - rate) / total + square / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)


class Triggers(msgspec.Struct, frozen=True, kw_only=True):
    """How well a server calls tools in the same rows as the baseline.

    Each answer of the server is compared with each result of the baseline for the same row.
    """

    precision: float | None
    recall: float | None
    f1: float | None
    low: float
    """The interval of 95 % of the F1 value, by the jackknife over rows (Efron 1982)."""
    high: float
    p: float
    """The probability of such a difference between two samples of one server: the smaller one of two permutation
    tests within rows, of how often they disagree and of how often tools are called, doubled."""
    more: float
    """How much more often than the baseline the server calls tools, as a part of all answers."""


def triggers(rows: Sequence[tuple[Sequence[bool], Sequence[bool]]], seed: int = 0) -> Triggers:
    """Compare which answers call tools.

    Args:
        rows: for each row, the results of the baseline and the answers of the server; neither is empty.
        seed: of the permutations.
    """
    counts = [_confusion(baseline, server) for baseline, server in rows]
    whole = tuple(map(sum, zip(*counts, strict=True))) if counts else (0.0, 0.0, 0.0)
    hits, extra, missed = whole
    value = _f1(hits, extra, missed)
    low, high = _jackknife(counts, (hits, extra, missed), value)
    more = [sum(server) / len(server) - sum(baseline) / len(baseline) for baseline, server in rows]
    return Triggers(
        precision=hits / (hits + extra) if hits + extra else None,
        recall=hits / (hits + missed) if hits + missed else None,
        f1=value,
        low=low,
        high=high,
        p=_permuted(rows, random.Random(seed)),
        more=sum(more) / len(more) if more else 0.0,
    )


def _confusion(baseline: Sequence[bool], server: Sequence[bool]) -> tuple[float, float, float]:
    """Return the shares of pairs of a row in which both call, only the server does, and only the baseline does."""
    wanted, found = sum(baseline) / len(baseline), sum(server) / len(server)
    return wanted * found, (1 - wanted) * found, wanted * (1 - found)


def _f1(hits: float, extra: float, missed: float) -> float | None:
    return 2 * hits / (2 * hits + extra + missed) if hits + extra + missed else None


def _jackknife(
    counts: Sequence[tuple[float, float, float]], whole: tuple[float, float, float], value: float | None
) -> tuple[float, float]:
    if value is None or len(counts) < 2:
        return 0.0, 1.0
    without = [
        found
        for row in counts
        if (found := _f1(*(total - part for total, part in zip(whole, row, strict=True)))) is not None
    ]
    if len(without) < 2:
        return 0.0, 1.0
    mean = sum(without) / len(without)
    error = math.sqrt((len(without) - 1) / len(without) * sum((one - mean) ** 2 for one in without))
    return max(0.0, value - _Z * error), min(1.0, value + _Z * error)


def _permuted(rows: Sequence[tuple[Sequence[bool], Sequence[bool]]], chance: random.Random) -> float:
    """Return the probability that rows whose answers are shuffled differ at least as much.

    Under the hypothesis that both servers draw from one distribution, every assignment of the answers of a row to the
    two is equally likely.
    """
    # Rows whose answers are all alike are the same in every permutation.
    mixed = [(a, b) for a, b in rows if 0 < sum(a) + sum(b) < len(a) + len(b)]
    if not mixed:
        return 1.0
    there = [_differs(sum(a) / len(a), sum(b) / len(b)) for a, b in mixed]
    apart, shift = sum(each[0] for each in there), sum(each[1] for each in there)
    tables = [_shuffled(len(a), len(b), sum(a) + sum(b)) for a, b in mixed]
    as_apart = as_shifted = 1
    for _ in range(_DRAWS):
        found = moved = 0.0
        for bounds, values in tables:
            one = values[bisect(bounds, chance.random())]
            found += one[0]
            moved += one[1]
        as_apart += found >= apart - 1e-9
        as_shifted += abs(moved) >= abs(shift) - 1e-9
    return min(1.0, 2 * min(as_apart, as_shifted) / (_DRAWS + 1))


def _differs(first: float, second: float) -> tuple[float, float]:
    """Return how often two shares of calls disagree, and how much more often the second one calls."""
    return first * (1 - second) + (1 - first) * second, second - first


@cache
def _shuffled(first: int, second: int, calls: int) -> tuple[list[float], list[tuple[float, float]]]:
    """Return what a shuffled row shows: the ends of probabilities but the last, and for each how it differs.

    Args:
        first: results of the baseline.
        second: answers of the server.
        calls: how many of both call a tool.
    """
    counts = range(max(0, calls - second), min(first, calls) + 1)
    whole = math.comb(first + second, calls)
    shares = [math.comb(first, few) * math.comb(second, calls - few) / whole for few in counts]
    values = [_differs(few / first, (calls - few) / second) for few in counts]
    return list(accumulate(shares))[:-1], values


def fisher(server: Share, baseline: Share) -> float:
    """Return the probability that the server has so few right ones if both have the same share (Fisher 1934)."""
    right, total = server.right + baseline.right, server.all + baseline.all
    if not server.all or not baseline.all:
        return 1.0
    whole = _choose(total, server.all)
    least = max(0, right - baseline.all)
    terms = (
        math.exp(_choose(right, few) + _choose(total - right, server.all - few) - whole)
        for few in range(least, server.right + 1)
    )
    return min(1.0, math.fsum(terms))


def _choose(total: int, few: int) -> float:
    """Return the logarithm of a binomial coefficient."""
    if not 0 <= few <= total:
        return -math.inf
    return math.lgamma(total + 1) - math.lgamma(few + 1) - math.lgamma(total - few + 1)

"""Choose few combinations of options in which every pair of values occurs.

Defects of servers lie where two options meet more often than where three do, and all combinations are too many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

__all__ = ["Row", "covering_array"]

Row = dict[str, str]
"""The name of a value for each option."""
_Pair = tuple[tuple[str, str], tuple[str, str]]


def _possible(_: Row) -> bool:
    return True


def covering_array(
    options: Mapping[str, Sequence[str]], possible: Callable[[Row], bool] = _possible
) -> list[Row]:
    """Return rows in which every pair of values of two options occurs, if a possible row has it.

    The rows are always the same for the same options. A row is begun with a pair that is missing and completed by the
    values that add most missing pairs (a greedy algorithm, as AETG's).

    Args:
        options: the names of the values of each option, the plainest first.
        possible: whether a row, or the beginning of one, is a legal combination.

    >>> covering_array({"a": "12", "b": "12", "c": "12"})[:2]
    [{'a': '1', 'b': '1', 'c': '1'}, {'a': '1', 'b': '2', 'c': '2'}]
    """
    missing = _pairs(options)
    rows: list[Row] = []
    for pair in list(missing):
        if pair not in missing:
            continue
        row = dict(pair)
        del missing[pair]
        if not possible(row):
            continue
        for name, values in options.items():
            if name not in row and (found := _best(row, name, values, missing, possible)) is not None:
                row[name] = found
        if len(row) == len(options):
            for covered in combinations(((name, row[name]) for name in options), 2):
                missing.pop(covered, None)
            rows.append({name: row[name] for name in options})
    return rows


def _pairs(options: Mapping[str, Sequence[str]]) -> dict[_Pair, None]:
    """Return all pairs of values, in a fixed order."""
    return {
        ((one, mine), (other, theirs)): None
        for one, other in combinations(options, 2)
        for mine in options[one]
        for theirs in options[other]
    }


def _best(
    row: Row, name: str, values: Sequence[str], missing: Mapping[_Pair, None], possible: Callable[[Row], bool]
) -> str | None:
    """Return the value that adds most missing pairs to a row, the first of equals; None if none is possible."""

    def added(value: str) -> int:
        new = (name, value)
        return sum(((old, new) in missing) + ((new, old) in missing) for old in row.items())

    legal = [value for value in values if possible({**row, name: value})]
    return max(legal, key=added, default=None)

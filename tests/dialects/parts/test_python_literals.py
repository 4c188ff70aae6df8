"""Literals of Python become the JSON of their values."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.dialects.streams.cursor import Cursor
from plumbline.answer.dialects.streams.python_stream import python_value

_Literal = tuple[str, Any]
"""A text and the value that its JSON has."""
_ATOMS = st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.text("ab'\"\\\n{}:,é", max_size=4))


def _sequence(items: list[_Literal], brackets: str) -> _Literal:
    inside = ", ".join(text for text, _ in items)
    comma = "," if len(items) == 1 and brackets == "()" else ""
    return f"{brackets[0]}{inside}{comma}{brackets[1]}", [value for _, value in items]


def _dict(items: dict[str, _Literal]) -> _Literal:
    inside = ", ".join(f"{key!r}: {text}" for key, (text, _) in items.items())
    return f"{{{inside}}}", {key: value for key, (_, value) in items.items()}


def _nested(inner: st.SearchStrategy[_Literal]) -> st.SearchStrategy[_Literal]:
    several = st.lists(inner, max_size=3)
    return st.one_of(
        st.builds(_sequence, several, st.sampled_from(["[]", "()"])),
        st.builds(_sequence, st.lists(inner, min_size=1, max_size=3), st.just("{}")),
        st.builds(_dict, st.dictionaries(st.text("ab'\" :", max_size=3), inner, max_size=3)),
    )


_LITERALS = st.recursive(_ATOMS.map(lambda value: (repr(value), value)), _nested, max_leaves=8)


@given(literal=_LITERALS, size=st.integers(1, 9))
def test_lists_tuples_sets_and_dicts_become_json_however_they_are_cut(literal: _Literal, size: int) -> None:
    text, value = literal
    cursor, out = Cursor(), list[str]()
    reader = python_value(cursor, out.append)
    for start in range(0, len(text), size):
        cursor.feed(text[start : start + size])
        next(reader, None)
    cursor.feed(")")  # A number or word at the end is certain only when something follows it.
    next(reader, None)

    assert json.loads("".join(out)) == value
    assert cursor.text[cursor.pos :] == ")"

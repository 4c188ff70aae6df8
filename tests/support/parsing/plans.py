"""Draw model outputs that do not depend on a dialect, for the laws of dialects.

Characters of the private-use area mark the places of markers; each dialect replaces them by its markers.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

__all__ = ["LOOSE", "MARKS", "NAMES", "SCHEMA", "Plan", "plans", "sizes"]

NAMES = ("get_weather", "ping", "search-docs", "ns.lookup", "f")
PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "nothing": {"type": "null"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "größe": {
        "type": "object",
        "properties": {
            "x-1": {"type": "integer"},
            "s": {"type": "string"},
            "rows": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}},
            "deep": {"type": "object", "properties": {"n": {"type": "null"}}},
        },
    },
    "note": {"type": "string"},
}
SCHEMA: dict[str, Any] = {"type": "object", "properties": PROPERTIES}
LOOSE: dict[str, Any] = {"type": "object"}
"""A schema without types, for formats whose values show their type."""

MARKS = "\ue000\ue001\ue002\ue003\ue004\ue005\ue006\ue007"
"""Placeholders for the markers of a dialect."""
_PLAIN = [
    "a",
    " ",
    "word",
    "é",
    "€",
    "🎉",
    "\n",
    "<",
    ">",
    "{",
    "}",
    "[",
    "]",
    "`",
    "|",
    "(",
    ")",
    "=",
    ",",
    ":",
    ";",
]
_ODD = [
    '"',
    "'",
    "\\",
    "\\n",
    "\\u00fc",
    "\t",
    "\r\n",
    "\x00",
    "\u2028",
    "null",
    "True",
    "1",
    "</",
    "<|",
    "]<",
    '"""',
]


class Plan(msgspec.Struct, frozen=True):
    """An utterance before it is known in which dialect."""

    reasoning: str | None
    parts: tuple[str | tuple[str, dict[str, Any]], ...]
    loose: bool


sizes = st.lists(st.integers(0, 9) | st.sampled_from([20, 70]), min_size=1, max_size=5)
"""Lengths of pieces."""

_texts = st.lists(st.sampled_from([*_PLAIN, *MARKS]), min_size=1, max_size=8).map("".join)
_strings = st.lists(st.sampled_from([*_PLAIN, *_ODD, *MARKS]), max_size=6).map("".join)
_integers = st.sampled_from([0, 1, -7, 42, 2**53 + 1, -(10**30)])
_numbers = st.sampled_from([0.5, -1.25, 1e300, 5e-324, 3.0, 7, 123456789.123])
_objects = st.fixed_dictionaries(
    {},
    optional={
        "x-1": _integers,
        "s": _strings,
        "rows": st.lists(st.lists(st.booleans(), max_size=2), max_size=2),
        "deep": st.sampled_from([{}, {"n": None}]),
    },
)
_values = {
    "city": _strings,
    "count": _integers,
    "ratio": _numbers,
    "flag": st.booleans(),
    "nothing": st.none(),
    "tags": st.lists(_strings, max_size=3),
    "größe": _objects,
    "note": _strings,
}


@st.composite
def _arguments(draw: st.DrawFn) -> dict[str, Any]:
    keys = draw(st.lists(st.sampled_from(list(_values)), max_size=3, unique=True))
    return {key: draw(_values[key]) for key in keys}


plans = st.builds(
    Plan,
    reasoning=st.none() | _texts,
    parts=st.lists(_texts | st.tuples(st.sampled_from(NAMES), _arguments()), min_size=1, max_size=4).map(
        tuple
    ),
    loose=st.booleans(),
)
"""Utterances that any dialect can carry."""

"""Pieces of markup, and the comparisons of messages, for the laws of dialects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st

from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.pocket import MODEL_DIR
from support.laws import DIALECT_NAMES
from support.parsing.dialects import DIALECTS, Dialect, Folded
from support.parsing.response_templates import TEMPLATES

__all__ = [
    "ALL_DIALECTS",
    "SEPARATING_DIALECTS",
    "TAG_PIECES",
    "TEXT_SCHEMAS",
    "TODO_SCHEMA",
    "begins",
    "fenced",
    "reasons",
    "reordered",
    "soup",
    "soup_numbers",
    "thinking_ends",
    "tokens",
    "without_stump",
    "words",
]

ALL_DIALECTS = [*DIALECTS, *([] if DIALECT_NAMES else TEMPLATES)]
"""The dialects of families, and response templates."""
SEPARATING_DIALECTS = [d for d in ALL_DIALECTS if d.reasoning is None or not d.reasoning.append]
"""All but those that leave the thinking in the text."""

words = st.text("abcdefghij", min_size=1, max_size=6).map(lambda text: f"the {text}s")
reasons = st.sampled_from(["stop", "length"])
soup_numbers = st.lists(st.integers(0, 63), max_size=14)

_POCKET = TextTokenizer.from_folder(MODEL_DIR)

_SOUP = (
    '{"name": "f", "arguments": {}}',
    '{"name": "ping", "parameters": {"city": "x',
    '"',
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "f",
    "get_weather",
    "functions.f:0",
    "(",
    ")",
    'city="a"',
    "city=",
    "=",
    "\n",
    " ",
    "```",
    "<",
    ">",
    "/",
    "\\",
    "12",
    "-",
    "e",
    "true",
    "None",
    "é🎉",
    "city",
    "count",
    "unknown",
    "{}",
    '"}',
    "null",
    "item",
    "\x00",
    "'",
    "|",
)
TAG_PIECES = (
    '"',
    '"',
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "1",
    "tru",
    "e",
    "None",
    "'",
    "\\",
    "\n",
    " ",
    "a",
    "\xa0",
    "</",
)
"""Pieces of values between tags. Some are JSON for a while."""
TEXT_SCHEMAS: tuple[Any, ...] = (
    {"type": "string"},
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"type": ["string", "integer"]},
    {},
)
"""Schemas of parameters that may be strings. Most clients write an optional string as the second or third."""
TODO_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "todos": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "n": {"type": "integer"},
                    "s": {"type": "string"},
                    "done": {"type": "boolean"},
                },
            },
        },
        "more": {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}},
    },
}


def soup(dialect: Dialect, number: int) -> str:
    """Return a piece of markup of the dialect, of JSON, or of text."""
    return _SOUP[number // 2 % len(_SOUP)] if number % 2 else dialect.atoms[number // 2 % len(dialect.atoms)]


def thinking_ends(dialect: Dialect) -> tuple[str, ...] | None:
    """Return what thinking begins with and all that it ends with; None if the dialect has no markers around it."""
    reasoning = dialect.reasoning
    if reasoning is None or reasoning.messages:
        return None
    ends = (*reasoning.close, *filter(None, (reasoning.next_message,)))
    return (reasoning.open[0], *ends)


def tokens(text: str) -> Iterator[bytes]:
    """Cut a text into the tokens of the pocket model."""
    return (_POCKET.table[token_id] for token_id in _POCKET.encode_text(text))


def without_stump(dialect: Dialect, text: str) -> str:
    """Remove the beginning of a marker that is too short, or too much of a word, to be taken for one."""
    stumps = [m[:1] for m in dialect.markers]
    stumps += [m[:n] for m in dialect.markers if m[0].isalnum() for n in range(1, len(m))]
    longest = max((stump for stump in stumps if text.endswith(stump)), key=len, default="")
    return text[: len(text) - len(longest)].rstrip(" \t\r\n")


def begins(one: Folded, other: Folded) -> bool:
    """Whether a message is the beginning of another."""
    if not other.reasoning.startswith(one.reasoning) or not other.content.startswith(one.content):
        return False
    if len(one.calls) > len(other.calls):
        return False
    return all(
        call.name == later.name and later.arguments.startswith(call.arguments)
        for call, later in zip(one.calls, other.calls, strict=False)
    )


def _reordered(dialect: Dialect) -> Iterator[Dialect]:
    """Yield the dialect with each other section first that can be written."""
    sections = dialect.tool.sections if dialect.tool is not None else ()
    for number in range(1, len(sections)):
        if sections[number].loose:
            continue
        turned = (*sections[number:], *sections[:number])
        yield Dialect(msgspec.structs.replace(dialect.tool, sections=turned), dialect.reasoning)  # type: ignore[type-var]


@cache
def reordered() -> list[tuple[Dialect, Dialect]]:
    """Return dialects of several sections, each with the same dialect that has another section first."""
    return [(dialect, other) for dialect in SEPARATING_DIALECTS for other in _reordered(dialect)]


def fenced(text: str) -> bool:
    """Whether a backtick of the text stands before a fence around calls, which then begins a character too early."""
    return "````" in text

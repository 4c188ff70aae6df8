"""Read JSON from a cursor: values that are passed on while they come, and short strings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from plumbline.answer.dialects.streams.cursor import (
    Cursor,
    EndOfOutputError,
    Finder,
    MalformedError,
    Steps,
    finder,
)
from plumbline.answer.dialects.streams.json_quotes import CLOSING, NO_MARKERS, unclosed_key
from plumbline.answer.dialects.streams.json_scanner import JsonScanner

__all__ = ["json_key", "json_string", "json_value", "readable_object"]

_SHORT_STRING = re.compile(r'"([^"\\\x00-\x1f]*)("?)')
_BARE_NAME = re.compile(r"[-.\w$]+")
_AT_ONCE = 48


def json_value(
    cursor: Cursor, write: Callable[[str], None], *, markers: Finder = NO_MARKERS, nested: bool = False
) -> Steps[None]:
    """Read one JSON value and pass it on while it comes; see `JsonScanner`.

    Args:
        cursor: stands before the value.
        write: takes the JSON.
        markers: what ends the value where it comes outside strings. Brackets that are open there are closed.
        nested: the value is part of other JSON.

    Raises:
        MalformedError: a marker comes before the value is complete.
        EndOfOutputError: the output ended inside the value.
    """
    scanner = JsonScanner(markers=markers, nested=nested)
    while True:
        out: list[str] = []
        closed = cursor.closed and not cursor.cut
        try:
            scanner.feed(cursor.text, cursor.pos, out, closed=closed)
            cursor.pos = scanner.stopped
            if not scanner.done and cursor.closed and cursor.cut:
                _end_string(scanner, cursor, out)
                raise EndOfOutputError("the token limit cut the JSON")
            if not scanner.done and (scanner.marked or closed):
                scanner.close(out)
        except EndOfOutputError as error:
            if scanner.marked:
                raise MalformedError("the JSON is not complete before a marker") from error
            raise
        finally:
            cursor.pos = scanner.stopped
            if piece := "".join(out):
                write(piece)
        if scanner.done:
            return
        yield


def _end_string(scanner: JsonScanner, cursor: Cursor, out: list[str]) -> None:
    """Read a quote where the output was cut, which ends a string for all that is known."""
    if scanner.opened_string and cursor.text[cursor.pos : cursor.pos + 1] in (*CLOSING,):
        scanner.feed(cursor.text[: cursor.pos + 1], cursor.pos, out, closed=True)
    scanner.flush(out)
    scanner.stopped = len(cursor.text)


def readable_object(text: str) -> str:
    """Return the JSON object that a text is, with what can be read of it if it breaks off or has defects.

    Returns:
        Valid JSON; empty if the text does not begin as an object.
    """
    text = text.strip()
    if not text.startswith("{"):
        return ""
    scanner, out = JsonScanner(), list[str]()
    try:
        scanner.feed(text, 0, out, closed=True)
    except MalformedError:
        return ""
    if not scanner.done:
        scanner.complete(out)
    return "".join(out)


def json_key(cursor: Cursor) -> Steps[str]:
    """Read a key as `json_string` does, also without its closing quote."""
    char = yield from cursor.peek()
    while char and char in CLOSING:
        key = unclosed_key(cursor.text, cursor.pos + 1, char, closed=cursor.closed)
        if key:
            cursor.pos += 1 + len(key)
            return key
        if key is not None:
            break
        yield
    return (yield from json_string(cursor))


def json_string(cursor: Cursor, limit: int = 256) -> Steps[str]:
    """Read a short string, such as a key or a name, in any quotes or as a word, and decode it.

    Raises:
        MalformedError: other text comes, or the string is longer than `limit`.
    """
    char = yield from cursor.peek()
    if char and _BARE_NAME.match(char):
        return (yield from cursor.run(_BARE_NAME, limit))
    if not char or char not in CLOSING:
        cursor.fail("expected a string")
    while True:  # Most names are plain and short. They are taken as they stand, once they are complete.
        match = _SHORT_STRING.match(cursor.text, cursor.pos)
        if match is None or cursor.closed or match.end() - cursor.pos > _AT_ONCE:
            break
        if match.group(2):
            cursor.pos = match.end()
            return match.group(1)
        if match.end() < len(cursor.text):
            break
        yield
    text = yield from _raw_string(cursor, CLOSING[char], limit)
    try:
        value = json.loads(f'"{text}"', strict=False)
    except ValueError:
        return text
    assert isinstance(value, str)
    return value


def _raw_string(cursor: Cursor, ends: str, limit: int) -> Steps[str]:
    """Read a string through its closing quote, one of `ends`, and return what stands inside, with its escapes."""
    cursor.pos += 1
    closing, found = finder(*ends, "\\"), ""
    while True:
        piece, marker = yield from cursor.collect(closing)
        found += piece
        if len(found) > limit:
            raise MalformedError(f"a name is longer than {limit} characters")
        if marker != "\\":
            return found
        found += marker + (yield from cursor.peek())
        cursor.pos += 1

"""Find what has no meaning around calls: words after the marker of calls, and ends of calls that end none.

    <tool_call>Let me look.<function=get>…       the marker belongs to the call, the words are text
    Let me look.</tool_call>                     the end is nothing
    <|tool_call>…<tool_call|><|tool_             a beginning behind a call is nothing at the end of the answer

Both are certain only from what follows, so these readers look ahead and read nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from plumbline.answer.dialects.parsers.cursor_parser import CursorParser
from plumbline.answer.dialects.spec.call_format import declared
from plumbline.answer.dialects.spec.markers import is_control
from plumbline.answer.dialects.streams.cursor import Cursor, Finder, Steps, finder
from plumbline.answer.events import TextDelta, ToolCallStart

__all__ = ["last_noise", "stray_ends", "words_before_call"]

_WORDS = re.compile(r"[^<>(){}\[\]`]{0,1024}")
_NAME = re.compile(r"(?:call:\s{0,4})?([-.\w]*)[ \t\r\n]{0,4}\Z")
"""The name of a tool, in formats that begin with it."""
_SPOKEN = re.compile(r"(?:\n\s*)?\S.*(?:[.!?\u2026]\s*|\n[ \t\r]*)\Z", re.DOTALL)
"""A sentence, or lines. What a space sets off from the marker is about it: `<tool_call> begins a call.`"""
_SPACE = re.compile(r"\s{0,64}")
_END = re.compile(r"</[-.\w]{0,64}>?\s{0,16}\Z")
_FAR = 4096
"""Characters in which a call must be certain."""
_PIECE = 64
"""Characters that a scout reads at once, because most scouts end soon."""


def words_before_call(
    cursor: Cursor, marker: str, item: str, tools: Collection[str], scout: CursorParser
) -> Steps[int]:
    """Return how many characters before a call are words, if words stand at the cursor and a call certainly follows.

    Args:
        cursor: stands after the marker of a section.
        marker: that marker.
        item: the control token that begins each call of the section, if its marker is one, too. Nobody writes about
            these, so the words may be of any form.
        tools: the names of the tools that may be called.
        scout: a parser that has read nothing. It reads the call, to see whether it is one.
    """
    while (match := _WORDS.match(cursor.text, cursor.pos)) is not None and match.end() == len(cursor.text):
        if cursor.closed:
            return 0
        yield
    words = "" if match is None else match.group()
    begins = finder(item) if item else None
    while begins is not None:
        certain, found = begins.at(cursor.text, cursor.pos + len(words), cursor.closed)
        if not certain:
            yield
            continue
        if found is None or not words.strip():
            return 0
        scout.push(TextDelta(marker))
        return len(words) if (yield from _is_call(cursor, len(words), scout)) else 0
    name = _NAME.search(words)
    if name is not None and declared(name[1], tools) in tools:
        words = words[: name.start()]
    if _SPOKEN.match(words) is None:
        return 0
    scout.push(TextDelta(marker))
    return len(words) if (yield from _is_call(cursor, len(words), scout)) else 0


def stray_ends(
    cursor: Cursor, ends: Finder, closers: Collection[str], scout: CursorParser
) -> Steps[tuple[int, bool]]:
    """Find the ends of calls at the cursor, and whether only a call or the output's end follows them.

    Args:
        cursor: stands before an end.
        ends: the ends of calls and of their parts.
        closers: those of which one must be among them.
        scout: a parser that has read nothing. It reads what follows, to see whether it is a call.

    Returns:
        How many characters they are, and whether they mean nothing.
    """
    size, closed = 0, False
    while size <= _FAR:
        space = _SPACE.match(cursor.text, cursor.pos + size)
        assert space is not None
        certain, marker = ends.at(cursor.text, space.end(), cursor.closed)
        if marker is not None and certain:
            size = space.end() + len(marker) - cursor.pos
            closed = closed or marker in closers
        elif space.end() == len(cursor.text) and cursor.closed:
            return size, closed
        elif certain and space.end() < len(cursor.text):
            return size, closed and (yield from _is_call(cursor, space.end() - cursor.pos, scout))
        else:
            yield
    return size, False


def last_noise(cursor: Cursor, begins: Collection[str], *, tags: bool) -> Steps[int]:
    """Return the size of what stands between a call and the end of the answer, if it begins or ends another one.

    Args:
        cursor: stands behind a call.
        begins: the markers that begin sections. Those that are control tokens may break off.
        tags: the calls are in tags, so the end of any other tag is nothing, too.
    """
    longest = max(map(len, begins), default=0) + 1
    while True:
        rest = cursor.text[cursor.pos : cursor.pos + longest + _PIECE + 20]
        found = [one for one in begins if one.startswith(rest.rstrip())]
        if not (found or (tags and (_END.match(rest) or rest == "<"))):
            return 0
        if cursor.closed:
            whole = rest.rstrip() in begins or (tags and rest.rstrip().endswith(">"))
            return len(rest) if whole or is_control(rest) else 0
        yield


def _is_call(cursor: Cursor, ahead: int, scout: CursorParser) -> Steps[bool]:
    """Return whether the scout reads a call, and no text before it, from some characters ahead on."""
    read = ahead
    while read < ahead + _FAR:
        piece = cursor.text[cursor.pos + read : cursor.pos + read + _PIECE]
        read += len(piece)
        if piece:
            events = scout.push(TextDelta(piece))
        elif cursor.closed:
            events = scout.finish("length" if cursor.cut else "stop")
        else:
            yield
            continue
        for event in events:
            if isinstance(event, ToolCallStart):
                return True
            if isinstance(event, TextDelta) and event.text.strip():
                return False
        if not piece:
            break
    return False

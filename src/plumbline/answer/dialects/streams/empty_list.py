"""Look for an empty list of calls."""

from __future__ import annotations

import re

from plumbline.answer.dialects.streams.cursor import Cursor, Finder, Steps

__all__ = ["empty_list"]

_LIST = re.compile(r"\[[ \t\r\n]{0,16}\][ \t\r\n]{0,16}")
_BEGUN = re.compile(r"\[[ \t\r\n]{0,16}\Z")


def empty_list(cursor: Cursor, closers: Finder | None) -> Steps[int]:
    """Return the length of the empty list at the cursor, with the end of its section; 0 if none stands there.

    Models that mean to call nothing write it. The end of the output also ends a section.

    Args:
        cursor: stands before a bracket, and stays there.
        closers: the ends of the section, if it has any.
    """
    while True:
        text, pos = cursor.text, cursor.pos
        match = _LIST.match(text, pos)
        if match is None:
            if cursor.closed or _BEGUN.match(text, pos) is None:
                return 0
        elif match.end() == len(text):
            if cursor.closed:
                return 0 if cursor.cut else match.end() - pos
        elif closers is None:
            return 0
        else:
            certain, marker = closers.at(text, match.end(), cursor.closed and not cursor.cut)
            if certain or cursor.closed:
                return 0 if marker is None else match.end() - pos + len(marker)
        yield

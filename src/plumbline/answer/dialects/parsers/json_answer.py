"""Parse answers that are one JSON object each: `{"tool_calls": […]}`, `{"tool_call": {…}}` or `{"response": "…"}`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from plumbline.answer.dialects.parsers.marker_parser import MarkerParser
from plumbline.answer.dialects.streams.cursor import EndOfOutputError, MalformedError, Steps, finder
from plumbline.answer.dialects.streams.json_stream import json_value
from plumbline.answer.events import OutputEvent

__all__ = ["JsonAnswerParser"]

_ENDS = finder('"', "\\")
_LONGEST = 96
"""Most characters from the brace of an object to the colon after its first key."""
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class JsonAnswerParser(MarkerParser):
    """Parse an answer in an object where a text or a call may begin; see `MarkerParser`.

    The key of the object determines its value: the calls of the section with that key, or the text. Any other object
    is text as it stands.
    """

    _in_string = False
    """The text is a JSON string, which has begun."""

    def finish_in_text(self) -> list[OutputEvent]:
        """Parse what is left of an output that a stop string has ended in its text, or in the string with the text."""
        return self.finish("length") if self._in_string else super().finish_in_text()

    def _boundary(self) -> Steps[bool]:
        if (yield from super()._boundary()):
            return True
        if self._next_marker is not None or (yield from self._cursor.peek()) != "{":
            return False
        return (yield from self._object())

    def _object(self) -> Steps[bool]:
        """Read an object with a known key; any other is text. Returns whether it was calls or an answer."""
        cursor, tool = self._cursor, self._markers.tool
        assert tool is not None
        sections = {section.open[0].split('"')[1]: section for section in tool.sections}
        begun = cursor.offset
        key, raw = yield from self._key((tool.answer_key, *sections))
        if key in sections:
            return (yield from self._section((sections[key],), raw, self._content))
        if key:
            self._content.flush()
            self._in_string = True
            yield from self._response()
            self._in_string = False
            self._content.drop()
        return cursor.offset > begun

    def _key(self, keys: tuple[str, ...]) -> Steps[tuple[str, str]]:
        """Read through the colon after the first key if it is one of these.

        Returns:
            The key, and what was read; both empty if the object is text. Nothing was read then, but the beginning of a
            key at the cut end of the output.
        """
        cursor = self._cursor
        whole = _pattern(keys)
        while True:
            match = whole.match(cursor.text, cursor.pos)
            if match is not None:
                cursor.pos = match.end()
                return match[1], match[0]
            if not _may_become(cursor.text[cursor.pos : cursor.pos + _LONGEST], keys):
                return "", ""
            if cursor.closed:
                if cursor.cut and len(cursor.text) - cursor.pos > 1:
                    cursor.pos = len(cursor.text)
                return "", ""
            yield

    def _response(self) -> Steps[None]:
        """Pass on the value as text: a string without its escapes, anything else as the JSON that it is."""
        cursor = self._cursor
        yield from cursor.space()
        try:
            if (yield from cursor.peek()) == '"':
                cursor.pos += 1
                yield from self._string()
            else:
                yield from json_value(cursor, lambda text: self._emit_text(text, cursor.offset - len(text)))
        except MalformedError as error:
            if not (isinstance(error, EndOfOutputError) and self._reason == "length"):
                self._warn(f"the answer is not valid JSON: {error}")
            return
        yield from cursor.space()
        yield from cursor.take("}")

    def _string(self) -> Steps[None]:
        """Decode the rest of a string, and pass it on while it comes."""
        cursor = self._cursor
        while True:
            marker = yield from cursor.until(_ENDS, self._emit_text)
            if marker is None:
                raise EndOfOutputError("expected the end of a string")
            if marker == '"':
                return
            char = yield from cursor.peek()
            if not char:
                raise EndOfOutputError("expected an escape")
            cursor.pos += 1
            if char != "u":
                self._emit_text(_ESCAPES.get(char, char), cursor.offset - 1)
                continue
            code = yield from self._code()
            if 0xD800 <= code < 0xDC00 and (yield from cursor.take("\\u")):
                low = yield from self._code()
                if 0xDC00 <= low < 0xE000:
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                else:
                    self._emit_text("\ufffd", cursor.offset - 1)
                    code = low
            self._emit_text("\ufffd" if 0xD800 <= code < 0xE000 else chr(code), cursor.offset - 1)

    def _code(self) -> Steps[int]:
        """Read four hexadecimal digits."""
        cursor = self._cursor
        digits = ""
        while len(digits) < 4:
            digit = yield from cursor.peek()
            if not digit or digit not in "0123456789abcdefABCDEF":
                cursor.fail("expected a hexadecimal digit")
            digits += digit
            cursor.pos += 1
        return int(digits, 16)


@lru_cache(maxsize=16)
def _pattern(keys: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of the beginning of an object with one of these keys."""
    return re.compile(rf'\{{\s{{0,24}}"({"|".join(map(re.escape, keys))})"\s{{0,24}}:')


def _may_become(text: str, keys: tuple[str, ...]) -> bool:
    """Whether a text may go on so that the pattern of the keys matches it."""
    rest = text[1:].lstrip()
    blank = len(text) - 1 - len(rest)
    if blank > 24 or not rest:
        return blank <= 24
    return any(
        name.startswith(rest)
        or (rest.startswith(name) and len(rest) - len(name) <= 24 and rest.rstrip() == name)
        for name in (f'"{key}"' for key in keys)
    )

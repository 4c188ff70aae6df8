"""Read a call in braces, also with the quotes of JSON and with quotes inside strings; see `gemma`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from plumbline.answer.dialects.formats.braces.lookahead import QuoteLookahead, after_space
from plumbline.answer.dialects.spec.call_format import CallSink
from plumbline.answer.dialects.streams.coercion import allowed_types, coerce, part_schema
from plumbline.answer.dialects.streams.cursor import Cursor, EndOfOutputError, MalformedError, Steps, finder
from plumbline.answer.dialects.streams.json_text import quoted, quoted_text

__all__ = ["BraceReader"]

_BARE = re.compile(r"[^,{}\[\]<\n]+")
_SHORT_KEY = re.compile(r"([A-Za-z_][A-Za-z_0-9]{0,47})([:=]?)")
_SHORT_VALUE = re.compile(r"([-+.0-9A-Za-z_]{1,48})(?=[,}\]])")
"""Most keys and values. A complete one is read in one piece, which is faster."""
_IN_PARENTHESES = re.compile(r"[^,(){}\[\]<\n]+")
_STRING = frozenset(("string",))
_IN_LIST = re.compile(r"[,\]]")
_MAX_DEPTH = 32
_MAX_BARE = 4096
"""Characters of a value without a quote."""
_BOUND = 256
"""Characters after a quote that are examined. A quote that is undecided after them ends the string."""

Write = Callable[[str], None]


class BraceReader:
    """Read the arguments of one call.

    A string ends at a quote after which the call continues: with a comma and a parameter of the tool, or with brackets
    and the end of the call. Any other quote belongs to the string, as a double quote.

    Args:
        quote: the family's quote.
        cursor: stands before the brace.
        call: takes the call, which has been announced.
        root: the parameters of the tool.
    """

    def __init__(self, quote: str, cursor: Cursor, call: CallSink, root: Mapping[str, Any]) -> None:
        self._quote = quote
        self._cursor = cursor
        self._call = call
        self._root = root
        properties = root.get("properties")
        parameters = frozenset(properties) if isinstance(properties, Mapping) else frozenset[str]()
        self._lookahead = QuoteLookahead(quote, call.ends, parameters)

    def read(self) -> Steps[None]:
        """Read the object of the arguments."""
        bracket = yield from self._cursor.peek()
        yield from self._object(self._call.arguments, self._root, "", bracket)

    def _value(self, write: Write, schema: Any, stack: str, names: Collection[str] = ()) -> Steps[None]:
        """Read one value.

        Args:
            write: takes its JSON.
            schema: its schema.
            stack: the brackets around it.
            names: the members that may come after it; empty if any may.
        """
        cursor = self._cursor
        if len(stack) > _MAX_DEPTH:
            raise MalformedError("the value is nested too deeply")
        types = allowed_types(schema, self._root)
        char = cursor.text[cursor.pos] if cursor.pos < len(cursor.text) else (yield from cursor.peek())
        if char == "{":
            yield from self._object(write, schema, stack)
        elif char == "[":
            yield from self._array(write, schema, stack)
        elif char == self._quote[0] and (yield from cursor.take(self._quote)):
            yield from self._text(write, self._quote, types, stack, names)
        elif char and char in "\"'":
            cursor.pos += 1
            yield from self._text(write, char, types, stack, names)
        elif (not types or "string" in types) and (yield from self._is_unopened(stack, names)):
            yield from self._text(write, self._quote, types, stack, names)
        else:
            match = _SHORT_VALUE.match(cursor.text, cursor.pos)
            if match is not None:
                cursor.pos = match.end()
                text = match.group()
            else:
                bare = _IN_PARENTHESES if stack.startswith("(") else _BARE
                text = yield from cursor.run(bare, _MAX_BARE)
            if not text or (
                cursor.pos >= len(cursor.text) and cursor.cut
            ):  # `run` has waited for what follows.
                cursor.fail("expected a value")
            # Strings have quotes, so a bare value is one only where no other type is allowed or fits.
            write(coerce(text.strip(), types - _STRING or types))

    def _is_unopened(self, stack: str, names: Collection[str]) -> Steps[bool]:
        """Return whether a string begins here without its quote: the next quote closes one."""
        cursor, ends = self._cursor, self._call.ends
        keys = [name for name in names if name] or None
        while True:
            rest = cursor.text[cursor.pos : cursor.pos + _MAX_BARE]
            end, marker = ends.search(rest, 0, cursor.closed)
            size = rest.find(self._quote, 0, end)
            before = rest[: end if size < 0 else size]
            if (stack.endswith("[") and _IN_LIST.search(before)) or self._lookahead.has_member(before, keys):
                return False
            if size >= 0:
                return bool(before.strip()) and before.rstrip()[-1] not in ":,[{"
            if marker is not None or cursor.closed or len(rest) == _MAX_BARE:
                return False
            yield

    def _text(
        self, write: Write, quote: str, types: frozenset[str], stack: str, names: Collection[str]
    ) -> Steps[None]:
        """Read the rest of a string, and pass it on while it comes, unless it stands for a value of another type."""
        if types and "string" not in types:
            parts: list[str] = []
            yield from self._string(parts.append, parts.append, quote, stack, names)
            write(coerce("".join(parts), types))
            return

        def write_text(piece: str) -> None:
            write(quoted_text(piece))

        write('"')
        yield from self._string(write_text, write, quote, stack, names)
        write('"')

    def _string(
        self, text: Write, escaped: Write, quote: str, stack: str, names: Collection[str]
    ) -> Steps[None]:
        """Read a string through its end: `text` takes what stands there, `escaped` what is escaped for JSON already."""
        cursor = self._cursor
        ends = finder(quote, *("" if quote == self._quote else "\\"), *self._call.ends.markers)
        quoting = False
        while True:
            marker = yield from cursor.until(ends, lambda piece, _: text(piece))
            if marker is None:
                raise EndOfOutputError("expected the end of a string")
            if marker == "\\":
                char = yield from cursor.peek()
                if char and char in "\"\\/bfnrt'":
                    cursor.pos += 1
                    escaped("'" if char == "'" else f"\\{char}")
                else:
                    text("\\")
                continue
            if marker in self._call.ends.markers:
                cursor.unread(marker)
                if (yield from self._output_ends(len(marker))):
                    raise MalformedError("expected the end of a string")
                text(marker)
                cursor.pos += len(marker)
                continue
            more = quote != self._quote and (yield from cursor.take(self._quote))  # Models may write both.
            if (
                yield from self._is_closing_quote(stack, names, quoting, quote == self._quote and not quoting)
            ):
                return
            quoting = not quoting
            text('"' if quote == self._quote else quote)
            text(self._quote if more else "")

    def _output_ends(self, size: int) -> Steps[bool]:
        """Return whether the output ends after the next `size` characters."""
        cursor = self._cursor
        while True:
            last = cursor.pos + size + _BOUND
            end = after_space(cursor.text, cursor.pos + size, min(last, len(cursor.text)))
            if end < len(cursor.text) or end >= last:
                return False
            if cursor.closed:
                return True
            yield

    def _is_closing_quote(
        self, stack: str, names: Collection[str], quoting: bool, closes: bool
    ) -> Steps[bool]:
        """Determine from the text after a quote whether the quote ends the string.

        Args:
            stack: the brackets around the string.
            names: the members that may follow; empty if any may.
            quoting: see `QuoteLookahead.call_follows`.
            closes: see `QuoteLookahead.call_follows`.
        """
        cursor = self._cursor
        while True:
            end = min(len(cursor.text), cursor.pos + _BOUND)
            follows = self._lookahead.call_follows(
                cursor.text, cursor.pos, end, stack, names, quoting, closes
            )
            if follows is not None:
                return follows
            if cursor.closed or end - cursor.pos >= _BOUND:
                return True
            yield

    def _object(self, write: Write, schema: Any, stack: str, bracket: str = "{") -> Steps[None]:
        """Read an object, or arguments in parentheses."""
        cursor, root = self._cursor, self._root
        end = ")" if bracket == "(" else "}"
        cursor.pos += 1
        write("{")
        comma = ""
        keys: set[str] = set()
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        known = properties if isinstance(properties, Mapping) and not stack else {}
        while True:
            if cursor.has_space():
                yield from cursor.space()
            if cursor.skip(end):
                break
            if cursor.skip(","):
                continue
            key = yield from self._key()
            if cursor.has_space():
                yield from cursor.space()
            into = write
            if key in keys:  # The first one counts.
                into = _drop
            else:
                keys.add(key)
                write(f"{comma}{quoted(key)}: ")
                comma = ", "
            names = [name for name in known if name not in keys] if known else ()
            yield from self._value(
                into, part_schema(schema, root, key), f"{stack}{bracket}", names or ("",) if known else ()
            )
            if (yield from self._end_of_value(end)):
                break
        write("}")

    def _key(self) -> Steps[str]:
        """Read a key and the colon after it, or the equals sign that some models write."""
        cursor = self._cursor
        while (match := _SHORT_KEY.match(cursor.text, cursor.pos)) is not None:
            if match[2]:
                cursor.pos = match.end()
                return match[1]
            if cursor.closed or match.end() < len(cursor.text):
                break
            yield
        char = yield from cursor.peek()
        if (char and char in "\"'") or (yield from cursor.take(self._quote)):
            quote = char if char in "\"'" else self._quote
            cursor.pos += len(char) if char in "\"'" else 0
            key, _ = yield from cursor.collect(finder(quote))
            if cursor.has_space():
                yield from cursor.space()
            if not (yield from cursor.take("=")):
                yield from cursor.expect(":")
        else:
            key, _ = yield from cursor.collect(finder(":", "=", "{", "}", ",", self._quote))
            if cursor.text[cursor.pos - 1] not in ":=":
                raise MalformedError("expected a key and ':'")
        return key.strip()

    def _array(self, write: Write, schema: Any, stack: str) -> Steps[None]:
        cursor = self._cursor
        cursor.pos += 1
        write("[")
        comma = ""
        items = part_schema(schema, self._root, None)
        while True:
            if cursor.has_space():
                yield from cursor.space()
            if cursor.skip("]"):
                break
            if cursor.skip(","):
                continue
            write(comma)
            comma = ", "
            yield from self._value(write, items, f"{stack}[")
            if (yield from self._end_of_value("]")):
                break
        write("]")

    def _end_of_value(self, bracket: str) -> Steps[bool]:
        """Read what follows a value; return whether the object or array ends, with or without its bracket."""
        cursor, ends = self._cursor, self._call.ends
        if cursor.has_space():
            yield from cursor.space()
        if cursor.skip(","):
            return False
        char = yield from cursor.peek()
        missing = not cursor.cut if not char else (yield from cursor.look_for(ends)) is not None
        if bracket != "]" and (char.isalpha() or char == "_"):
            return False  # A comma is missing.
        if not missing:
            yield from cursor.expect(bracket)
        return True


def _drop(_: str) -> None:
    """Drop a piece."""

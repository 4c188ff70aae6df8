"""Read a call in braces, also with the quotes of JSON and with quotes inside strings; see `gemma`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from plumbline.answer.dialects.spec.call_format import CallSink
from plumbline.answer.dialects.streams.coercion import allowed_types, coerce, part_schema
from plumbline.answer.dialects.streams.cursor import Cursor, EndOfOutputError, MalformedError, Steps, finder
from plumbline.answer.dialects.streams.json_text import quoted, quoted_text

__all__ = ["BraceReader"]

_BARE = re.compile(r"[^,{}\[\]<\n]+")
_SHORT_KEY = re.compile(r"([A-Za-z_][A-Za-z_0-9]{0,47})([:=]?)")
_SHORT_VALUE = re.compile(r"([-+.0-9A-Za-z_]{1,48})(?=[,}\]])")
"""Most keys and values. They are taken as they stand once they are complete, which costs less."""
_SPACE = re.compile(r"[ \t\r\n]*")
_KEY_AFTER = re.compile(
    r"""(?:QUOTE|["'])?([^\s,:{}\[\]<>|"']{1,64})(?:QUOTE|["'])?[ \t\r\n]{0,8}([:=])""".replace(
        "QUOTE", r"<[^<>]{1,16}>"
    )
)
_KEY_BEGUN = re.compile(
    r"""(?:<[^<>]{0,16}(?:>|\Z)|["'])?[^\s,:{}\[\]<>|"']{0,64}(?:<[^<>]{0,16}(?:>|\Z)|["'])?[ \t\r\n]{0,8}\Z"""
)
_VALUE_AFTER = re.compile(r"[\[{\-0-9]|[Tt]rue|[Ff]alse|null|None")
_VALUE_BEGUN = re.compile(r"(?:[Tt](?:ru?)?|[Ff](?:a(?:ls?)?)?|n(?:ul?)?|N(?:on?)?)\Z")
_ANY_KEY = re.compile(r"[^,:={}\[\]]{1,200}")  # Whether a quote stands in it is looked at separately.
_STRING = frozenset(("string",))
_IN_LIST = re.compile(r"[,\]]")
_ANOTHER = re.compile(r",[ \t\r\n]*([A-Za-z_]\w{0,63})[ \t\r\n]*([:=])")
_MAX_DEPTH = 32
_MAX_BARE = 4096
"""Characters of a value without a quote."""
_BOUND = 256
"""Characters after a quote that are looked at. What is not decided by then ends the string."""

Write = Callable[[str], None]


class BraceReader:
    """Read the arguments of one call.

    A string ends at a quote after which the call goes on: with a comma and a parameter of the tool, or with brackets
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
        self._parameters = frozenset(properties) if isinstance(properties, Mapping) else frozenset[str]()
        """Names after which an equals sign stands for a colon. In prose it may stand behind any word."""

    def read(self) -> Steps[None]:
        """Read the object of the arguments."""
        yield from self._object(self._call.arguments, self._root, "")

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
                text = yield from cursor.run(_BARE, _MAX_BARE)
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
            if (stack.endswith("[") and _IN_LIST.search(before)) or self._another(before, keys):
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
        odd = False
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
                if (yield from self._nothing_follows(len(marker))):
                    raise MalformedError("expected the end of a string")
                text(marker)
                cursor.pos += len(marker)
                continue
            if (yield from self._ended(stack, names, odd, quote == self._quote and not odd)):
                return
            odd = not odd
            text('"' if quote == self._quote else quote)

    def _nothing_follows(self, size: int) -> Steps[bool]:
        """Return whether the output ends after the next `size` characters."""
        cursor = self._cursor
        while True:
            last = cursor.pos + size + _BOUND
            end = _skipped(cursor.text, cursor.pos + size, min(last, len(cursor.text)))
            if end < len(cursor.text) or end >= last:
                return False
            if cursor.closed:
                return True
            yield

    def _ended(self, stack: str, names: Collection[str], odd: bool, own: bool) -> Steps[bool]:
        """Determine from what follows whether a quote that was read ends the string.

        Args:
            stack: the brackets around the string.
            names: the members that may come after it; empty if any may.
            odd: an odd number of quotes inside the string came before.
            own: it is the family's quote, and none inside the string is open. So whatever the format allows ends it.
        """
        cursor = self._cursor
        while True:
            end = min(len(cursor.text), cursor.pos + _BOUND)
            found = self._goes_on(cursor.text, cursor.pos, end, stack, names, odd, own)
            if found is not None:
                return found
            if cursor.closed or end - cursor.pos >= _BOUND:
                return True
            yield

    def _goes_on(
        self, text: str, pos: int, end: int, stack: str, names: Collection[str], odd: bool, own: bool
    ) -> bool | None:
        depth = len(stack)
        while True:
            pos = _skipped(text, pos, end)
            if pos >= end:
                return None
            char = text[pos]
            if not depth or char in self._call.ends.starts:
                certain, marker = self._call.ends.at(text, pos, False)
                complete = not depth and (own or char in "}])")
                return (marker is not None or complete) if certain else None
            if char in "}]":
                if stack[depth - 1] != ("{" if char == "}" else "["):
                    return False
                depth -= 1
                pos += 1
                continue
            if char != ",":  # A comma may be missing before a parameter of the tool.
                return depth == len(stack) and bool(names) and self._key_follows(text, pos, end, names)
            pos = _skipped(text, pos + 1, end)
            if pos >= end:
                return None
            if text[pos] in "}]":
                continue
            if stack[depth - 1] == "{":
                return self._member_follows(text, pos, end, names if depth == len(stack) else (), own)
            return self._element_follows(text, pos, end, odd)

    def _member_follows(
        self, text: str, pos: int, end: int, names: Collection[str], own: bool
    ) -> bool | None:
        found = self._key_follows(text, pos, end, names)
        if found or not own:
            return found
        other = self._any_key_follows(text, pos, end)
        return None if found is None and not other else other

    def _key_follows(self, text: str, pos: int, end: int, names: Collection[str]) -> bool | None:
        match = _KEY_AFTER.match(text, pos, end)
        if match is not None:
            return match[1] in names if names else self._is_key(match)
        return None if _KEY_BEGUN.match(text, pos, end) else False

    def _another(self, text: str, names: Collection[str] | None) -> bool:
        """Return whether another member begins in a text: one of these, or any if None."""
        return any(
            self._is_key(match) if names is None else match[1] in names for match in _ANOTHER.finditer(text)
        )

    def _is_key(self, match: re.Match[str]) -> bool:
        return match[2] == ":" or match[1] in self._parameters

    def _any_key_follows(self, text: str, pos: int, end: int) -> bool | None:
        """Return whether any key and the beginning of a value in the family's own format stand here."""
        quote = self._quote
        if text.startswith(quote, pos):
            close = text.find(quote, pos + len(quote), end)
            if close < 0:
                return None
            pos = _skipped(text, close + len(quote), end)
        else:
            match = _ANY_KEY.match(text, pos, end)
            if match is None or quote in match.group():
                return False
            if match.end() >= end:
                return None
            pos = match.end()
        if pos >= end:
            return None
        if text[pos] not in ":=":
            return False
        pos = _skipped(text, pos + 1, end)
        if pos >= end or quote.startswith(text[pos:end]):
            return None
        if text.startswith(quote, pos) or _VALUE_AFTER.match(text, pos, end):
            return True
        return None if _VALUE_BEGUN.match(text, pos, end) else False

    def _element_follows(self, text: str, pos: int, end: int, odd: bool) -> bool | None:
        if _VALUE_AFTER.match(text, pos):
            return True
        quote = text[pos] if text[pos] in "\"'" else self._quote
        if not text.startswith(quote, pos):
            begun = quote.startswith(text[pos:end]) or _VALUE_BEGUN.match(text, pos, end)
            return None if begun else False
        if not odd:
            return True
        close = text.find(quote, pos + len(quote), end)
        after = _skipped(text, close + len(quote), end) if close >= 0 else end
        return None if after >= end else text[after] in ",]"

    def _object(self, write: Write, schema: Any, stack: str) -> Steps[None]:
        cursor, root = self._cursor, self._root
        cursor.pos += 1
        write("{")
        comma = ""
        keys: set[str] = set()
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        known = properties if isinstance(properties, Mapping) and not stack else {}
        while True:
            if cursor.has_space():
                yield from cursor.space()
            if cursor.skip("}"):
                break
            if cursor.skip(","):
                continue
            key = yield from self._key()
            if cursor.has_space():
                yield from cursor.space()
            into = write
            if key in keys:  # The first one counts.
                into = _ignore
            else:
                keys.add(key)
                write(f"{comma}{quoted(key)}: ")
                comma = ", "
            names = [name for name in known if name not in keys] if known else ()
            yield from self._value(
                into, part_schema(schema, root, key), f"{stack}{{", names or ("",) if known else ()
            )
            if (yield from self._closed("}")):
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
            if (yield from self._closed("]")):
                break
        write("]")

    def _closed(self, bracket: str) -> Steps[bool]:
        """Read what stands after a value. Returns whether the object or array ends, with its bracket or without."""
        cursor, ends = self._cursor, self._call.ends
        if cursor.has_space():
            yield from cursor.space()
        if cursor.skip(","):
            return False
        char = yield from cursor.peek()
        missing = not cursor.cut if not char else (yield from cursor.look_for(ends)) is not None
        if bracket == "}" and (char.isalpha() or char == "_"):
            return False  # A comma is missing.
        if not missing:
            yield from cursor.expect(bracket)
        return True


def _skipped(text: str, pos: int, end: int) -> int:
    match = _SPACE.match(text, pos, end)
    assert match is not None
    return match.end()


def _ignore(_: str) -> None:
    """Drop a piece."""

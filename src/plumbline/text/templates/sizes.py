"""Bound what one operation of a template makes: `"x" * 10**9` takes a gigabyte before anything can look at it.

Each operation that can make more than it was given checks the size of its result first. What is made by many small
operations is bounded by their time (`bounds.py`), and so is the text, which they write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import jinja2
from jinja2.filters import FILTERS, make_attrgetter

__all__ = [
    "LONGEST",
    "checked_call",
    "checked_filters",
    "checked_format",
    "checked_operation",
    "checked_text",
    "joined",
]

LONGEST = 1 << 26
"""Characters of one value, six times a request of 10 MiB."""
_ENTRY = 64
"""Characters that an entry of a list counts for."""
_DIGITS = re.compile(r"\d{7,}")
"""A width of a format."""
_MOST_BITS = 4096
"""Of a power."""
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


def _check(size: int) -> None:
    if size > LONGEST:
        raise jinja2.TemplateError(f"it makes a value of more than {LONGEST} bytes")


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return len(value) * _ENTRY if isinstance(value, Sized) else 0


def _written(value: Any) -> int:
    """Return about how many characters a value has as text; lists may have one long text many times."""
    size, waiting = 0, [value]
    while waiting and size <= LONGEST:  # A list may also have itself.
        each = waiting.pop()
        size += len(each) if isinstance(each, str) else _ENTRY
        if isinstance(each, Mapping):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            waiting += each
    return size


def checked_operation(operator: str, left: Any, right: Any) -> None:
    """Check the result of `left operator right`.

    Raises:
        TemplateError: of jinja2, if it would be too large.
    """
    match operator:
        case "*":
            times = right if isinstance(right, int) else left if isinstance(left, int) else 1
            _check((_length(left) or _length(right)) * max(0, times))
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
        case "+":
            _check(_length(left) + _length(right))
        case "**":
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() * max(1, right))
        case "%" if isinstance(left, str):
            checked_format(left, right if isinstance(right, tuple) else (right,))


def _check_bits(bits: int) -> None:
    if bits > _MOST_BITS:
        raise jinja2.TemplateError(f"it makes a number of more than {_MOST_BITS} bits")


def checked_format(pattern: str, values: Iterable[Any]) -> None:
    """Check the result of a format, which may name a width, or take it from a value.

    Raises:
        TemplateError: of jinja2, if it would be too large.
    """
    given = list(values)
    widths = [int(digits) for digits in _DIGITS.findall(pattern)]
    if "*" in pattern or "{" in pattern:
        widths += [value for value in given if isinstance(value, int)]
    # The same value may be named several times.
    largest = max(map(_written, given), default=0)
    fields = pattern.count("%") + pattern.count("{")
    _check(len(pattern) + sum(map(abs, widths)) + largest * fields)


def checked_call(method: Any, values: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Check the result of a method of a text or a list.

    Raises:
        TemplateError: of jinja2, if it would be too large.
    """
    text = getattr(method, "__self__", None)
    name = getattr(method, "__name__", "")
    if not isinstance(text, str | bytes):
        return
    if name in _PADDING:
        widths = [value for value in (*values, *named.values()) if isinstance(value, int)]
        tabs = text.count("\t") if name == "expandtabs" and isinstance(text, str) else 1
        _check(len(text) + sum(map(abs, widths)) * tabs)
    elif name == "replace" and len(values) >= 2:
        _check_replace(text, values[0], values[1])
    elif name == "join" and values and isinstance(values[0], list | tuple):
        _check(sum(_length(value) + len(text) for value in values[0]))


def _check_replace(text: Any, old: Any, new: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        _check(len(text) + text.count(old) * max(0, len(new) - len(old)))


def checked_filters() -> dict[str, Callable[..., Any]]:
    """Return those of jinja2's filters that can make much of little, with a check before each."""
    filters: dict[str, Callable[..., Any]] = FILTERS

    def padded(inner: Callable[..., Any]) -> Callable[..., Any]:
        def run(value: Any, *given: Any, **named: Any) -> Any:
            widths = [each for each in (*given, *named.values()) if isinstance(each, int)]
            lines = str(value).count("\n") + 1 if inner is filters["indent"] else 1
            _check(sum(map(abs, widths)) * lines + _length(value))
            return inner(value, *given, **named)

        return run

    def replace(context: Any, value: Any, old: Any, new: Any, count: Any = None) -> Any:
        _check_replace(str(value), str(old), str(new))
        return filters["replace"](context, value, old, new, count)

    def join(context: Any, value: Any, d: Any = "", attribute: Any = None) -> Any:
        entries = list(value)
        if attribute is not None:
            entries = list(map(make_attrgetter(context.environment, attribute), entries))
        _check(sum(_length(each) + len(str(d)) for each in entries))
        return filters["join"](context, entries, d)

    def format_(value: Any, *given: Any, **named: Any) -> Any:
        checked_format(str(value), (*given, *named.values()))
        return filters["format"](value, *given, **named)

    found = {name: padded(filters[name]) for name in ("center", "indent", "batch", "slice", "wordwrap")}
    found["replace"] = jinja2.pass_eval_context(replace)
    found["join"] = jinja2.pass_eval_context(join)
    found["format"] = format_
    return found


def joined(*values: Any) -> str:
    """Return `a ~ b`.

    Raises:
        TemplateError: of jinja2, if it would be too large.
    """
    return checked_text(map(str, values))


def checked_text(pieces: Iterable[str]) -> str:
    """Join the pieces that a template writes.

    Raises:
        TemplateError: of jinja2, if they are too long.
    """
    found: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        _check(size)
        found.append(piece)
    return "".join(found)

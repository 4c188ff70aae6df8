"""Compile the patterns that find markers in text, and keep those that were used last."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

from plumbline.answer.dialects.streams.affixes import proper_prefixes

__all__ = ["PATTERNS", "MarkerPatterns", "PatternCache"]

_KEPT_CHARACTERS = 131_072
"""How many characters the markers with kept patterns have together. Each takes up to 400 bytes, so 50 MB in all."""
_LONGEST_KEPT = 4096
"""Patterns of markers with more characters together are not kept: they would displace many others."""
MarkerPatterns = tuple[re.Pattern[str] | None, re.Pattern[str], frozenset[str]]
"""The pattern of some markers, that of markers and their beginnings, and all proper beginnings."""


class PatternCache:
    """Keep the patterns of the markers that were used last, up to a number of characters.

    The parser of each request makes finders of the names of its tools, which are often those of the request before.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._kept: OrderedDict[tuple[str, ...], MarkerPatterns] = OrderedDict()
        self._lock = Lock()

    @property
    def kept(self) -> tuple[tuple[str, ...], ...]:
        """All groups of markers that have patterns here; the one that was used last is at the end."""
        return tuple(self._kept)

    def of(self, markers: tuple[str, ...]) -> MarkerPatterns:
        """Return the patterns of markers, which are compiled if they are not kept."""
        with self._lock:
            if markers in self._kept:
                self._kept.move_to_end(markers)
                return self._kept[markers]
        made, size = _compiled(markers), sum(map(len, markers))
        if size <= _LONGEST_KEPT:
            with self._lock:
                self._size += size if markers not in self._kept else 0
                self._kept[markers] = made
                while self._size > self._most:
                    self._size -= sum(map(len, self._kept.popitem(last=False)[0]))
        return made


PATTERNS = PatternCache(_KEPT_CHARACTERS)
"""The patterns of this process."""


def _compiled(markers: tuple[str, ...]) -> MarkerPatterns:
    longest_first = sorted(markers, key=len, reverse=True)
    whole = re.compile("|".join(map(re.escape, longest_first))) if markers else None
    return whole, re.compile(_whole_or_begun(markers)), frozenset(proper_prefixes(markers))


def _whole_or_begun(markers: Iterable[str], size: int = 0) -> str:
    """Build a pattern of markers, and of their beginnings at the end of the text.

    Args:
        markers: the markers, which have their first `size` characters in common. The pattern begins after these.
        size: the number of these characters.
    """
    longer: dict[str, list[str]] = {}
    for marker in markers:
        if len(marker) > size:
            longer.setdefault(marker[size], []).append(marker)
    options = [re.escape(char) + _whole_or_begun(those, size + 1) for char, those in longer.items()]
    if size and options:
        options.append(r"\Z")
    if size and any(len(marker) == size for marker in markers):
        options.append("")
    return f"(?:{'|'.join(options)})" if len(options) > 1 else "".join(options)

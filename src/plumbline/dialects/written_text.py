"""Values without types that are passed on while they are written, as soon as they are certain to be strings."""

from __future__ import annotations

from collections.abc import Callable

from plumbline.dialects.coercion import LOOKED_AT, coerce, is_text
from plumbline.dialects.json_text import quoted_text

__all__ = ["StringWriter", "unwrapped"]


class StringWriter:
    """Writes one value into the arguments of a call.

    Args:
        put: takes the JSON text of the value, piece by piece.
        types: what its schema allows; a string is among them, or nothing is known.
        wrapped: one line feed at each side belongs to the markup.
    """

    def __init__(self, put: Callable[[str], None], types: frozenset[str], *, wrapped: bool = False) -> None:
        self._put = put
        self._types = types
        self._wrapped = wrapped
        self._begun = self._first = False
        self._held: list[str] = []
        self._late = False
        """Only the end will show what it is."""
        self._feed = ""
        """A line feed that may be the last one."""
        if is_text("", types):
            self._begin()

    def write(self, piece: str, _: int = 0) -> None:
        """Take the next piece of the text."""
        if self._begun:
            self._pass(piece)
            return
        self._held.append(piece)
        if self._late:
            return
        begun = "".join(self._held)
        if is_text(begun, self._types):
            self._begin()
            self._pass(unwrapped(begun, end=False) if self._wrapped else begun)
        else:
            self._late = len(begun) >= LOOKED_AT

    def close(self) -> None:
        """The text is whole."""
        if self._begun:
            self._put('"')
            return
        text = "".join(self._held)
        self._put(coerce(unwrapped(text) if self._wrapped else text, self._types))

    def _begin(self) -> None:
        self._begun = True
        self._first = self._wrapped and not self._held
        self._put('"')

    def _pass(self, piece: str) -> None:
        if self._wrapped:
            piece = self._feed + piece
            self._feed = ""
            if self._first:
                piece = unwrapped(piece, end=False)
                self._first = False
            if piece.endswith("\n"):
                piece, self._feed = piece[:-1], "\n"
        self._put(quoted_text(piece))


def unwrapped(text: str, *, end: bool = True) -> str:
    """A text without one line feed at its beginning, and at its end."""
    text = text.removeprefix("\n")
    return text.removesuffix("\n") if end else text

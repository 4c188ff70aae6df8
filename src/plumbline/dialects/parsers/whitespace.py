"""Text between markup, and the white space that belongs to neither."""

from __future__ import annotations

from plumbline.dialects.streams.cursor import Write

__all__ = ["SPACE", "WhitespaceBuffer"]

SPACE = " \t\r\n"


class WhitespaceBuffer:
    """Text of one kind. White space at its end is held until more text shows that it belongs to it.

    Text that goes on behind markup keeps the white space before it, because without it two words would become one.
    """

    __slots__ = ("_emit", "_held", "_hold", "_skip", "_written")

    def __init__(self, emit: Write, *, hold: bool) -> None:
        self._emit = emit
        self._hold = hold
        self._held: list[tuple[str, int]] = []
        self._skip = False
        self._written = False

    def write(self, piece: str, offset: int) -> None:
        """More text."""
        if self._skip and not self._written:
            stripped = piece.lstrip(SPACE)
            offset += len(piece) - len(stripped)
            piece = stripped
        body = piece.rstrip(SPACE) if self._hold or self._skip else piece
        if body:
            self._skip = False
            self._written = True
            if self._held:
                for held, at in self._held:
                    self._emit(held, at)
                self._held = []
            self._emit(body, offset)
        if len(body) < len(piece):
            self._held.append((piece[len(body) :], offset + len(body)))

    def wait(self, space: str, offset: int) -> None:
        """White space of which it is not known yet whether it belongs to the text."""
        if self._written or not self._skip:
            self._held.append((space, offset))

    def drop(self) -> None:
        """Markup stands here: the white space before and after it is none of the text's."""
        self._held = []
        self._skip = True

    @property
    def at_line(self) -> bool:
        """What comes next begins a line, or is the first of this text after markup."""
        return self._skip or not self._written or any("\n" in held for held, _ in self._held)

    def flush(self) -> None:
        """The output has ended: what is held belongs to the text, unless nothing but markup stands before it."""
        if not self._skip:
            for held, at in self._held:
                self._emit(held, at)
        self._held = []

    def undecided_from(self, default: int) -> int:
        """The offset of the first character that is held."""
        return self._held[0][1] if self._held else default

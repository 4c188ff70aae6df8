"""Separate text from the white space between text and markup."""

from __future__ import annotations

from plumbline.answer.dialects.streams.code_fence import CodeFence
from plumbline.answer.dialects.streams.cursor import Write

__all__ = ["SPACE", "WhitespaceBuffer"]

SPACE = " \t\r\n"
_BEFORE_QUOTED = (" ", "\t", "`", "'", '"', "\u201c", "\u2018", "(", "<", "[", "{", ",", "/")
_QUOTES = ("`", "'", '"')
_BEFORE_QUOTE = (*SPACE, "(", "[", "{", ",", "/", "*")


class WhitespaceBuffer:
    """Emit text, and hold white space at its end back until more text shows that it belongs to the text.

    Text that goes on after markup keeps the white space before it: without that, two words would become one.

    Args:
        emit: takes a piece of text and its offset.
        hold: hold white space back; otherwise only after markup.
        dropped: takes white space that followed text, and its offset, where markup follows it.
    """

    __slots__ = ("_dropped", "_emit", "_held", "_hold", "_skip", "_tail", "_written", "fence")

    def __init__(self, emit: Write, *, hold: bool, dropped: Write | None = None) -> None:
        self._emit = emit
        self._dropped = dropped
        self._hold = hold
        self._held: list[tuple[str, int]] = []
        self._skip = False
        self._written = False
        self._tail = ""
        """The last two characters of the text."""
        self.fence: CodeFence | None = None
        """The code fences of the text, for a dialect that has markers which count at the beginning of a line only."""

    def write(self, piece: str, offset: int) -> None:
        """Add text."""
        if self.fence is not None:
            self.fence.read(piece)
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
                    self._tail = (self._tail + held[-2:])[-2:]
                self._held = []
            self._emit(body, offset)
            self._tail = (self._tail + body[-2:])[-2:]
        if len(body) < len(piece):
            self._held.append((piece[len(body) :], offset + len(body)))

    def wait(self, space: str, offset: int) -> None:
        """Add white space that may or may not belong to the text."""
        if self.fence is not None:
            self.fence.read(space)
        if self._written or not self._skip:
            self._held.append((space, offset))

    def drop(self) -> None:
        """Note that markup stands here. The white space before and after it is not text."""
        if self._dropped is not None and self.after_text() is not None:
            for held, at in self._held:
                self._dropped(held, at)
        self._held = []
        self._skip = True

    @property
    def begun(self) -> bool:
        """Whether there has been text."""
        return self._written

    @property
    def at_line(self) -> bool:
        """Whether a line begins here outside code, or the text after markup."""
        if self.fence is not None and self.fence.is_open:
            return False
        return self._skip or not self._written or any("\n" in held for held, _ in self._held)

    @property
    def sets_off(self) -> bool:
        """Whether a space or a quote stands at the end: what follows is a word of the text, even if it is markup."""
        last = self._held[-1][0] if self._held else self._tail
        return last.endswith(_BEFORE_QUOTED)

    @property
    def introduces(self) -> bool:
        """Whether a colon stands at the end: what follows is shown, even if it is markup."""
        return self._tail.endswith(":")

    @property
    def in_fence(self) -> bool:
        """Whether a code fence is open."""
        return self.fence is not None and self.fence.is_open

    @property
    def in_backtick(self) -> bool:
        """Whether the text ends with one backtick that other text stands before: code in a sentence begins there."""
        return self._tail[1:] == "`" and self._tail[0] != "`" and not (self._held or self._skip)

    @property
    def opened_quote(self) -> str:
        """The quote at the end of the text that opens a quotation, by what stands before it; empty if none does."""
        quote, before = self._tail[-1:], self._tail[:-1]
        opens = (
            quote in _QUOTES and (not before or before in _BEFORE_QUOTE) and not (self._held or self._skip)
        )
        return quote if opens else ""

    def flush(self) -> None:
        """End the output: white space that is held back is text, unless only markup stands before it."""
        if not self._skip:
            for held, at in self._held:
                self._emit(held, at)
        self._held = []

    def after_text(self) -> int | None:
        """Return the offset of white space that is held back and follows text; None if there is none."""
        return self._held[0][1] if self._held and self._written and not self._skip else None

    def undecided_from(self, default: int) -> int:
        """Return the offset of the first character that is held back, or the default."""
        return self._held[0][1] if self._held else default

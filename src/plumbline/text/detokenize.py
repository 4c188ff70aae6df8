"""Token ids to text as they come, complete characters only (SSE-09).

Each token is a run of raw bytes, known in advance. They are decoded as they come; a character whose bytes are spread
over several tokens appears when its last byte arrives. Nothing is decoded twice, and U+FFFD appears only where the
bytes are truly invalid.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

__all__ = ["Detokenizer"]


class Detokenizer:
    """The detokeniser of one choice.

    Args:
        table: the bytes of every token id; empty for tokens that have no text.
        hidden: ids whose bytes are left out although the table has some.

    Attributes:
        pending: the bytes of a character that is not complete yet, at most three.
    """

    __slots__ = ("_hidden", "_table", "pending")

    def __init__(self, table: Sequence[bytes], hidden: frozenset[int] = frozenset()) -> None:
        self._table = table
        self._hidden = hidden
        self.pending = b""

    def bytes_of(self, token_id: int) -> bytes:
        """What this token adds to the text, as bytes."""
        return b"" if token_id in self._hidden else self._table[token_id]

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete together, possibly empty."""
        # This runs once for every token of every answer, so it is written out flat: a call costs what decoding costs.
        table, hidden = self._table, self._hidden
        if len(token_ids) == 1 and not hidden:
            raw = table[token_ids[0]]
        else:
            raw = b"".join([table[token_id] for token_id in token_ids if token_id not in hidden])
        if self.pending:
            raw = self.pending + raw
            self.pending = b""
        text, used = utf_8_decode(raw, "replace")
        if used != len(raw):
            self.pending = raw[used:]
        return text

    def flush(self) -> str:
        """At the end: an incomplete character becomes U+FFFD."""
        text, self.pending = self.pending.decode("utf-8", "replace"), b""
        return text

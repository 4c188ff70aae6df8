"""Decode a stream of token ids to text, in complete characters only (SSE-09).

The bytes of each token are known in advance. A character that is spread over several tokens appears with its last byte.
Nothing is decoded twice, and U+FFFD appears only for invalid bytes.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

__all__ = ["Detokenizer"]


class Detokenizer:
    """Decode the tokens of one choice.

    Args:
        table: the bytes of every token id; empty for tokens that have no text.
        hidden: ids to leave out although the table has bytes for them.

    Attributes:
        pending: the bytes of a character that is not complete yet, at most three.
    """

    __slots__ = ("_hidden", "_table", "pending")

    def __init__(self, table: Sequence[bytes], hidden: frozenset[int] = frozenset()) -> None:
        self._table = table
        self._hidden = hidden
        self.pending = b""

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes that this token adds to the text."""
        return b"" if token_id in self._hidden else self._table[token_id]

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens complete, possibly empty."""
        # Runs for every token of every answer, so it is not split up: a call costs as much as decoding.
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
        """Return U+FFFD if the text ends in an incomplete character."""
        text, self.pending = self.pending.decode("utf-8", "replace"), b""
        return text

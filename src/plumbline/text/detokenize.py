"""Token ids to text, one token at a time, complete characters only (SSE-09).

For byte-level vocabularies each token is a run of raw bytes, known in advance. An incremental UTF-8 decoder joins them;
a character whose bytes are spread over several tokens appears when its last byte arrives. Nothing is decoded twice, and
U+FFFD appears only where the bytes are truly invalid.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["Detokenizer"]

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The detokeniser of one choice.

    Args:
        table: the bytes of every token id; empty for tokens that have no text.
        hidden: ids whose bytes are left out (special tokens, unless the client wants to see them).
    """

    __slots__ = ("_decoder", "_hidden", "_table")

    def __init__(self, table: Sequence[bytes], hidden: frozenset[int] = frozenset()) -> None:
        self._table = table
        self._hidden = hidden
        self._decoder = _utf8("replace")

    @property
    def pending(self) -> bytes:
        """The bytes of a character that is not complete yet."""
        return self._decoder.getstate()[0]

    def bytes_of(self, token_id: int) -> bytes:
        """What this token adds to the text, as bytes."""
        return b"" if token_id in self._hidden else self._table[token_id]

    def push(self, token_id: int) -> str:
        """The text that this token completes, possibly empty."""
        if token_id in self._hidden:
            return ""
        return self._decoder.decode(self._table[token_id])

    def flush(self) -> str:
        """At the end: an incomplete character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)

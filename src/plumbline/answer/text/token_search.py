"""Find the tokens of a vocabulary that contain a text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate

__all__ = ["TokenSearch"]


class TokenSearch:
    """Search the bytes of all tokens at once. A search scans about a megabyte; the last 256 results are kept.

    Args:
        table: the bytes of each token, by id.
        hidden: control tokens, which are never found.
    """

    def __init__(self, table: Sequence[bytes], hidden: Collection[int]) -> None:
        pieces = [b"" if token_id in hidden else piece for token_id, piece in enumerate(table)]
        self._ends = list(accumulate(map(len, pieces)))
        self._joined = b"".join(pieces)
        self.containing = lru_cache(maxsize=256)(self._containing)

    def _containing(self, text: str) -> frozenset[int]:
        """Return the ids of the tokens that contain this text, which is not empty."""
        wanted = text.encode()
        found: set[int] = set()
        place = self._joined.find(wanted)
        while place >= 0:
            token_id = bisect_right(self._ends, place)
            end = self._ends[token_id]
            if place + len(wanted) <= end:
                found.add(token_id)
                place = self._joined.find(wanted, end)
            else:  # The match spans two tokens.
                place = self._joined.find(wanted, place + 1)
        return frozenset(found)

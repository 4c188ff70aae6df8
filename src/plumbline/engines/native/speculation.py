"""Propose the next tokens of a request from what it has said before, so that one step verifies several of them.

Prompt lookup: if the last tokens occurred before, in the prompt or in the answer, what followed them then is proposed.
The step computes the proposed tokens after the last one and draws a token at each place, with the noise of that place
(`sampling.py` keys it by seed and position). A draw counts if all tokens before it were proposed rightly. So the tokens
are those of plain decoding, also at a temperature, where a row has the same bits in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["PromptLookup"]

_GRAM = 3
"""Last tokens that must have occurred before."""
_FIRST = 4
"""Tokens of the first proposal."""
_MOST = 16
"""Tokens of a proposal at most: more cost more than a row of a step that is bound by memory."""
_INDEXED_AT_ONCE = 2048
"""Tokens that one call indexes at most, in some milliseconds: streams wait for it."""
_LONGEST_PAUSE = 64
"""Tokens without a proposal after many wrong ones in a row."""


class PromptLookup:
    """The places of all runs of three tokens of one request; memory is proportional to its tokens."""

    __slots__ = ("_followers", "_indexed", "_length", "_misses", "_resume")

    def __init__(self) -> None:
        self._followers: dict[tuple[int, ...], int] = {}
        """Where the token after the latest occurrence of a run is."""
        self._indexed = _GRAM
        self._length = _FIRST
        self._misses = 0
        self._resume = 0

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """Return up to `most` tokens that may follow `tokens`, which only grow between calls.

        After a long prompt there are none until some calls have indexed it.
        """
        end = len(tokens)
        if most < 1 or end < self._resume:
            return []
        indexed = min(end, self._indexed + _INDEXED_AT_ONCE)
        for after in range(self._indexed, indexed):
            self._followers[tuple(tokens[after - _GRAM : after])] = after
        self._indexed = max(indexed, _GRAM)
        if indexed < end:
            return []
        place = self._followers.get(tuple(tokens[end - _GRAM : end]))
        if place is None:
            return []
        # What followed may reach the end: then the text has a period, which goes on.
        period = tokens[place:end]
        return [period[i % len(period)] for i in range(min(self._length, most))]

    def observe(self, end: int, proposed: int, accepted: int) -> None:
        """Learn from a verified proposal: propose more after a right one, pause after wrong ones.

        Args:
            end: tokens of the request by now.
            proposed: tokens of the proposal, at least 1.
            accepted: how many of them were right.
        """
        if accepted == proposed:
            self._length = min(2 * proposed, _MOST)
        else:
            self._length = max(accepted, 2)
        if accepted:
            self._misses = 0
        else:
            self._misses += 1
            self._resume = end + min(1 << self._misses, _LONGEST_PAUSE)

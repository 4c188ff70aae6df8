"""Record which tokens each sequence of the cache holds, and find the longest beginning that a request can share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from plumbline.engines.llama_cpp.placement import HeldSequence, SharedSequence, longest_prefix

__all__ = ["Sequences"]


class Sequences:
    """The sequences of a cache by number: free, running, or kept after their request for others to share.

    Args:
        num: the number of sequences.
    """

    def __init__(self, num: int) -> None:
        self._num = num
        self._free = list(range(num - 1, -1, -1))
        self._running: dict[int, str | None] = {}
        """The salt of each running sequence."""
        self._kept: OrderedDict[int, tuple[str | None, list[int]]] = OrderedDict()
        """Salt and tokens of each kept sequence, the one used longest ago first."""

        self.num_kept_tokens = 0
        """Tokens of all kept sequences; shared ones count for each."""

    @property
    def num_kept(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def take(self, salt: str | None) -> int | None:
        """Mark a free sequence as running and return it; None if all are used, where `evict` may help."""
        if not self._free:
            return None
        sequence = self._free.pop()
        self._running[sequence] = salt
        return sequence

    def free(self, sequence: int) -> None:
        """Give back a running sequence that has been removed from the cache."""
        del self._running[sequence]
        self._free.append(sequence)

    def keep(self, sequence: int, token_ids: list[int]) -> None:
        """Keep a running sequence, which holds these tokens, for others."""
        self._kept[sequence] = (self._running.pop(sequence), token_ids)
        self.num_kept_tokens += len(token_ids)

    def evict(self) -> int | None:
        """Free the kept sequence used longest ago; returns it, to be removed from the cache, or None."""
        if not self._kept:
            return None
        sequence, (_, token_ids) = self._kept.popitem(last=False)
        self.num_kept_tokens -= len(token_ids)
        self._free.append(sequence)
        return sequence

    def kept(self) -> Iterable[HeldSequence]:
        """Return what the kept sequences hold, the one used last first."""
        for sequence, (salt, token_ids) in reversed(self._kept.items()):
            yield HeldSequence(sequence, token_ids, salt, None)

    def longest_prefix(
        self, token_ids: Sequence[int], salt: str | None, running: Iterable[SharedSequence]
    ) -> tuple[int, int]:
        """Find the sequence of this salt that shares the longest beginning with a prompt; see `longest_prefix`.

        Args:
            token_ids: the prompt.
            salt: only sequences of the same salt are looked at.
            running: the sequences of running requests, of any salt.
        """
        kept = [
            SharedSequence(sequence, tokens, len(tokens))
            for sequence, (its, tokens) in self._kept.items()
            if its == salt
        ]
        others = (source for source in running if self._running[source.sequence] == salt)
        best, most = longest_prefix(token_ids, (*kept, *others))
        if best in self._kept:
            self._kept.move_to_end(best)
        return best, most

    def clear(self) -> None:
        """Forget everything, after the cache has been cleared."""
        self._free = list(range(self._num - 1, -1, -1))
        self._running.clear()
        self._kept.clear()
        self.num_kept_tokens = 0

    def check_integrity(self) -> None:
        """Assert that each sequence is in one state."""
        everywhere = sorted([*self._free, *self._running, *self._kept])
        assert everywhere == list(range(self._num)), everywhere
        assert self.num_kept_tokens == sum(len(token_ids) for _, token_ids in self._kept.values())

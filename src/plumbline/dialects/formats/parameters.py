"""Find where a parameter begins although the one before it has no end."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["Parameters"]

_LONGEST = 64
_IN_TAGS = frozenset("<>\n")


class Parameters:
    """Record which parameters of a call have come.

    Args:
        names: the parameters that may begin although the one before them has no end. Names of more than 64 characters,
            and names with characters of tags, are left out.
    """

    __slots__ = ("_short", "come", "names")

    def __init__(self, names: Collection[str]) -> None:
        self.names = names
        self.come: set[str] = set()
        self._short: frozenset[str] | None = None

    def next_in(self, text: str, start: int, end: str) -> tuple[bool, str | None]:
        """Find the parameter at `start`: one that has not come yet, followed by `end`.

        Returns:
            Whether the result is certain, and the parameter's name; None if no parameter stands there.
        """
        if self._short is None:  # Made at most once a call, because most calls never get here.
            self._short = frozenset(n for n in self.names if len(n) <= _LONGEST and not _IN_TAGS & set(n))
        rest = text[start : start + _LONGEST + len(end)]
        name, found, _ = rest.partition(end)
        if found:
            return True, name if name in self._short and name not in self.come else None
        if len(rest) == _LONGEST + len(end):
            return True, None
        begun = next((size for size in range(len(end) - 1, 0, -1) if rest.endswith(end[:size])), 0)
        return not _IN_TAGS.isdisjoint(rest[: len(rest) - begun]), None

"""How a chat template lets thinking be chosen: the names of its variables, as data."""

from __future__ import annotations

import msgspec

__all__ = ["ThinkingControl"]

_EFFORTS = ("minimal", "low", "medium", "high", "xhigh")


class ThinkingControl(msgspec.Struct, frozen=True, kw_only=True):
    """The variables by which a chat template lets thinking be chosen."""

    on: tuple[tuple[str, bool | str], ...] = ()
    """What to set for thinking."""
    off: tuple[tuple[str, bool | str | int], ...] = ()
    """What to set for an answer without it; empty if the family always thinks."""
    effort: str = ""
    """A variable that takes the effort as a word."""
    efforts: tuple[str, ...] = ("low", "medium", "high")
    """The words that it takes, from little to much."""
    budget: str = ""
    """A variable that takes a number of tokens."""

    def variables(self, effort: str | None, budget: int | None = None) -> dict[str, bool | str | int]:
        """What to give the template.

        Args:
            effort: the request's word: `none`, `minimal`, `low`, `medium`, `high` or `xhigh`; None leaves the choice to
                the template.
            budget: how many tokens of thinking the request allows.
        """
        found: dict[str, bool | str | int] = {}
        if effort == "none":
            return dict(self.off)
        if effort is not None:
            found.update(self.on)
            if self.effort:
                found[self.effort] = _nearest(effort, self.efforts)
        if budget is not None and self.budget:
            found[self.budget] = budget
        return found


def _nearest(effort: str, words: tuple[str, ...]) -> str:
    """The word of the template that comes nearest to the request's."""
    if effort in words or effort not in _EFFORTS:
        return effort
    wanted = _EFFORTS.index(effort)
    known = [word for word in words if word in _EFFORTS]
    return min(known, key=lambda word: abs(_EFFORTS.index(word) - wanted), default=effort)

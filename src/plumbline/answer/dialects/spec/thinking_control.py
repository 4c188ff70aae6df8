"""Describe the variables of chat templates that control thinking."""

from __future__ import annotations

import msgspec

__all__ = ["ThinkingControl"]

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


class ThinkingControl(msgspec.Struct, frozen=True, kw_only=True):
    """The variables of a chat template that control thinking."""

    on: tuple[tuple[str, bool | str], ...] = ()
    """What to set for thinking."""
    off: tuple[tuple[str, bool | str | int], ...] = ()
    """What to set for an answer without thinking; empty if the family always thinks, and then thinks least."""
    effort: str = ""
    """The variable for the effort, a word."""
    efforts: tuple[str, ...] = ("low", "medium", "high")
    """The words that it takes, from least to most."""
    budget: str = ""
    """The variable for a number of tokens."""

    def variables(self, effort: str | None, budget: int | None = None) -> dict[str, bool | str | int]:
        """Return the variables to set.

        Args:
            effort: the word of the request: `none`, `minimal`, `low`, `medium`, `high` or `xhigh`; None leaves the
                choice to the template.
            budget: how many tokens of thinking the request allows.
        """
        found: dict[str, bool | str | int] = {}
        if effort == "none" and (self.off or not self.effort):
            return dict(self.off)
        if effort is not None:
            found.update(self.on)
            if self.effort:
                found[self.effort] = _nearest(effort, self.efforts)
        if budget is not None and self.budget:
            found[self.budget] = budget
        return found


def _nearest(effort: str, words: tuple[str, ...]) -> str:
    """Return the template's word that is nearest to the request's."""
    if effort in words or effort not in _EFFORTS:
        return effort
    wanted = _EFFORTS.index(effort)
    known = [word for word in words if word in _EFFORTS]
    return min(known, key=lambda word: abs(_EFFORTS.index(word) - wanted), default=effort)

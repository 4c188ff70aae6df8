"""Keep what is observed of one answer: how long its phases took, and how its choices ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plumbline.answer.events import Finish
from plumbline.answer.road.phases import Phases
from plumbline.answer.road.prepare import PreparedTurn
from plumbline.contract.wire.call import Call

__all__ = ["AnswerRecord"]


@dataclass(slots=True)
class AnswerRecord:
    """One answer, which is complete when its events have ended."""

    call: Call
    prepared: Sequence[PreparedTurn]
    """The turn, or the turns of several prompts."""
    phases: list[Phases] = field(default_factory=list)
    """The times of each choice, in the order in which they ended."""
    finishes: list[Finish] = field(default_factory=list)
    """How each choice ended, in the same order; those that failed or whose client left have none."""
    error: str = ""
    """The class of the exception that ended the answer, if one did."""

    def is_first(self, index: int) -> bool:
        """Return whether a choice is the first one of its prompt; choices are numbered prompt by prompt."""
        return index == 0 or (bool(self.prepared) and index % self.prepared[0].turn.num_choices == 0)

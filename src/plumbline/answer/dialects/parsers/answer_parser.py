"""Define the interface of all parsers of answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from plumbline.answer.events import FinishReason, OutputEvent, TextDelta

__all__ = ["AnswerParser"]


class AnswerParser(ABC):
    """Parse one choice of one answer. Sans-IO: text goes in by `push` and `finish`, events come out.

    Attributes:
        needs_token_ends: whether `num_reasoning_tokens` uses its argument.
        marker_ids: the control tokens that the parser needs as text, because they are markers of the dialect or parts
            of one.
        num_calls: calls announced so far.
        num_broken_calls: announced calls that ended incomplete.
        undeclared: names of tools that the model called and the request does not have; the calls are text (TOOL-02).
        warnings: what was malformed, one line each, for the log.
    """

    needs_token_ends: bool
    marker_ids: frozenset[int]
    num_calls: int
    num_broken_calls: int
    undeclared: Sequence[str]
    warnings: list[str]

    @abstractmethod
    def push(self, delta: TextDelta) -> Sequence[OutputEvent]:
        """Parse more of the output."""

    @abstractmethod
    def finish(self, reason: FinishReason) -> Sequence[OutputEvent]:
        """Parse what is left, because the engine has ended the output for this reason (`stop` or `length`)."""

    def finish_in_text(self) -> Sequence[OutputEvent]:
        """Parse what is left of an output that a stop string has ended in its text."""
        return self.finish("length")

    @abstractmethod
    def continue_message(self, text: str, *, echo: bool) -> Sequence[OutputEvent]:
        """Parse the beginning of a message that the answer continues, before any `push`.

        Args:
            text: the beginning.
            echo: the client wants events for all of it, not only for a call that goes on in the answer.
        """

    @property
    @abstractmethod
    def is_inside_markup(self) -> bool:
        """Whether the text so far ends in a call, or in what may become one."""

    @abstractmethod
    def num_reasoning_tokens(self, ends: Sequence[int]) -> int:
        """Count the tokens of the thinking and its markers.

        Args:
            ends: for each token, how many characters of the output it completed, never less than the one before.
        """

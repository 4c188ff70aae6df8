"""Pass an answer on unchanged, for models and prompts without a dialect."""

from __future__ import annotations

from collections.abc import Sequence

from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.events import FinishReason, OutputEvent, TextDelta

__all__ = ["PassThroughParser"]


class PassThroughParser(AnswerParser):
    """Take every character for text."""

    needs_token_ends = False
    marker_ids: frozenset[int] = frozenset()
    num_calls = 0
    num_broken_calls = 0
    undeclared: Sequence[str] = ()

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def push(self, delta: TextDelta) -> Sequence[OutputEvent]:
        """Pass the delta on."""
        return (delta,)

    def finish(self, reason: FinishReason) -> Sequence[OutputEvent]:
        """Return nothing: no text is ever held back."""
        return ()

    def continue_message(self, text: str, *, echo: bool) -> Sequence[OutputEvent]:
        """Return the text if the client wants it."""
        return (TextDelta(text),) if echo else ()

    @property
    def is_inside_markup(self) -> bool:
        """Never."""
        return False

    def num_reasoning_tokens(self, ends: Sequence[int]) -> int:
        """Return 0."""
        return 0

"""Implement the dialect of models and prompts without one: all of an answer is text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from plumbline.answer.dialects.model_dialect import AnswerFrame, ModelDialect
from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.dialects.parsers.pass_through import PassThroughParser
from plumbline.answer.dialects.registry import DialectChoice
from plumbline.answer.dialects.spec.answer_syntax import AnswerSyntax
from plumbline.answer.dialects.spec.dialect import NewId, Unparsed, Utterance

__all__ = ["PLAIN", "PlainDialect"]


class PlainDialect(ModelDialect):
    """Text alone. Its parser costs next to nothing.

    Args:
        choice: why the model has no dialect; None where it cannot have one.
    """

    def __init__(self, choice: DialectChoice | None = None) -> None:
        self.choice = choice or DialectChoice(None, None)
        self.syntax = AnswerSyntax()
        self.thinking_markers = None

    def frame(self, prompt_token_ids: Sequence[int], begun: str | None = None) -> AnswerFrame:
        """Return a frame without thinking."""
        return AnswerFrame(thinking="after")

    def parser(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        frame: AnswerFrame,
        *,
        earlier_calls: int = 0,
        new_id: NewId | None = None,
        logprobs: bool = False,
        unparsed: Unparsed | None = None,
    ) -> AnswerParser:
        """Return a parser that passes text on."""
        return PassThroughParser()

    def render(self, utterance: Utterance) -> str:
        """Write the text of an utterance.

        Raises:
            ValueError: the utterance has thinking or calls.
        """
        if utterance.reasoning is not None or not all(isinstance(part, str) for part in utterance.parts):
            raise ValueError("a model without a dialect writes text only")
        return "".join(part for part in utterance.parts if isinstance(part, str))


PLAIN: Final = PlainDialect()
"""For prompts without messages, as in plain completions."""

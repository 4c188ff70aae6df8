"""Implement the dialect that a tokenizer declares with a response template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plumbline.answer.dialects.kinds.markers import control_ids, thinking_markers
from plumbline.answer.dialects.model_dialect import (
    AnswerFrame,
    DialectVocabulary,
    ModelDialect,
    ThinkingState,
    call_ids,
)
from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.dialects.parsers.pass_through import PassThroughParser
from plumbline.answer.dialects.parsers.render import render_utterance
from plumbline.answer.dialects.parsers.response_templates.response_template import (
    ResponseTemplate,
    ResponseTemplateParser,
)
from plumbline.answer.dialects.parsers.structured import StructuredTextParser
from plumbline.answer.dialects.registry import DialectChoice
from plumbline.answer.dialects.spec.answer_syntax import AnswerSyntax
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import NewId, ReasoningDialect, Unparsed, Utterance
from plumbline.answer.dialects.spec.markers import Markers

__all__ = ["ResponseTemplateDialect"]


class ResponseTemplateDialect(ModelDialect):
    """Thinking, text and calls as a response template declares them.

    The template declares how to parse calls, not how to write them.

    Args:
        choice: the choice of this template.
        template: the template.
        vocabulary: the model's tokens.
    """

    def __init__(
        self, choice: DialectChoice, template: ResponseTemplate, vocabulary: DialectVocabulary
    ) -> None:
        self.choice = choice
        self._template = template
        self._vocabulary = vocabulary
        self._ids = control_ids(vocabulary, template.markers)
        self._plain_text = template.plain_text()
        self._reasoning = None if self._plain_text is None else self._plain_text.reasoning
        self.syntax = AnswerSyntax(
            reasoning=self._reasoning,
            call_starts=template.call_begins,
            is_plain_text=self._plain_text is not None,
        )
        self.thinking_markers = thinking_markers(self._reasoning)

    def frame(self, prompt_token_ids: Sequence[int], begun: str | None = None) -> AnswerFrame:
        """Determine where the answer starts, from the text after the last start anchor of the prompt."""
        opening = self._template.opening(prompt_token_ids, self._vocabulary.added, self._vocabulary.table)
        thinking: ThinkingState = "before"
        if self._plain_text is not None:
            thinking = "after" if self._reasoning is None else _state(self._reasoning, opening)
        if begun is not None and thinking != "inside":
            thinking = "after"
        return AnswerFrame(thinking=thinking, opening=opening)

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
        """Return a parser for one choice."""
        if unparsed == "all":
            return PassThroughParser()
        new_id = new_id or call_ids("call", earlier_calls)
        if unparsed is not None and self._plain_text is not None:
            return StructuredTextParser(
                Markers(None, self._reasoning),
                {},
                inside=frame.parser_starts_inside,
                new_id=new_id,
                exact=unparsed == "after the gap",
                logprobs=logprobs,
                marker_ids=self._ids,
            )
        return ResponseTemplateParser(
            self._template,
            frame.opening,
            tools,
            new_id=new_id,
            logprobs=logprobs,
            marker_ids=self._ids,
        )

    def render(self, utterance: Utterance) -> str:
        """Write thinking and text as the model does.

        Raises:
            ValueError: the utterance has calls, or the template does not define how its thinking or text is written.
        """
        thinks = utterance.reasoning is not None and self._reasoning is None
        if (
            self._plain_text is None
            or thinks
            or any(isinstance(part, WrittenCall) for part in utterance.parts)
        ):
            raise ValueError("the response template does not define how the model writes this")
        return render_utterance(utterance, None, self._reasoning)


def _state(reasoning: ReasoningDialect, opening: str) -> ThinkingState:
    """Where a prompt leaves the answer that it has begun with this text."""
    opened = max(opening.rfind(text) for text in reasoning.open)
    closed = max(opening.rfind(text) for text in reasoning.close)
    return "inside" if opened > closed else "after" if closed >= 0 else "before"

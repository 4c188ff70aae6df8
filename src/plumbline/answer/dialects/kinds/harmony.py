"""Implement the dialect of OpenAI's gpt-oss models: an answer is a row of messages, each with a header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plumbline.answer.dialects.formats.harmony import ASSISTANT, FINAL, HEADERS, MARKERS
from plumbline.answer.dialects.kinds.markers import control_ids
from plumbline.answer.dialects.model_dialect import (
    AnswerFrame,
    DialectVocabulary,
    ModelDialect,
    ThinkingMarkers,
    ThinkingState,
    call_ids,
)
from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.dialects.parsers.harmony import HarmonyParser, is_inside, write_harmony
from plumbline.answer.dialects.parsers.pass_through import PassThroughParser
from plumbline.answer.dialects.parsers.structured import StructuredHarmonyParser
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.answer.dialects.spec.answer_syntax import AnswerSyntax
from plumbline.answer.dialects.spec.dialect import NewId, Unparsed, Utterance

__all__ = ["HarmonyDialect"]

_LOOK_BACK = 8192
"""How many tokens from the end of a prompt are searched for an open message."""


class HarmonyDialect(ModelDialect):
    """Messages of thinking, of text and of calls.

    Args:
        choice: the tool dialect of harmony, its reasoning dialect or both.
        vocabulary: the model's tokens.
    """

    def __init__(self, choice: DialectChoice, vocabulary: DialectVocabulary) -> None:
        self.choice = choice
        self._vocabulary = vocabulary
        self._ids = control_ids(vocabulary, MARKERS)
        # Its messages are read as a whole, also where another dialect was given for the thinking or the calls.
        reasoning = None if choice.reasoning is None else REASONING_DIALECTS["harmony"]
        self._reasoning = reasoning
        self.syntax = AnswerSyntax(
            reasoning=reasoning,
            calls=None if choice.tool is None else TOOL_DIALECTS["harmony"],
            text_header=FINAL,
            call_starts=HEADERS if choice.tool is not None else (),
            not_in_thinking=HEADERS,
        )
        self.thinking_markers = (
            None if reasoning is None else ThinkingMarkers(reasoning.open, reasoning.close[0], (ASSISTANT,))
        )

    def frame(self, prompt_token_ids: Sequence[int], begun: str | None = None) -> AnswerFrame:
        """Determine from the control tokens of the prompt where the answer starts."""
        reasoning = self._reasoning
        if reasoning is None:
            return AnswerFrame(thinking="before" if begun is None else "after")
        tail = prompt_token_ids[-_LOOK_BACK:]
        thinking: ThinkingState = "before" if begun is None else "after"
        if is_inside(tail, self._vocabulary.added, self._vocabulary.table):
            thinking = "inside"
        opens = (begun or "").lstrip().startswith(reasoning.open)
        return AnswerFrame(thinking=thinking, begins_with_opening=opens)

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
        if unparsed is not None and frame.thinking == "after" and not tools:
            return PassThroughParser()  # The prompt has begun the final message.
        parse = HarmonyParser if unparsed is None else StructuredHarmonyParser
        return parse(
            tools,
            inside=frame.parser_starts_inside,
            new_id=new_id or call_ids("call", earlier_calls),
            logprobs=logprobs,
            marker_ids=self._ids,
        )

    def render(self, utterance: Utterance) -> str:
        """Write an utterance as the model does."""
        return write_harmony(utterance)

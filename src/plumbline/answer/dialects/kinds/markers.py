"""Implement the dialect of most families: markers around thinking and around calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from plumbline.answer.dialects.model_dialect import (
    AnswerFrame,
    DialectVocabulary,
    ModelDialect,
    ThinkingMarkers,
    ThinkingState,
    call_ids,
)
from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.dialects.parsers.json_answer import JsonAnswerParser
from plumbline.answer.dialects.parsers.marker_parser import MarkerParser
from plumbline.answer.dialects.parsers.pass_through import PassThroughParser
from plumbline.answer.dialects.parsers.render import render_utterance, text_header
from plumbline.answer.dialects.parsers.structured import StructuredTextParser
from plumbline.answer.dialects.registry import DialectChoice
from plumbline.answer.dialects.spec.answer_syntax import AnswerSyntax
from plumbline.answer.dialects.spec.dialect import NewId, ReasoningDialect, ToolDialect, Unparsed, Utterance
from plumbline.answer.dialects.spec.markers import Markers

__all__ = ["MarkerDialect", "control_ids", "thinking_markers"]

_LOOK_BACK = 8192
"""How many tokens from the end of a prompt are searched for markers of thinking."""
_TAIL = 64
"""How many tokens at the end of a prompt are searched for a marker in plain text, with white space after it."""


class MarkerDialect(ModelDialect):
    """Thinking and calls between markers.

    Args:
        choice: a tool dialect, a reasoning dialect or both.
        vocabulary: the model's tokens.
    """

    def __init__(self, choice: DialectChoice, vocabulary: DialectVocabulary) -> None:
        self.choice = choice
        self._vocabulary = vocabulary
        tool, reasoning = choice.tool, choice.reasoning
        self._markers = Markers(tool, reasoning)
        self._without_tools = Markers(_without_calls(tool), reasoning)
        self._has_markup = reasoning is not None or self._without_tools.tool is not None
        self._firm = Markers(
            None if tool is None else msgspec.structs.replace(tool, sections=tool.firm), reasoning
        )
        self._without_thinking = Markers(tool, None)
        self._ids = control_ids(vocabulary, self._markers.texts)
        self._ids_without_tools = control_ids(vocabulary, self._without_tools.texts)
        sections = () if tool is None else tool.firm
        opens = tuple(dict.fromkeys(text for section in sections for text in section.open))
        ends_thinking = reasoning is not None and reasoning.calls_inside
        self.syntax = AnswerSyntax(
            reasoning=reasoning,
            calls=tool,
            text_header=text_header(tool, reasoning),
            call_starts=opens if all(section.open for section in sections) else (),
            not_in_thinking=opens if ends_thinking else (),
        )
        closes = tuple(text for section in sections for text in section.close)
        self.thinking_markers = thinking_markers(reasoning, closes)

    def frame(self, prompt_token_ids: Sequence[int], begun: str | None = None) -> AnswerFrame:
        """Determine from the prompt where the answer starts.

        A marker that is a single token is searched for among the ids. A marker that is plain text counts only at the
        very end of the prompt, which the template writes. Where the prompt has no marker, the default of the family
        counts, unless the answer continues a message without one.
        """
        reasoning = self.choice.reasoning
        thinking: ThinkingState = "before"
        if reasoning is not None and self._is_inside(reasoning, prompt_token_ids, begun):
            thinking = "inside"
        elif begun is not None or (reasoning is not None and self._has_ended(reasoning, prompt_token_ids)):
            thinking = "after"
        opens = reasoning is not None and (begun or "").lstrip().startswith(reasoning.open)
        return AnswerFrame(thinking=thinking, begins_with_opening=opens)

    def _is_inside(
        self, reasoning: ReasoningDialect, prompt_token_ids: Sequence[int], begun: str | None
    ) -> bool:
        opens, closes = self._token_ids(reasoning.open), self._token_ids(reasoning.close)
        default = reasoning.starts_inside and not (begun or "").strip()
        if opens:
            for token_id in reversed(prompt_token_ids[-_LOOK_BACK:]):
                if token_id in opens or token_id in closes:
                    return token_id in opens
                if token_id in self._vocabulary.special_ids:
                    break
            return default
        end = self._text(prompt_token_ids[-_TAIL:])
        if end.endswith((*reasoning.open, *reasoning.close)):
            return end.endswith(reasoning.open)
        return default

    def _has_ended(self, reasoning: ReasoningDialect, prompt_token_ids: Sequence[int]) -> bool:
        """Whether the prompt ends with the end of thinking, as templates write it where they turn thinking off."""
        tail = prompt_token_ids[-_TAIL:]
        closes = self._token_ids(reasoning.close)
        if closes:
            table = self._vocabulary.table
            solid = (token_id for token_id in reversed(tail) if table[token_id].strip())
            return next(solid, None) in closes
        return self._text(tail).endswith(reasoning.close)

    def _token_ids(self, markers: Iterable[str]) -> set[int]:
        """Return the ids of the markers that are single tokens."""
        added = self._vocabulary.added
        return {added[text] for text in markers if text in added}

    def _text(self, token_ids: Sequence[int]) -> str:
        """Decode tokens, without white space at the end."""
        table = self._vocabulary.table
        return b"".join(table[token_id] for token_id in token_ids).decode("utf-8", "replace").rstrip()

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
        tool = self.choice.tool if tools else None
        header = self.syntax.text_header if unparsed and frame.thinking != "after" else ""
        if tool is None and ((unparsed == "all" and not header) or not self._has_markup):
            return PassThroughParser()
        markers, marker_ids = self._markers, self._ids
        if tool is None:
            markers, marker_ids = self._without_tools, self._ids_without_tools
        elif frame.constrained:
            markers = self._firm
        new_id = new_id or call_ids("call" if tool is None else tool.ids, earlier_calls)
        inside = frame.parser_starts_inside
        if unparsed is None:
            parser = JsonAnswerParser if tool is not None and tool.answer_key else MarkerParser
            return parser(
                markers, tools, inside=inside, new_id=new_id, logprobs=logprobs, marker_ids=marker_ids
            )
        return StructuredTextParser(
            self._without_thinking if unparsed == "all" else markers,
            tools,
            inside=inside,
            new_id=new_id,
            exact=unparsed == "after the gap",
            header=header,
            logprobs=logprobs,
            marker_ids=marker_ids,
        )

    def render(self, utterance: Utterance) -> str:
        """Write an utterance as the model does."""
        return render_utterance(utterance, self.choice.tool, self.choice.reasoning)


def _without_calls(tool: ToolDialect | None) -> ToolDialect | None:
    """Return the texts around answers that a model writes even without tools in the request; None if it writes none."""
    # Functionary names the recipient of every answer: `all` and a line feed.
    return ToolDialect(name=tool.name, sections=(), silent=tool.silent) if tool and tool.silent else None


def control_ids(vocabulary: DialectVocabulary, markers: Iterable[str]) -> frozenset[int]:
    """Return the added tokens that are markers, or parts of one."""
    joined = "\n".join(markers)
    return frozenset(token_id for text, token_id in vocabulary.added.items() if text and text in joined)


def thinking_markers(
    reasoning: ReasoningDialect | None, calls_inside: Sequence[str] = ()
) -> ThinkingMarkers | None:
    """Return the markers of thinking.

    Args:
        reasoning: how thinking is written; None if that is not known.
        calls_inside: what calls end with. Thinking may begin again after them.
    """
    if reasoning is None or reasoning.append:
        return None
    reopen_after = tuple(dict.fromkeys((*reasoning.close, *calls_inside)))
    return ThinkingMarkers(reasoning.open, reasoning.close[0], reopen_after, reasoning.anywhere)

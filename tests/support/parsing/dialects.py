"""Try laws on every dialect: utterances, ways of cutting them, and the fold of events.

Drawing costs the most time, so one drawn plan becomes an utterance of every dialect. Places for markers in a plan are
characters of the private-use area, which `Dialect.fill` replaces by markers of the dialect.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import cycle
from typing import Any

import msgspec

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.model_dialect import AnswerFrame
from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.answer.dialects.spec.call_format import ArgumentSyntax, WrittenCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, ToolDialect, Utterance
from plumbline.answer.dialects.spec.markers import Markers
from plumbline.answer.events import (
    FinishReason,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from support.laws import DIALECT_NAMES
from support.parsing.plans import LOOSE, MARKS, NAMES, SCHEMA, Plan

__all__ = [
    "DIALECTS",
    "Dialect",
    "Folded",
    "ReadCall",
    "cut",
    "cut_bytes",
    "fold",
    "kept_dialect",
    "same",
]


class ReadCall(msgspec.Struct, frozen=True):
    """A call as a client gets it."""

    name: str
    arguments: str
    complete: bool


class Folded(msgspec.Struct, frozen=True):
    """The message that events add up to."""

    reasoning: str
    content: str
    parts: tuple[str | ReadCall, ...]
    """Text and calls in their order."""

    @property
    def calls(self) -> list[ReadCall]:
        """The calls."""
        return [part for part in self.parts if isinstance(part, ReadCall)]


def fold(events: Iterable[OutputEvent]) -> Folded:
    """Add events up to a message.

    Fails if calls interleave with anything, or do not begin and end once, or if an id comes twice.
    """
    reasoning: list[str] = []
    parts: list[str | ReadCall] = []
    ids: set[str] = set()
    open_name: str | None = None
    arguments: list[str] = []
    for event in events:
        match event:
            case ReasoningDelta(text=text):
                assert open_name is None
                reasoning.append(text)
            case TextDelta(text=text):
                assert open_name is None, "text inside of a call"
                if parts and isinstance(parts[-1], str):
                    parts[-1] += text
                elif text:
                    parts.append(text)
            case ToolCallStart(name=name, id=call_id):
                assert open_name is None, "a call inside of a call"
                assert name, "a call without a name"
                assert call_id not in ids, "an id came twice"
                ids.add(call_id)
                open_name, arguments = name, []
            case ToolCallDelta(arguments=text):
                assert open_name is not None
                arguments.append(text)
            case ToolCallEnd(complete=complete):
                assert open_name is not None
                parts.append(ReadCall(open_name, "".join(arguments), complete))
                open_name = None
            case _:
                raise AssertionError(f"a dialect does not make {event}")
    if open_name is not None:  # The events of a prefix end anywhere.
        parts.append(ReadCall(open_name, "".join(arguments), False))
    content = "".join(part for part in parts if isinstance(part, str))
    return Folded("".join(reasoning), content, tuple(parts))


class Dialect:
    """A tool dialect with a reasoning dialect that fits it, either of which may be missing."""

    def __init__(self, tool: ToolDialect | None, reasoning: ReasoningDialect | None) -> None:
        self.tool = tool
        self.reasoning = reasoning
        self.model = build_dialect(DialectChoice(tool, reasoning))
        self.has_calls = tool is not None
        self.call_format = tool.sections[0].call_format if tool is not None else None
        self._syntax = None if self.call_format is None else self.call_format.argument_syntax
        self.bare = tool is not None and not (tool.sections[0].open or tool.sections[0].item_open)
        self.bare = self.bare and tool is not None and not tool.messages
        self.forbidden: tuple[str, ...] = () if self.call_format is None else self.call_format.forbidden
        self.shows_types = (
            not self.forbidden
            or self._syntax is ArgumentSyntax.TYPED_TAGS
            or self._syntax is ArgumentSyntax.BRACES
        )
        self.markers = sorted(Markers(tool, reasoning).texts, key=lambda text: (-len(text), text))
        parts = [marker for marker in self.markers if len(marker) > 3]
        self.atoms = [*self.markers, *(marker[: len(marker) // 2] for marker in parts)] or ["<"]

    def __repr__(self) -> str:
        return f"{self.tool and self.tool.name}/{self.reasoning and self.reasoning.name}"

    # Utterances

    def utterance(self, plan: Plan) -> Utterance:
        """The plan as an utterance that this dialect can carry."""
        parts: list[str | WrittenCall] = []
        for part in plan.parts:
            if isinstance(part, str):
                text = self.fill_text(part)
                if parts and isinstance(parts[-1], WrittenCall):  # After a call these are slips of the model.
                    text = text.lstrip("}]),;{[ \n")
                if text and (not parts or isinstance(parts[-1], WrittenCall)):
                    parts.append(text)
            elif self.tool is not None:
                arguments = {key: self._writable(value, inside=False) for key, value in part[1].items()}
                parts.append(WrittenCall(part[0], json.dumps(arguments, ensure_ascii=False)))
        if self.bare:  # Bare calls are known by standing first.
            text = " ".join(part for part in parts if isinstance(part, str))
            parts = [*(part for part in parts if isinstance(part, WrittenCall)), *([text] if text else [])]
        reasoning = None if plan.reasoning is None else self.fill_text(plan.reasoning) or None
        if self.reasoning is None or self.reasoning.append:
            reasoning = None
        elif self.reasoning.starts_inside and reasoning is None:
            reasoning = "hm"
        return Utterance(tuple(parts), reasoning)

    def write(self, utterance: Utterance) -> str:
        """Write an utterance as the model does."""
        return self.model.render(utterance)

    def fill(self, text: str) -> str:
        """Markers of this dialect where the plan has places for them."""
        if not any(mark in text for mark in MARKS):
            return text
        for number, mark in enumerate(MARKS):
            text = text.replace(mark, self.atoms[(number * 5 + number) % len(self.atoms)])
        return text

    def fill_text(self, text: str) -> str:
        """Text without markers: what has one could mean something else than itself."""
        return _without(self.fill(text), self.markers).strip(" \t\r\n")

    def _writable(self, value: Any, inside: bool = True) -> Any:
        """A value without the texts that the format has no way to write; `inside` of others, or itself an argument."""
        if isinstance(value, str):
            free = inside and self._syntax in (
                ArgumentSyntax.TAGS,
                ArgumentSyntax.TYPED_TAGS,
            )  # Between tags what is no string is JSON.
            return self.fill(value) if free else _without(self.fill(value), self.forbidden)
        if isinstance(value, list):
            return [self._writable(item) for item in value]
        if isinstance(value, dict):
            return {key: self._writable(item) for key, item in value.items()}
        return value

    def tools(self, plan: Plan | None = None) -> dict[str, dict[str, Any]]:
        """The tools of the request."""
        loose = plan is not None and plan.loose and self.shows_types
        return dict.fromkeys(NAMES, LOOSE if loose else SCHEMA)

    # Reading

    def parser(
        self,
        plan: Plan | None = None,
        *,
        logprobs: bool = False,
        schema: dict[str, Any] | None = None,
        tools: dict[str, dict[str, Any]] | None = None,
        inside: bool = False,
    ) -> AnswerParser:
        """A parser for one answer.

        Args:
            plan: the plan of the answer.
            logprobs: the deltas have logprobs.
            schema: the parameters of the usual tools; by default those of the plan.
            tools: other tools than the usual ones.
            inside: the answer starts inside thinking; it does so in any case where the dialect says so.
        """
        inside = inside or (self.reasoning is not None and self.reasoning.starts_inside)
        if tools is None:
            tools = self.tools(plan) if schema is None else dict.fromkeys(NAMES, schema)
        return self.model.parser(
            tools,
            AnswerFrame(thinking="inside" if inside else "before"),
            new_id=lambda name, number: f"{name}-{number}",
            logprobs=logprobs,
        )

    def read(
        self, pieces: Iterable[str], plan: Plan | None = None, reason: FinishReason = "stop"
    ) -> tuple[Folded, list[str]]:
        """The message that the pieces of an output are, and the warnings."""
        parser = self.parser(plan)
        events: list[OutputEvent] = []
        for piece in pieces:
            events += parser.push(TextDelta(piece))
        events += parser.finish(reason)
        return fold(events), parser.warnings


@cache
def kept_dialect(tool: ToolDialect, reasoning: ReasoningDialect | None = None) -> Dialect:
    """Return the dialect of a pair, built once: to build one takes longer than to read a short output with it."""
    return Dialect(tool, reasoning)


def same(folded: Folded, utterance: Utterance) -> bool:
    """Whether a message equals an utterance, except for white space between text and markup."""
    parts = [part for part in folded.parts if not isinstance(part, str) or part.strip()]
    if folded.reasoning != (utterance.reasoning or "") or len(parts) != len(utterance.parts):
        return False
    for part, said in zip(parts, utterance.parts, strict=True):
        if isinstance(part, str) or isinstance(said, str):
            if not isinstance(part, str) or not isinstance(said, str) or part.strip(" \t\r\n") != said:
                return False
        elif not part.complete or part.name != said.name or _value(part.arguments) != _value(said.arguments):
            return False
    return True


def _value(arguments: str) -> str:
    """A JSON value in one way of writing, so that 1 and 1.0 and true differ."""
    return json.dumps(json.loads(arguments))


def _without(text: str, unwanted: Sequence[str]) -> str:
    while any(one in text for one in unwanted):
        for one in unwanted:
            text = text.replace(one, "")
    return text


def cut(text: str, lengths: Sequence[int]) -> Iterator[str]:
    """The text in pieces of these lengths, again and again."""
    position = 0
    for length in cycle([*lengths, 1]):
        if position >= len(text):
            return
        yield text[position : position + length]
        position += length


def cut_bytes(pieces: Iterable[bytes]) -> Iterator[str]:
    """Pieces of bytes as pieces of text, each as soon as its characters are complete."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for piece in pieces:
        if text := decoder.decode(piece):
            yield text
    yield decoder.decode(b"", final=True)


# What is tried

_FITTING = {
    "hermes": "qwen3",
    "qwen3_coder": "nemotron_v3",
    "mimo": "qwen3",
    "longcat": "qwen3",
    "llama3_json": "deepseek_r1",
    "deepseek_v31": "deepseek_v3",
    "deepseek_v32": "deepseek_v3",
    "deepseek_v41": "deepseek_v4",
    "glm47": "glm45",
    "functiongemma": "gemma4",
    "kimi_k2": "kimi_k2",
    "xlam": "qwen3",
}


def _dialects() -> list[Dialect]:
    found = []
    for tool in dict.fromkeys(TOOL_DIALECTS.values()):
        reasoning = REASONING_DIALECTS.get(_FITTING.get(tool.name, tool.name))
        found.append(Dialect(tool, reasoning))
    paired = {dialect.reasoning for dialect in found}
    for reasoning in dict.fromkeys(REASONING_DIALECTS.values()):
        # Each alone: without tools in the request nothing is a call.
        found.append(Dialect(None, reasoning))
        if reasoning not in paired and not reasoning.messages:
            found.append(Dialect(TOOL_DIALECTS["hermes"], reasoning))
    if DIALECT_NAMES:
        chosen = [dialect for dialect in found if DIALECT_NAMES & set(_names(dialect))]
        assert chosen, f"PLUMBLINE_DIALECTS has no name of a dialect: {', '.join(DIALECT_NAMES)}"
        return chosen
    return found


def _names(dialect: Dialect) -> list[str]:
    return [part.name for part in (dialect.tool, dialect.reasoning) if part is not None]


DIALECTS = _dialects()
"""Every tool dialect with a reasoning dialect of its family, and every reasoning dialect alone."""

"""Measure parsing an answer per token, for each dialect: text, thinking and the arguments of a call.

Tokens are pieces of four characters, each pushed by itself. Times are CPU times, so that other load matters less.
Goal: 3 us or less per token, whatever the length.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.response_templates import RESPONSE_TEMPLATES, ResponseTemplateCase
from benchmarks.utterances import PROSE, TOOLS, call, small_calls

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.model_dialect import AnswerFrame
from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.dialects.parsers.response_templates.response_template import ResponseTemplateParser
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, ToolDialect, Utterance
from plumbline.answer.events import TextDelta

TOOL_READERS = (*dict.fromkeys(TOOL_DIALECTS.values()), *RESPONSE_TEMPLATES)
REASONING_READERS = (*dict.fromkeys(REASONING_DIALECTS.values()), *RESPONSE_TEMPLATES)
pytestmark = pytest.mark.benchmark(timer=time.process_time)


def run(
    benchmark: Any,
    utterance: Utterance,
    tool: ToolDialect | ResponseTemplateCase | None,
    reasoning: ReasoningDialect | ResponseTemplateCase | None,
    rounds: int,
) -> None:
    """Parse the rendered utterance token by token."""
    if isinstance(tool, ResponseTemplateCase):
        text, make = declared(tool, utterance)
    elif isinstance(reasoning, ResponseTemplateCase):
        text, make = declared(reasoning, utterance)
    else:
        text, make = rendered(tool, reasoning, utterance)
    tokens = [TextDelta(text[start : start + 4]) for start in range(0, len(text), 4)]

    def read() -> AnswerParser:
        parser = make()
        push = parser.push
        for token in tokens:
            push(token)
        parser.finish("stop")
        return parser

    parser = benchmark.pedantic(read, rounds=rounds)
    assert parser.num_calls == sum(isinstance(part, WrittenCall) for part in utterance.parts)
    benchmark.extra_info["us_per_token"] = benchmark.stats.stats.min / len(tokens) * 1e6


def rendered(
    tool: ToolDialect | None, reasoning: ReasoningDialect | None, utterance: Utterance
) -> tuple[str, Callable[[], AnswerParser]]:
    """Return the rendered utterance of a pair of dialects and a factory of its parser."""
    dialect = build_dialect(DialectChoice(tool, reasoning))
    frame = AnswerFrame(thinking="inside" if reasoning is not None and reasoning.starts_inside else "before")
    tools = TOOLS if tool else {}
    return dialect.render(utterance), lambda: dialect.parser(tools, frame, new_id=lambda name, number: "id")


def declared(reader: ResponseTemplateCase, utterance: Utterance) -> tuple[str, Callable[[], AnswerParser]]:
    """Return the same for a response template."""
    return reader.write(utterance), lambda: ResponseTemplateParser(
        reader.template, "", TOOLS, new_id=lambda name, number: "id"
    )


@pytest.mark.parametrize("tool", TOOL_READERS, ids=lambda dialect: dialect.name)
def test_text(benchmark: Any, tool: ToolDialect | ResponseTemplateCase) -> None:
    """Text that may contain calls."""
    run(benchmark, Utterance(((PROSE * 100).strip(),)), tool, None, 9)


@pytest.mark.parametrize("reasoning", REASONING_READERS, ids=lambda dialect: dialect.name)
def test_thinking(benchmark: Any, reasoning: ReasoningDialect | ResponseTemplateCase) -> None:
    """Thinking, up to its end marker."""
    run(benchmark, Utterance(("a",), (PROSE * 100).strip()), None, reasoning, 9)


@pytest.mark.parametrize("tool", TOOL_READERS, ids=lambda dialect: dialect.name)
def test_arguments(benchmark: Any, tool: ToolDialect | ResponseTemplateCase) -> None:
    """A long string in the arguments of a call, streamed."""
    run(benchmark, call(100), tool, None, 9)


@pytest.mark.parametrize("tool", TOOL_READERS, ids=lambda dialect: dialect.name)
def test_arguments_of_100_000_tokens(benchmark: Any, tool: ToolDialect | ResponseTemplateCase) -> None:
    """The same at 100,000 tokens: the cost of a token must not grow."""
    run(benchmark, call(6000), tool, None, 1)


@pytest.mark.parametrize("tool", TOOL_READERS, ids=lambda dialect: dialect.name)
def test_many_small_calls(benchmark: Any, tool: ToolDialect | ResponseTemplateCase) -> None:
    """Many short calls: a new name every few tokens."""
    run(benchmark, small_calls(200), tool, None, 9)


@pytest.mark.parametrize("tool", TOOL_READERS, ids=lambda dialect: dialect.name)
def test_numbers(benchmark: Any, tool: ToolDialect | ResponseTemplateCase) -> None:
    """A list of numbers, each checked before it is sent."""
    numbers = [[n, n / 7] for n in range(400)]
    run(benchmark, Utterance((WrittenCall("f", json.dumps({"list": numbers})),)), tool, None, 9)


@pytest.mark.parametrize("tool", TOOL_READERS, ids=lambda dialect: dialect.name)
def test_objects(benchmark: Any, tool: ToolDialect | ResponseTemplateCase) -> None:
    """A list of small objects: keys, short strings, numbers and words."""
    objects = [{"id": n, "name": f"word {n}", "done": n % 2 == 0, "more": None} for n in range(200)]
    run(benchmark, Utterance((WrittenCall("f", json.dumps({"list": objects})),)), tool, None, 9)

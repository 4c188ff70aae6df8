"""Stop strings in answers with markup: the result does not depend on how the output is cut."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.parsing.dialects import cut

from plumbline.answer.dialects.answer_regions import answer_regions
from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.model_dialect import AnswerFrame
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.answer.text.stop import AnswerStopChecker

TOOLS = {"get": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "get", "arguments": {"city": "Paris"}}\n</tool_call>'


def stopped(pieces: Iterable[str], stop: str) -> tuple[str, str | None]:
    dialect = build_dialect(DialectChoice(TOOL_DIALECTS["hermes"], REASONING_DIALECTS["qwen3"]))
    parser = dialect.parser(
        TOOLS, AnswerFrame(thinking="before"), new_id=lambda name, number: f"{name}-{number}", logprobs=False
    )
    regions = answer_regions(parser)
    assert regions is not None
    checker = AnswerStopChecker((stop,), regions)
    text = ""
    for piece in pieces:
        text += checker.push(piece)
        if checker.matched is not None:
            return text, checker.matched
    return text + checker.flush(), checker.matched


@pytest.mark.parametrize(
    ("output", "stop", "expected"),
    [
        (f"b\n\n{CALL}", "\n\n", ("b", "\n\n")),
        (f"<think>a\n\nb</think>\n\nc\n\n{CALL}", "\n\n", ("<think>a\n\nb</think>\n\nc", "\n\n")),
        ("b\n\n<think>a</think>\n\nc", "\n\n", ("b", "\n\n")),
        (f"{CALL}\n\n{CALL}", "Rome", (f"{CALL}\n\n{CALL}", None)),
    ],
)
def test_white_space_before_markup(output: str, stop: str, expected: tuple[str, str | None]) -> None:
    for size in (1, 2, 3, 5, 8, len(output)):
        assert stopped(cut(output, [size]), stop) == expected
    for first in range(1, len(output)):
        assert stopped([output[:first], output[first:]], stop) == expected

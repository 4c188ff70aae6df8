"""Stop strings in answers with markup.

Laws:
    1. The result does not depend on how the output is cut.
    2. The text before a stop string that ends an answer in its text is whole, in every dialect.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from dialects.test_defects import DIALECTS
from hypothesis import given
from hypothesis import strategies as st
from support.parsing.defects import TOOLS as DEFECTS_TOOLS
from support.parsing.dialects import Folded, cut, fold, kept_dialect

from plumbline.answer.dialects.answer_regions import answer_regions
from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.model_dialect import AnswerFrame
from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import ToolDialect
from plumbline.answer.events import OutputEvent, TextDelta
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


def read(tool: ToolDialect, output: str, sizes: list[int], stop: str = "") -> Folded:
    """The message of an output, up to a stop string if one is given."""
    parser, regions = (kept_dialect(tool).parser(tools=DEFECTS_TOOLS) for _ in range(2))
    parts = answer_regions(regions)
    assert parts is not None
    checker = AnswerStopChecker((stop,) if stop else (), parts)
    events: list[OutputEvent] = []
    for piece in cut(output, sizes):
        events += parser.push(TextDelta(checker.push(piece)))
        if checker.matched is not None:
            break
    if checker.matched is None:
        events += parser.push(TextDelta(checker.flush()))
    if checker.in_text:
        return fold([*events, *parser.finish_in_text()])
    return fold([*events, *parser.finish("stop" if checker.matched is None else "length")])


@given(
    before=st.sampled_from(["", "So.\n", "So ", "a `b` ", "<b>"]),
    after=st.sampled_from(["", " it.", "\n", '": 1}', "</tool_call>\nSo."]),
    named=st.sampled_from(["get", "other"]),
    data=st.data(),
)
def test_text_before_a_stop_string_is_whole(before: str, after: str, named: str, data: st.DataObject) -> None:
    tool = data.draw(st.sampled_from(DIALECTS))
    call = render_calls([WrittenCall(named, '{"city": "Paris", "days": 3}')], tool.sections[0])
    cut_at = data.draw(st.integers(0, len(call)))
    output = f"{before}{call[:cut_at]}STOP{after}"
    free = read(tool, output, [len(output)])
    for sizes in ([len(output)], [1], [3, 7]):
        message = read(tool, output, sizes, "STOP")
        # Without what follows, the beginning of an end belongs to the call before it.
        if "STOP" in free.content and not free.calls:
            assert message.content.rstrip() == free.content.partition("STOP")[0].rstrip(), (tool.name, output)
            assert message.calls == []
        else:
            assert free.content.startswith(message.content.rstrip()), (tool.name, output)

"""The input of a custom call comes out of its JSON the same in every cutting."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from support.parsing.folding import cut

from plumbline.answer.dialects.parsers.custom_tools import CustomCalls, InputReader
from plumbline.answer.events import OutputEvent, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ['a"b\\c\n', "😀é€", "\\u0041", "\x00\x7f"]
)
sizes = st.lists(st.integers(1, 7), min_size=1, max_size=5)


@given(texts, sizes, st.booleans(), st.sampled_from(['{"input": %s}', '{"input":%s}', ' { "input" : %s } ']))
def test_any_cutting_gives_the_input(text: str, pieces: list[int], ascii_only: bool, shape: str) -> None:
    written = shape % json.dumps(text, ensure_ascii=ascii_only)
    reader = InputReader()
    found = [reader.push(piece) for piece in cut(written, pieces)]
    assert "".join(found) == text
    assert all(piece.encode("utf-8") is not None for piece in found)


@given(texts, sizes, st.integers(0, 200))
def test_a_cut_call_gives_a_prefix_of_the_input(text: str, pieces: list[int], end: int) -> None:
    reader = InputReader()
    written = json.dumps({"input": text})[:end]
    assert text.startswith("".join(reader.push(piece) for piece in cut(written, pieces)))


def test_only_custom_calls_are_translated() -> None:
    events: list[OutputEvent] = [
        TextDelta("{"),
        ToolCallStart("f", "1"),
        ToolCallDelta('{"input": "x"}'),
        ToolCallEnd(),
        ToolCallStart("c", "2"),
        ToolCallDelta('{"inp'),
        ToolCallDelta('ut": "x\\n'),
        ToolCallDelta('y"}'),
        ToolCallEnd(),
    ]
    assert list(CustomCalls(["c"]).translate(events)) == [
        *events[:4],
        ToolCallStart("c", "2", custom=True),
        ToolCallDelta("x\n"),
        ToolCallDelta("y"),
        ToolCallEnd(),
    ]

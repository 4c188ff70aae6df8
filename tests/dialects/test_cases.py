"""Outputs in the style of each family, and what a client gets of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.about import about
from support.parsing.dialects import Dialect, fold

from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import ToolDialect, Utterance
from plumbline.answer.events import OutputEvent, TextDelta, ToolCallStart

_FOLDER = Path(__file__).parent / "cases"
_FILES = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(_FOLDER.glob("*.json"))}


@pytest.mark.parametrize("name", _FILES)
def test_a_case_is_parsed_as_its_file_expects(name: str) -> None:
    file = _FILES[name]
    for key in ("cases", "inside"):
        for case in file.get(key, ()):
            with about(case["title"]):
                _check(file, case, key == "inside")


def _check(file: dict[str, Any], case: dict[str, Any], inside: bool) -> None:
    tool = TOOL_DIALECTS[file["tool"]] if "tool" in file else None
    reasoning = REASONING_DIALECTS[file["reasoning"]] if file["reasoning"] else None
    dialect = Dialect(tool, reasoning)
    text = case["output"]
    for pieces in ([text], list(text), [text[i : i + 5] for i in range(0, len(text), 5)]):
        parser = dialect.parser(tools=file.get("tools", {}), inside=inside)
        events: list[OutputEvent] = []
        for piece in pieces:
            events += parser.push(TextDelta(piece))
        events += parser.finish(case.get("reason", "stop"))
        folded = fold(events)
        assert folded.reasoning == case.get("reasoning", "")
        assert folded.content == case["content"]
        assert [(call.name, call.complete) for call in folded.calls] == [
            (call["name"], call.get("complete", True)) for call in case["calls"]
        ]
        for call, expected in zip(folded.calls, case["calls"], strict=True):
            if call.complete:
                assert json.loads(call.arguments) == json.loads(expected["arguments"])
            else:
                assert call.arguments == expected["arguments"]
        assert len(parser.warnings) == case.get("warnings", 0), parser.warnings
        assert [*parser.undeclared] == case.get("undeclared", [])
        if "ids" in case:
            assert [event.id for event in events if isinstance(event, ToolCallStart)] == case["ids"]


def test_every_dialect_has_six_cases() -> None:
    tools = {file["tool"]: len(file["cases"]) for file in _FILES.values() if "tool" in file}
    reasoning = {
        file["reasoning"]: len(file["cases"]) + len(file["inside"])
        for file in _FILES.values()
        if "tool" not in file
    }
    dialects: list[Any] = [*TOOL_DIALECTS.values(), *REASONING_DIALECTS.values()]
    for dialect in dialects:
        # Harmony is one dialect for both.
        counts = tools if dialect in TOOL_DIALECTS.values() or dialect.messages else reasoning
        assert counts[dialect.name] >= 6, dialect.name


_TWICE = [d for d in dict.fromkeys(TOOL_DIALECTS.values()) if d.anywhere]


@pytest.mark.parametrize("tool", _TWICE, ids=[tool.name for tool in _TWICE])
def test_control_tokens_that_come_twice_are_read_once_without_a_reasoning_dialect_too(
    tool: ToolDialect,
) -> None:
    """As with `--reasoning-parser none`, where the markers of calls are control tokens all the same."""
    dialect = Dialect(tool, None)
    section = tool.sections[0]
    written = dialect.write(Utterance((WrittenCall("ping", "{}"),)))
    doubled = written.replace(section.open[0], section.open[0] * 2)
    doubled = doubled.replace(section.close[0], section.close[0] * 2)
    assert doubled != written
    assert dialect.read([f"{doubled}Done."]) == dialect.read([f"{written}Done."])

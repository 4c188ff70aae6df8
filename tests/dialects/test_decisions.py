"""Outputs that other servers read differently: the Decisions of docs/explanation/dialect-outputs.md, row by row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.parsing.dialects import Folded, cut, fold, kept_dialect

from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Utterance
from plumbline.answer.events import TextDelta

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "text": {"type": "string"},
        "maybe": {"type": ["integer", "null"]},
        "counts": {"type": "array", "items": {"type": ["integer", "null"]}},
        "texts": {"type": "array", "items": {"type": ["string", "null"]}},
    },
}
NS = "]<]minimax[>["


def read(tool: str, text: str, reasoning: str | None = None, *, inside: bool = False) -> Folded:
    """The message, which does not depend on how the text was cut."""
    dialect = kept_dialect(TOOL_DIALECTS[tool], REASONING_DIALECTS[reasoning] if reasoning else None)
    found = []
    for sizes in ([len(text)], [1], [3, 7]):
        parser = dialect.parser(tools={"f": PARAMETERS}, inside=inside)
        events = [event for piece in cut(text, sizes) for event in parser.push(TextDelta(piece))]
        found.append(fold([*events, *parser.finish("stop")]))
    assert found[0] == found[1] == found[2]
    return found[0]


def arguments(message: Folded) -> Any:
    (call,) = message.calls
    assert call.complete
    return json.loads(call.arguments)


@pytest.mark.parametrize("tool", ["deepseek_v32", "deepseek_v4", "deepseek_v41", "gigachat35", "kimi_k3"])
@pytest.mark.parametrize(
    ("name", "string", "text", "value"),
    [
        ("count", True, "42", "42"),
        ("text", False, "null", None),
        ("text", False, "42", 42),
        ("maybe", True, "null", "null"),
    ],
)
def test_a_written_type_counts_against_the_schema(
    tool: str, name: str, string: bool, text: str, value: Any
) -> None:
    dialect = kept_dialect(TOOL_DIALECTS[tool])
    placeholder = "@" if string else 987
    written = dialect.write(Utterance((WrittenCall("f", json.dumps({name: placeholder})),)))

    assert arguments(read(tool, written.replace(str(placeholder), text))) == {name: value}


@pytest.mark.parametrize(
    ("tool", "reasoning"),
    [("lfm2", "think"), ("mistral", "mistral"), ("reka", "reka"), ("ling3", "ling3")],
)
def test_a_call_inside_of_open_thinking_is_a_call_and_what_follows_is_thinking(
    tool: str, reasoning: str
) -> None:
    call = kept_dialect(TOOL_DIALECTS[tool]).write(Utterance((WrittenCall("f", '{"count": 3}'),)))
    end = REASONING_DIALECTS[reasoning].close[0]
    opened = read(tool, f"First. {call} Then.", reasoning, inside=True)
    ended = read(tool, f"First. {call} Then.{end}", reasoning, inside=True)
    answered = read(tool, f"First. {call} Then.{end}Done.", reasoning, inside=True)

    assert arguments(opened) == arguments(ended) == {"count": 3}
    assert (opened.reasoning.split(), opened.content) == (["First.", "Then."], "")
    assert (ended.reasoning.split(), ended.content) == (["First.", "Then."], "")
    assert (answered.reasoning, answered.content, answered.calls) == (f"First. {call} Then.", "Done.", [])


@pytest.mark.parametrize("shown", ["[f(count=3)]", "[f(count=4)]", "So:\n[f(count=3)]\nThat is it."])
def test_calls_of_lfm2_without_markers_behind_calls_with_markers_are_text(shown: str) -> None:
    message = read("lfm2", f"<|tool_call_start|>[f(count=3)]<|tool_call_end|>\n{shown}")

    assert (arguments(message), message.content.strip()) == ({"count": 3}, shown)


def test_a_backslash_in_a_string_of_lfm2_begins_an_escape() -> None:
    message = read("lfm2", r"<|tool_call_start|>[f(text='C:\new')]<|tool_call_end|>")

    assert arguments(message) == {"text": "C:\new"}


@pytest.mark.parametrize(
    ("element", "value"),
    [
        (f"{NS}<maybe>{NS}</maybe>", {"maybe": None}),
        (
            f"{NS}<counts>{NS}<item>1{NS}</item>{NS}<item>{NS}</item>{NS}</counts>",
            {"counts": [1, None]},
        ),
        (f"{NS}<texts>{NS}<item>{NS}</item>{NS}</texts>", {"texts": [""]}),
    ],
)
def test_an_empty_element_is_null_only_where_it_cannot_be_a_string(
    element: str, value: dict[str, Any]
) -> None:
    output = f'{NS}<tool_call>\n{NS}<invoke name="f">\n{element}\n{NS}</invoke>\n{NS}</tool_call>'

    assert arguments(read("minimax_m3", output)) == value

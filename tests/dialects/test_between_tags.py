"""JSON between tags: where it ends, and what becomes of what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.speeches import Folded, fold

from plumbline.dialects.markup import Markup
from plumbline.dialects.parser import DialectParser
from plumbline.dialects.registry import TOOL_DIALECTS
from plumbline.events import FinishReason, TextDelta

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "list": {"type": "array"},
        "o": {"type": "object"},
        "b": {"type": "string"},
    },
}


def read(dialect: str, text: str, reason: FinishReason = "stop") -> Folded:
    """The message, which does not depend on how the text was cut."""
    found = []
    for pieces in ([text], list(text)):
        tools = {"f": SCHEMA}
        parser = DialectParser(
            Markup(TOOL_DIALECTS[dialect], None), tools, inside=False, new_id=lambda _, number: str(number)
        )
        events = [event for piece in pieces for event in parser.push(TextDelta(piece))]
        found.append(fold([*events, *parser.finish(reason)]))
    assert found[0] == found[1]
    return found[0]


def glm(*values: tuple[str, str]) -> str:
    inside = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values)
    return f"<tool_call>f{inside}</tool_call>"


@pytest.mark.parametrize("depth", [1, 100, 300])
def test_an_end_inside_of_a_string_is_part_of_it_at_any_depth(depth: int) -> None:
    value = "[" * depth + '"x</arg_value>y"' + "]" * depth
    (call,) = read("glm47", glm(("list", value), ("b", "c"))).calls

    assert (call.complete, call.arguments) == (True, f'{{"list": {value}, "b": "c"}}')


def test_a_long_number_before_an_end_in_a_string_changes_nothing() -> None:
    value = "[" + "1" * 3000 + ', "x</arg_value>y"]'
    (call,) = read("glm47", glm(("list", value))).calls

    assert call.complete
    assert "x</arg_value>y" in call.arguments


@pytest.mark.parametrize("value", ['"3', '{"a" "b', "['it', 'x\"]", '["a, "b"]'])
def test_what_is_no_json_ends_at_the_first_tag(value: str) -> None:
    """A text that cannot be the beginning of an object or array takes nothing of what stands behind it."""
    message = read("glm47", f"{glm(('n', value), ('b', 't'))}\nbye")
    (call,) = message.calls

    assert (call.complete, json.loads(call.arguments)) == (True, {"n": value, "b": "t"})


def test_the_end_of_an_element_ends_what_is_open_in_it() -> None:
    tag = "]<]minimax[>["
    section = TOOL_DIALECTS["minimax_m3"].sections[0]
    call_text = f'{tag}<invoke name="f">{tag}<o>{{"k": "x{tag}</o>\n{tag}</invoke>'
    text = f"{section.open[0]}\n{call_text}\n{section.close[0]}"
    message = read("minimax_m3", text)
    (call,) = message.calls

    assert (call.complete, json.loads(call.arguments)) == (True, {"o": '{"k": "x'})
    assert message.content == ""


def test_a_value_that_the_limit_cuts_behind_an_end_is_not_told() -> None:
    text = glm(("list", '["x</arg_value>y"]'))
    cut = text[: text.index("</arg_value>y") + len("</arg_value>")]
    (call,) = read("glm47", cut, "length").calls

    assert (call.complete, call.arguments) == (False, '{"list": ')

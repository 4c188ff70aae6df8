"""JSON between tags: where it ends, and what becomes of what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.parsing.dialects import Folded, fold

from plumbline.answer.dialects.parsers.marker_parser import MarkerParser
from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.dialects.spec.markers import Markers
from plumbline.answer.events import FinishReason, TextDelta

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "list": {"type": "array"},
        "o": {"type": "object"},
        "b": {"type": "string"},
    },
}
TAG = "]<]minimax[>["


def read(dialect: str, text: str, reason: FinishReason = "stop") -> Folded:
    """The message, which does not depend on how the text was cut."""
    found = []
    for pieces in ([text], list(text)):
        tools = {"f": SCHEMA}
        parser = MarkerParser(
            Markers(TOOL_DIALECTS[dialect], None), tools, inside=False, new_id=lambda _, number: str(number)
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


@pytest.mark.parametrize(
    "value",
    [
        "{'a': 1}",
        "[foo]",
        "[1",
        "[",
        "{a: 1}",
        "{]",
        '{"a": 1}',
        "[1'2]",
        " seven",
    ],
)
def test_what_shows_at_its_beginning_to_be_no_array_is_a_string(value: str) -> None:
    (call,) = read("glm47", glm(("list", value), ("b", "t"))).calls

    assert (call.complete, json.loads(call.arguments)) == (True, {"list": value, "b": "t"})


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("[{'a': [1]}]", [{"a": [1]}]),
        ("[ {\n  'a': 1}]", [{"a": 1}]),
        ("['x', True, None]", ["x", True, None]),
    ],
)
def test_a_python_list_is_an_array(value: str, meant: list[Any]) -> None:
    (call,) = read("glm47", glm(("list", value), ("b", "t"))).calls

    assert (call.complete, json.loads(call.arguments)) == (True, {"list": meant, "b": "t"})


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ('["a", 1, "b" 2]', ["a", 1, "b", 2]),
        ('[{"a": 1}]]', [{"a": 1}]),
        ('["a", seven]', ["a", "seven"]),
        ("[1 2]", [1, 2]),
        ('["a"', ["a"]),
        ('["a", 1', ["a", 1]),
        ("[1, 'a']", [1, "a"]),
        ('["a",]', ["a"]),
    ],
)
def test_what_is_nearly_json_is_read_as_it_is_meant(value: str, meant: list[Any]) -> None:
    (call,) = read("glm47", glm(("list", value), ("b", "t"))).calls

    assert (call.complete, json.loads(call.arguments)) == (True, {"list": meant, "b": "t"})


def test_a_string_without_its_end_breaks_off_the_call() -> None:
    """What was passed on is never taken back, and the rest of the markup is no text."""
    message = read("glm47", f"{glm(('list', chr(91) + chr(34) + 'a' + chr(10) + 'b'), ('b', 't'))}Done.")
    (call,) = message.calls

    assert (call.complete, call.arguments) == (False, '{"list": ["a\\nb')
    assert message.content == "Done."


def test_words_of_python_and_line_feeds_are_corrected() -> None:
    (call,) = read("glm47", glm(("o", '{"a": [True, None], "b": "x\ny"}'))).calls

    assert (call.complete, call.arguments) == (True, '{"o": {"a": [true, null], "b": "x\\ny"}}')


def test_the_first_of_two_arrays_counts_whatever_the_second_is() -> None:
    (call,) = read("glm47", glm(("list", "[1]"), ("list", '["a</arg_value>b", 2'), ("b", "t"))).calls

    assert (call.complete, call.arguments) == (True, '{"list": [1], "b": "t"}')


def m3(inside: str) -> str:
    section = TOOL_DIALECTS["minimax_m3"].sections[0]
    return f'{section.open[0]}\n{TAG}<invoke name="f">{inside}\n{TAG}</invoke>\n{section.close[0]}'


def test_the_end_of_an_element_ends_what_is_open_in_it() -> None:
    """A quote is missing: the string does not go on behind the element."""
    message = read("minimax_m3", m3(f'{TAG}<o>{{"k": "x{TAG}</o>'))
    (call,) = message.calls

    assert (call.complete, call.arguments) == (False, '{"o": {"k": "x')
    assert message.content == ""


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        (f"{TAG}<list>{TAG}<item>1{TAG}</item> {TAG}<item>a{TAG}</item>{TAG}</list>", '{"list": [1, "a"]}'),
        (f"{TAG}<list>{TAG}</list>{TAG}<o> {TAG}</o>", '{"list": [], "o": {}}'),
        (
            f"{TAG}<o>{TAG}<a>1{TAG}</a>{TAG}<a>2{TAG}</a>{TAG}<c>t{TAG}</c>{TAG}</o>",
            '{"o": {"a": [1, 2], "c": "t"}}',
        ),
        (f'{TAG}<o>{{"a": "x{TAG}y"}}{TAG}</o>', f'{{"o": {{"a": "x{TAG}y"}}}}'),
        (f'{TAG}<list>["a"]\n{TAG}</list>', '{"list": ["a"]}'),
        (f"{TAG}<list>['a']{TAG}</list>", '{"list": ["a"]}'),
    ],
)
def test_elements_become_arrays_and_objects(inside: str, arguments: str) -> None:
    (call,) = read("minimax_m3", m3(inside)).calls

    assert (call.complete, call.arguments) == (True, arguments)


@given(members=st.lists(st.tuples(st.sampled_from("acd"), st.integers(0, 9)), min_size=1, max_size=6))
def test_elements_of_one_name_are_a_list_in_any_order(members: list[tuple[str, int]]) -> None:
    inside = "".join(f"{TAG}<{name}>{value}{TAG}</{name}>" for name, value in members)
    (call,) = read("minimax_m3", m3(f"{TAG}<o>{inside}{TAG}</o>")).calls

    by_name: dict[str, list[int]] = {}
    for name, value in members:
        by_name.setdefault(name, []).append(value)
    expected = {name: values if len(values) > 1 else values[0] for name, values in by_name.items()}
    assert (call.complete, json.loads(call.arguments)) == (True, {"o": expected})


def test_a_value_that_the_limit_cuts_behind_an_end_ends_before_it() -> None:
    """The end may have been the value's, or part of its string."""
    text = glm(("list", '["x</arg_value>y"]'))
    cut = text[: text.index("</arg_value>y") + len("</arg_value>")]
    (call,) = read("glm47", cut, "length").calls

    assert (call.complete, call.arguments) == (False, '{"list": ["x')


_LINES = st.lists(st.text("ab <>/=\n", max_size=8), max_size=4).map("\n".join)


@given(value=_LINES, tag=st.sampled_from(["b", "q", "list"]), own_line=st.booleans())
def test_a_value_without_its_end_stops_before_a_line_with_another_parameter(
    value: str, tag: str, own_line: bool
) -> None:
    text = f"<parameter={tag}>" + ("" if own_line else " x")
    output = f"<tool_call>\n<function=f>\n<parameter=b>\n{value}\n{text}\n[1]\n</parameter>\n</function>\n</tool_call>"
    (call,) = read("qwen3_coder", output).calls

    expected: dict[str, Any] = {"b": f"{value}\n{text}\n[1]"}
    if tag == "list":
        expected = {"b": value, "list": [1] if own_line else " x\n[1]"}
    assert (call.complete, json.loads(call.arguments)) == (True, expected)

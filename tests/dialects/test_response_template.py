"""Answers parsed by a response template, compared with the parser of transformers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.parsing.folding import Folded, cut, parse
from support.parsing.response_templates import JSON_CALLS, TAGGED_CALLS
from transformers.utils.chat_parsing import parse_response

from plumbline.answer.dialects.parsers.response_templates.delimiters import Delimiters, Found
from plumbline.answer.dialects.parsers.response_templates.response_template import (
    BadResponseTemplateError,
    ResponseTemplate,
    ResponseTemplateParser,
)
from plumbline.answer.dialects.registry import UnknownDialectError, choose
from plumbline.answer.events import FinishReason, TextDelta

laws = settings(max_examples=EXPLORED or 40)
TOOLS: dict[str, dict[str, Any]] = {"f": {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}}


def reader(source: dict[str, Any], opening: str = "") -> ResponseTemplateParser:
    return ResponseTemplateParser(
        ResponseTemplate(source), opening, TOOLS, new_id=lambda name, number: f"c{number}"
    )


def read(source: dict[str, Any], text: str, opening: str = "", reason: FinishReason = "stop") -> Folded:
    return parse(lambda: reader(source, opening), [text], reason).folded


words = st.text("abc déf\n", min_size=1).map(str.strip).filter(bool)
sizes = st.lists(st.integers(1, 12), min_size=1, max_size=8)
soup = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<call>", "</call>", '{"name": "f", "arguments": {"n": 1}}', "<eot>"]
    )
    | st.sampled_from(["<call><fn=f>", "</fn></call>", "<p=n>", "3", "</p>", "<thought>", " ", "\n", "x"])
    | words,
    max_size=12,
).map("".join)


@laws
@given(st.sampled_from([JSON_CALLS, TAGGED_CALLS]), soup, sizes, st.sampled_from(["stop", "length"]))
def test_every_cutting_gives_the_same_message(
    source: dict[str, Any], text: str, at: list[int], reason: FinishReason
) -> None:
    whole = parse(lambda: reader(source), [text], reason)
    pieces = parse(lambda: reader(source), cut(text, at), reason)
    assert (pieces.folded, pieces.warnings) == (whole.folded, whole.warnings)


@pytest.mark.parametrize("unit", ["\n", " \n\t ", "<", "a <cal", "</", "x"])
def test_what_is_looked_through_grows_with_the_output_alone(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where everything might be the beginning of a delimiter, as white space is here."""
    looked = 0
    search = Delimiters.search

    def counted(self: Delimiters, text: str, pos: int, *, closed: bool) -> Found:
        nonlocal looked
        looked += len(text) - pos
        return search(self, text, pos, closed=closed)

    monkeypatch.setattr(Delimiters, "search", counted)
    costs = []
    for length in (4_000, 16_000):
        looked = 0
        text = (unit * length)[:length]
        said = parse(lambda: reader(JSON_CALLS), cut(f"word{text}word", [4]), "stop").folded
        assert "".join(part[1] for part in said) == f"word{text}word"
        costs.append(looked / length)
    assert costs[1] < 1.5 * costs[0]


@laws
@given(st.none() | words, st.none() | words, st.lists(st.tuples(st.integers(), words), max_size=3))
def test_well_formed_answers_are_parsed_as_by_transformers(
    thought: str | None, said: str | None, called: list[tuple[int, str]]
) -> None:
    calls = "".join(
        f"<call>{json.dumps({'name': 'f', 'arguments': {'n': number, 's': text}})}</call>"
        for number, text in called
    )
    text = (f"<think>{thought}</think>" if thought else "") + (said or "") + calls + "<eot>"
    theirs = parse_response(text, JSON_CALLS, prefix="")
    ours = read(JSON_CALLS, text)
    assert [part[1] for part in ours if part[0] == "reasoning"] == (
        [theirs["reasoning_content"]] if thought else []
    )
    assert "".join(part[1] for part in ours if part[0] == "text") == theirs.get("content", "")
    assert [(part[1], json.loads(part[2])) for part in ours if part[0] == "call"] == [
        (call["function"]["name"], call["function"]["arguments"]) for call in theirs.get("tool_calls", [])
    ]


def test_texts_become_what_the_schema_allows() -> None:
    text = "<call><fn=f><p=n>3</p><p=s>3</p></fn></call>"
    assert read(TAGGED_CALLS, text) == [("call", "f", '{"n": 3, "s": "3"}', "whole")]


def test_what_the_prompt_has_opened_goes_on() -> None:
    assert read(JSON_CALLS, "hm</think>yes", opening="<think>\n") == [("reasoning", "hm"), ("text", "yes")]


def test_the_opening_is_what_stands_behind_the_last_anchor_of_the_template() -> None:
    template = ResponseTemplate(JSON_CALLS)
    added = {"<turn>": 0, "<think>": 1}
    table = [b"<turn>", b"<think>", b"model\n", b"<turn>model\n"]
    # The last id is text that a user has written: it looks like the anchor, and is none.
    assert template.opening([3, 1, 0, 2], added, table) == ""
    assert template.opening([3, 0, 2, 1], added, table) == "<think>"


def test_broken_markup_and_unknown_tools_stay_text() -> None:
    assert read(JSON_CALLS, "a <call>{oops</call> b") == [("text", "a <call>{oops</call> b")]
    assert read(JSON_CALLS, '<call>{"name": "g", "arguments": {}}</call>') == [
        ("text", '<call>{"name": "g", "arguments": {}}</call>')
    ]
    parser = reader(JSON_CALLS, "")
    parser.push(TextDelta('<call>{"name": "g", "arguments": {}}</call>'))
    parser.finish("stop")
    assert parser.undeclared == ["g"]


def test_arguments_can_be_sent() -> None:
    """`json` reads and writes more than JSON is, and half of a surrogate pair is no character."""
    unfit = '<call>{"name": "f", "arguments": {"n": [NaN]}}</call>'
    assert read(JSON_CALLS, unfit) == [("text", unfit)]
    half = '<call>{"name": "f", "arguments": {"s": "\\ud800"}}</call>'
    assert read(JSON_CALLS, half) == [("call", "f", '{"s": "\\ud800"}', "whole")]


@laws
@given(st.text("ab<>z", max_size=12), st.text("ab<>z", max_size=4), sizes)
def test_delimiters_without_a_character_lose_none(text: str, opening: str, at: list[int]) -> None:
    fields = {
        "thinking": {"open_pattern": "(?=<)", "close_pattern": "(?=[<>])"},
        "content": {"close_pattern": "(?=z)"},
    }
    source = {"start_anchor": "<turn>", "fields": fields}
    pieces = parse(lambda: reader(source, opening), cut(text, at))
    assert "".join(part[1] for part in pieces.folded) == text
    assert pieces.folded == read(source, text, opening)


def test_a_call_without_its_end_is_one_only_where_nothing_can_be_missing() -> None:
    open_end = '<call>{"name": "f", "arguments": {"n": 1}}'
    assert read(JSON_CALLS, open_end) == [("call", "f", '{"n": 1}', "whole")]
    broken = "<call><fn=f><p=n>3</p><p=s>the be"
    assert read(TAGGED_CALLS, broken) == [("text", broken)]


def test_a_call_that_the_token_limit_ends_at_its_end_is_whole() -> None:
    """Also where the delimiter is a pattern, which might have gone on."""
    text = "a <call><fn=f><p=n>3</p></fn></call>"
    assert read(TAGGED_CALLS, text, reason="length") == [("text", "a"), ("call", "f", '{"n": 3}', "whole")]


def test_a_call_cut_by_the_token_limit_leaves_nothing() -> None:
    assert read(JSON_CALLS, 'a <call>{"name": "f", "argu', reason="length") == [("text", "a")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fields": {"tools": {"open": "<x>"}}}, "fields that no API can show: tools"),
        ({"version": 2}, "not valid"),
        ({"fields": {"content": {"open_pattern": "("}}}, "not valid"),
        (
            {"fields": {"tool_calls": {"content": "xml-inline", "content_args": {"tag_pattern": "("}}}},
            "not valid",
        ),
    ],
)
def test_an_unusable_template_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadResponseTemplateError, match=reason):
        ResponseTemplate({**JSON_CALLS, **change})


def test_it_is_used_by_its_name_or_where_nothing_else_fits() -> None:
    assert choose("", response_template=JSON_CALLS).response_template is not None
    assert choose("<tool_call>", tool="hf", response_template=JSON_CALLS).response_template is not None
    with pytest.raises(UnknownDialectError, match="response_template"):
        choose("", tool="hf")

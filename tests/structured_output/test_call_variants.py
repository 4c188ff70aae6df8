"""Laws of call variants: calls are constrained to the variant that the model's template writes, and parsed back."""

from __future__ import annotations

import json
from functools import cache

import msgspec
import pytest
from support.parsing.folding import fold

from plumbline.answer.dialects.model_dialect import ModelDialect
from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import TOOL_DIALECTS, choose
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Section, ToolDialect
from plumbline.answer.dialects.variant import EXAMPLE
from plumbline.answer.events import TextDelta
from plumbline.answer.structured_output.answer_grammar import unparsed_part
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.turn import JsonFormat, ToolChoice

from .test_answer_grammar import SCHEMAS, TOOLS, check_calls, composed, drawn, read
from .walk import accepts, frame, model_dialect

ONE = WrittenCall("get_weather", '{"city": "Paris", "days": 3}')
TWO = WrittenCall("set_alarm", '{"on": true, "sound": "bell"}')


def _ways(dialect: ToolDialect) -> list[Section]:
    """The sections, once for each marker that one begins with; those of a slip at the beginning of a line are not."""
    return [
        msgspec.structs.replace(
            section, open=(opened, *(text for text in section.open if text != opened)) if opened else ()
        )
        for section in dialect.sections
        if not section.at_line
        for opened in (section.open or ("",))
    ]


def _begins_like_text(dialect: ToolDialect) -> bool:
    return any(section.starts[:1].isalnum() for section in dialect.sections if not section.open)


WAYS = {
    f"{dialect.name} {number}": (dialect, way)
    for dialect in dict.fromkeys(TOOL_DIALECTS.values())
    if not dialect.messages and len(_ways(dialect)) > 1 and not _begins_like_text(dialect)
    for number, way in enumerate(_ways(dialect))
}
"""Of the dialects that leave a choice, and whose calls can be told from text."""
_ALIKE = ("deepseek_v32", "deepseek_v4", "deepseek_v41")
"""Dialects with the same ways, 56 each, but for the order of wrappers and their spaces."""


def _is_long(name: str) -> bool:
    """Whether the fast suite tries a way, but for the first, with another of the dialects that are alike."""
    dialect, _, number = name.partition(" ")
    return dialect in _ALIKE and number != "0" and int(number) % len(_ALIKE) != _ALIKE.index(dialect)


each_way = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if _is_long(name) else ()) for name in WAYS]
)


def test_dialects_that_are_alike_have_as_many_ways() -> None:
    assert len({sum(name.split()[0] == dialect for name in WAYS) for dialect in _ALIKE}) == 1


@cache
def model(dialect: ToolDialect, way: Section) -> ModelDialect:
    """Return a model whose template writes calls in this variant."""
    written = render_calls([EXAMPLE], way)
    chosen = choose("", tool=dialect.name, show_call=lambda call_id: f"<user>Hi<model>\n{written}<end>").tool
    assert chosen is not None
    assert chosen.sections[0].call_format == way.call_format
    assert chosen.sections[0].open == way.open
    assert len(chosen.sections) == len(dialect.sections)
    return model_dialect(chosen)


@each_way
def test_calls_are_constrained_to_the_variant_of_the_template(name: str) -> None:
    found = model(*WAYS[name])
    section = WAYS[name][1]
    several = composed(found, ToolChoice(mode="required"))
    text_besides_calls = composed(found, ToolChoice(mode="required", parallel=False))
    beside = composed(found, ToolChoice(mode="auto"))
    for said in ([ONE], [TWO], [ONE, TWO], [TWO, TWO, ONE]):
        text = render_calls(said, section)
        assert accepts(several, text), text
        assert accepts(beside, text), text
        assert accepts(text_besides_calls, text) == (len(said) == 1), text
        folded, warnings = read(found, text)
        assert [(part[1], json.loads(part[2]), part[3]) for part in folded] == [
            (call.name, json.loads(call.arguments), "whole") for call in said
        ]
        assert {part[0] for part in folded} == {"call"}
        assert not warnings


@each_way
def test_what_is_drawn_in_each_way_is_read_as_calls(name: str) -> None:
    found = model(*WAYS[name])
    dialect = found.choice.tool
    assert dialect is not None
    grammar = composed(found, ToolChoice(mode="required"))
    for text in drawn(grammar, dialect):
        folded, warnings = read(found, text)
        assert {part[0] for part in folded} == {"call"}, text
        assert check_calls(folded)
        assert not warnings
    for text in drawn(composed(found, ToolChoice(mode="auto")), dialect, limit=20):
        check_calls(read(found, text)[0])


SPREAD = 10
_WRONG = WrittenCall("set_alarm", '{"on": "perhaps"}')


@each_way
def test_no_way_is_open_to_a_call_that_breaks_its_schema(name: str) -> None:
    """TOOL-01: with `auto`, only the constrained variant can be a call of a strict tool."""
    dialect, way = WAYS[name]
    found = model(dialect, way)
    grammar = composed(found, ToolChoice(mode="auto"))
    ways = _ways(dialect)
    # Of forty ways, each beside every tenth: all 1,600 pairs take a minute and more.
    others = ways[ways.index(way) % SPREAD :: SPREAD] if len(ways) > 2 * SPREAD else ways
    for before in ("", "\n", "Well. ", f"{render_calls([TWO], way)}", f"{render_calls([TWO], way)}\n"):
        for other in others:
            for text in (
                f"{before}{render_calls([_WRONG], other)}",
                f"{before}; {render_calls([_WRONG], other)}",
            ):
                calls = [part for part in read(found, text)[0] if part[0] == "call"]
                if [part[1:3] for part in calls][-1:] == [("set_alarm", _WRONG.arguments)]:
                    assert not accepts(grammar, text), text


@each_way
def test_text_stays_free_beside_each_way(name: str) -> None:
    dialect, way = WAYS[name]
    grammar = composed(model(dialect, way), ToolChoice(mode="auto"))
    texts = ["", "No.", "\n\nNo, { and [ mean nothing here."]
    if way.open:
        texts += [f"{text}{render_calls([ONE], way)}" for text in texts]
        texts += [f"{text}\n\nSo be it." for text in texts[3:]]
    for text in texts:
        assert accepts(grammar, text), text


DOCUMENTS = ["{}", '{"name": "now"}', "[]", '[{"a": 1}]', '["[TOOL_CALLS]"]', "1", '"functools"']


@each_way
def test_a_document_may_come_instead_of_calls_in_each_way(name: str) -> None:
    dialect, way = WAYS[name]
    found = model(dialect, way)
    auto = ToolChoice(mode="auto")
    form = JsonFormat({})
    grammar = composed(found, auto, output_format=form)
    unparsed = unparsed_part(form, TOOLS, auto, found.syntax, "before")
    for text in (*DOCUMENTS, render_calls([ONE], way), render_calls([ONE, TWO], way)):
        written = found.syntax.text_header + text if text in DOCUMENTS else text
        assert accepts(grammar, written), written
        parser = found.parser(SCHEMAS, frame(), unparsed=unparsed)
        folded = fold([*parser.push(TextDelta(written)), *parser.finish("stop")])
        if text in DOCUMENTS:
            assert folded == [("text", text)]
        else:
            assert {part[0] for part in folded} == {"call"}, text
            assert check_calls(folded)


def test_calls_that_begin_with_their_name_cannot_be_optional() -> None:
    """TOOL-01: what begins with a letter may be text as well; required calls are constrained."""
    functionary = choose("", tool="functionary_v32").tool
    assert functionary is not None
    with pytest.raises(ConstraintError, match="'tool_choice': 'required'"):
        composed(model_dialect(functionary), ToolChoice(mode="auto"))

    required = composed(model_dialect(functionary), ToolChoice(mode="required"))
    assert accepts(required, render_calls([ONE, TWO], functionary.sections[0]))
    assert not accepts(required, render_calls([_WRONG], functionary.sections[0]))

"""Laws of parameter names: a constrained call is never parsed as text or with another parameter name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.laws import EXPLORED
from support.parsing.folding import fold

from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.events import TextDelta
from plumbline.answer.structured_output.constraints import Constraint
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.turn import Tool

from .test_constraints import compiled_constraint
from .walk import accepts, frame, model_dialect, sampled

TOOL_NAMES = sorted({dialect.name for dialect in TOOL_DIALECTS.values()})
STOP_TOKEN = "<|call|>"
"""Ends a call of harmony. It is a stop token, so the text that a grammar matches does not have it."""
HOSTILE = (
    "filter[status]",
    "a b",
    'q"r',
    "x>y",
    "a=b",
    "a:b",
    "a,b",
    "it's",
    "{x}",
    " a",
    "a ",
    "a/b",
    "é",
    "a.b-c",
)


def parameters(name: str, *, required: bool, nested: bool = False) -> dict[str, Any]:
    """A schema of two parameters, this name and `plain`; with `nested`, they are members of a third."""
    found = {
        "type": "object",
        "properties": {name: {"type": "boolean"}, "plain": {"type": "integer", "maximum": 9}},
        "required": [name] if required else ["plain"],
    }
    return {"type": "object", "properties": {"o": found}, "required": ["o"]} if nested else found


def read(dialect: str, schema: dict[str, Any], text: str) -> list[tuple[str, ...]]:
    parser = model_dialect(TOOL_DIALECTS[dialect]).parser({"f": schema}, frame())
    return fold([*parser.push(TextDelta(text)), *parser.finish("stop")])


def compile_or_error(dialect: str, schema: dict[str, Any]) -> Constraint | ConstraintError:
    try:
        return compiled_constraint(Tool(name="f", parameters=schema), dialect=dialect)
    except ConstraintError as error:
        return error


def hostile_names() -> list[tuple[str, tuple[str, ...]]]:
    """Return the names to try with each dialect: a third of them, the others with the next two dialects of its format.

    A format that one or two dialects have is tried with all names.
    """
    formats: dict[type, list[str]] = {}
    for name in TOOL_NAMES:
        formats.setdefault(type(TOOL_DIALECTS[name].sections[0].call_format), []).append(name)
    return [
        (name, HOSTILE if EXPLORED or len(alike) < 3 else HOSTILE[place % 3 :: 3])
        for alike in formats.values()
        for place, name in enumerate(alike)
    ]


@pytest.mark.parametrize(
    ("dialect", "names"), hostile_names(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_name_is_parsed_back_or_excluded(dialect: str, names: tuple[str, ...]) -> None:
    """TOOL-04: with `required`, every answer is a call, also without `strict`.

    - A required parameter with a name that the dialect cannot write is an error; an optional one is left out.
    - The grammar accepts the calls that the parser reads, and no others.
    """
    section = TOOL_DIALECTS[dialect].sections[0]
    for name in names:
        arguments = {name: True}
        schema = parameters(name, required=True)
        text = render_calls([WrittenCall("f", json.dumps(arguments, ensure_ascii=False))], section)
        found = read(dialect, schema, text)
        is_read = (
            len(found) == 1
            and found[0][0] == "call"
            and found[0][3] == "whole"
            and json.loads(found[0][2]) == arguments
        )
        text = text.removesuffix(STOP_TOKEN)
        outcome = compile_or_error(dialect, schema)
        if isinstance(outcome, ConstraintError):
            assert not is_read, name
            assert repr(name) in str(outcome)
            assert outcome.tool == "f"
        else:
            assert is_read, name
            assert outcome.grammar is not None
            assert accepts(outcome.grammar, text), text
        relaxed = compiled_constraint(
            Tool(name="f", parameters=parameters(name, required=False)), dialect=dialect
        )
        assert relaxed.grammar is not None
        both = json.dumps({name: True, "plain": 3}, ensure_ascii=False)
        written = render_calls([WrittenCall("f", both)], section).removesuffix(STOP_TOKEN)
        assert accepts(relaxed.grammar, written) == is_read, name
        if not is_read:
            (warning,) = relaxed.warnings
            assert repr(name) in warning


@pytest.mark.parametrize("dialect", ["minimax_m3", "gemma4", "glm47", "pythonic", "qwen3_coder"])
@pytest.mark.parametrize("name", ["a:b", "x>y", "filter[status]"])
def test_every_sampled_answer_is_a_call(dialect: str, name: str) -> None:
    """The hostile name may be a parameter, or a member of one."""
    for nested in (False, True):
        for required in (False, True):
            schema = parameters(name, required=required, nested=nested)
            outcome = compile_or_error(dialect, schema)
            if isinstance(outcome, ConstraintError):
                continue
            assert outcome.grammar is not None
            for seed in range(3):
                text = sampled(outcome.grammar, seed, limit=25, most=200)
                if text is not None:
                    assert {part[0] for part in read(dialect, schema, text)} == {"call"}, text


def test_a_strict_tool_with_a_name_that_the_dialect_cannot_write_is_refused() -> None:
    strict = {**parameters("filter[status]", required=True), "additionalProperties": False}
    with pytest.raises(ConstraintError) as caught:
        compiled_constraint(Tool(name="f", parameters=strict, strict=True), dialect="pythonic")
    assert caught.value.tool == "f"
    assert compiled_constraint(Tool(name="f", parameters=strict, strict=True)).grammar is not None

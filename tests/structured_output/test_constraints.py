"""Laws of constraints: which tools are relaxed if an engine cannot enforce their schemas."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import pytest
from support.models import scripted, scripted_info

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.answer.dialects.spec.answer_syntax import AnswerSyntax
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.structured_output.constraints import Constraint, ConstraintCompiler
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.turn import ChatPrompt, JsonFormat, Message, OutputFormat, Tool, ToolChoice, Turn
from plumbline.engines.constraints.grammar import GrammarError
from plumbline.port.engine import Engine, RefusedRequestError, SamplingParams

from .walk import accepts, compiler, frame, run, tokenizer

HELD = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 3}}, "required": ["a"]}
UNHELD = {
    "type": "object",
    "properties": {"a": {"type": "integer", "not": {"multipleOf": 3}}},
    "required": ["a"],
}
UNREAD = {"type": "object", "properties": {"a": {"type": "integer", "$ref": "http://x"}}, "required": ["a"]}


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a loaded machine finish the search for the tools that cannot be enforced."""
    monkeypatch.setattr("plumbline.answer.structured_output.constraints._SEARCH_TIME", 60.0)


class Compiling:
    """An engine that compiles grammars and does nothing else."""

    info = scripted_info(features=frozenset({"grammar"}))

    async def check_grammar(self, grammar: str, client: str = "") -> None:
        try:
            await compiler().compile(grammar)
        except GrammarError as error:
            raise RefusedRequestError(str(error)) from None


def compiled_constraint(
    *tools: Tool,
    form: OutputFormat | None = None,
    dialect: str = "hermes",
    reasoning: str | None = None,
    ended: bool = False,
) -> Constraint:
    engine: Any = Compiling()
    made: Engine = engine
    turn = Turn(
        prompt=ChatPrompt(messages=(Message(role="user", content="x"),), tools=tools),
        sampling=SamplingParams(max_tokens=5),
        tool_choice=ToolChoice(mode="required" if form is None else "auto"),
        output_format=form,
    )
    chosen = DialectChoice(
        TOOL_DIALECTS[dialect], None if reasoning is None else REASONING_DIALECTS[reasoning]
    )
    syntax = build_dialect(chosen).syntax
    constraints = ConstraintCompiler(made, tokenizer())
    return run(constraints.grammar(turn, syntax, frame(ended=ended)))


def call(name: str, value: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": {value}}}}}\n</tool_call>'


@pytest.mark.parametrize(("unsupported", "left_out"), [(UNHELD, "bad#/properties/a/not"), (UNREAD, "bad#")])
def test_a_tool_is_relaxed_alone_and_named(unsupported: dict[str, Any], left_out: str) -> None:
    """What one tool asks for and cannot have takes nothing from the others, whichever stands first."""
    tools = (Tool(name="good", parameters=HELD), Tool(name="bad", parameters=unsupported), Tool(name="free"))
    for order in itertools.permutations(tools):
        constraint = compiled_constraint(*order)
        assert constraint.grammar is not None
        assert accepts(constraint.grammar, call("good", "3"))
        assert not accepts(constraint.grammar, call("good", "4"))
        assert accepts(constraint.grammar, call("bad", "4"))
        assert not accepts(constraint.grammar, call("bad", '"x"'))
        assert constraint.unenforced == (left_out,)
        assert len(constraint.warnings) == (left_out == "bad#")
        for warning in constraint.warnings:
            assert warning.startswith("only the names and types of the parameters of bad ")


def test_an_enforced_schema_gives_no_warning() -> None:
    assert compiled_constraint(Tool(name="good", parameters=HELD)).warnings == ()


@pytest.mark.parametrize("dialect", ["qwen3_coder", "minimax_m3", "gemma4"])
def test_keywords_that_markup_cannot_enforce_give_a_warning(dialect: str) -> None:
    """Markup writes named parameters and cannot enforce keywords of the whole object."""
    constraint = compiled_constraint(Tool(name="f", parameters={**HELD, "minProperties": 1}), dialect=dialect)
    assert constraint.grammar is not None
    (warning,) = constraint.warnings
    assert warning.startswith("the parameters of f are not fully enforced: 'minProperties'")
    assert compiled_constraint(Tool(name="f", parameters=HELD), dialect=dialect).warnings == ()
    assert compiled_constraint(Tool(name="f", parameters={**HELD, "minProperties": 1})).warnings == ()


@pytest.mark.parametrize(
    ("dialect", "end"),
    [("qwen3_coder", "</parameter>"), ("minimax_m3", "]<]minimax[>["), ("gemma4", '<|"|>')],
)
def test_a_listed_text_that_markup_would_cut_is_excluded(dialect: str, end: str) -> None:
    """No call is possible that is parsed as another."""
    listed = {"type": "object", "properties": {"a": {"type": "string", "enum": [f"x{end}y", "b"]}}}
    constraint = compiled_constraint(Tool(name="f", parameters=listed), dialect=dialect)
    assert constraint.grammar is not None
    text = render_calls([WrittenCall("f", json.dumps({"a": f"x{end}y"}))], TOOL_DIALECTS[dialect].sections[0])
    assert not accepts(constraint.grammar, text)
    (warning,) = constraint.warnings
    assert warning.startswith("only the names and types of the parameters of f are enforced: ")


def _referring(leaf: dict[str, Any], *, members: bool) -> dict[str, Any]:
    """Parameters in which each of 28 schemas refers twice to the next: 2 ** 28 ways lead to the last."""
    found: dict[str, Any] = {"s28": leaf}
    for number in range(28):
        following = {"$ref": f"#/$defs/s{number + 1}"}
        both = {"x": following, "y": following}
        found[f"s{number}"] = (
            {"type": "object", "properties": both} if members else {"anyOf": [*both.values()]}
        )
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/s0"}}, "$defs": found}


@pytest.mark.parametrize("dialect", ["hermes", "qwen3_coder", "gemma4", "minimax_m3", "pythonic"])
@pytest.mark.parametrize(
    "parameters",
    [
        _referring({"type": "string"}, members=False),
        _referring({"type": ["string", "null"]}, members=False),
        _referring({"type": "string"}, members=True),
        {"properties": {"a": {}}, "required": [["a"]]},
        {"properties": {"a": {}}, "required": 5},
        {"properties": ["a"]},
        {"properties": {"a": {"properties": ["b"]}}},
        {"properties": {"a": {"enum": 5}}},
        {"properties": {"a": {"type": ["no type"]}}},
    ],
)
def test_hostile_parameters_relax_only_their_tool(dialect: str, parameters: dict[str, Any]) -> None:
    """An invalid or impossible schema relaxes only its own tool, quickly."""
    constraint = compiled_constraint(
        Tool(name="f", parameters=parameters), Tool(name="good", parameters=HELD), dialect=dialect
    )
    assert constraint.grammar is not None
    assert not any("parameters of good " in warning for warning in constraint.warnings)
    with contextlib.suppress(ConstraintError):
        compiled_constraint(Tool(name="f", parameters=parameters, strict=True), dialect=dialect)


@pytest.mark.parametrize(
    "dialect", ["hermes", "qwen3_coder", "glm47", "minimax_m3", "gemma4", "deepseek_v32"]
)
@pytest.mark.parametrize(
    "schema", [{"$ref": "#/$defs/S"}, {"anyOf": [{"$ref": "#/$defs/S"}, {"type": "null"}]}]
)
def test_references_are_enforced_without_strict(dialect: str, schema: dict[str, Any]) -> None:
    """As pydantic writes `Optional[Enum]`."""
    parameters = {
        "type": "object",
        "properties": {"a": schema},
        "required": ["a"],
        "$defs": {"S": {"type": "string", "enum": ["q", "r"]}},
    }
    constraint = compiled_constraint(Tool(name="f", parameters=parameters), dialect=dialect)
    assert constraint.grammar is not None
    assert constraint.warnings == ()
    section = TOOL_DIALECTS[dialect].sections[0]
    fits = [
        accepts(constraint.grammar, render_calls([WrittenCall("f", json.dumps({"a": v}))], section))
        for v in ("q", "zz")
    ]
    assert fits == [True, False]


def test_a_listed_text_inside_json_is_enforced() -> None:
    """Between tags an array is JSON, and its strings may contain the end tag."""
    text = "x</parameter>y"
    for schema in ({"type": "array", "items": {"enum": [text]}}, {"type": "array", "enum": [[text]]}):
        constraint = compiled_constraint(
            Tool(name="f", parameters={"properties": {"a": schema}}), dialect="qwen3_coder"
        )
        assert constraint.grammar is not None
        assert not any("names and types" in warning for warning in constraint.warnings)


def test_the_search_for_unsupported_tools_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with many tools that compile slowly costs a bounded time; those not tried give way."""
    monkeypatch.setattr("plumbline.answer.structured_output.constraints._SEARCH_TIME", -1.0)
    constraint = compiled_constraint(Tool(name="good", parameters=HELD), Tool(name="bad", parameters=UNREAD))
    assert constraint.grammar is not None
    assert accepts(constraint.grammar, call("bad", "4"))
    assert not accepts(constraint.grammar, call("bad", '"x"'))
    assert len(constraint.warnings) == 2
    assert all("no time" in warning for warning in constraint.warnings)


def test_what_is_strict_is_never_relaxed() -> None:
    strict = Tool(name="bad", parameters=UNHELD, strict=True)
    for tools in ((strict,), (Tool(name="other", parameters=UNHELD), strict)):
        with pytest.raises(ConstraintError) as caught:
            compiled_constraint(*tools)
        assert caught.value.tool == "bad"
    with pytest.raises(ConstraintError) as caught:
        compiled_constraint(Tool(name="good", parameters=HELD), form=JsonFormat(UNHELD, strict=True))
    assert caught.value.tool is None
    constraint = compiled_constraint(Tool(name="good", parameters=HELD), form=JsonFormat(UNHELD))
    assert constraint.unenforced == ("#/properties/a/not",)


@pytest.mark.parametrize("strict", [False, True])
def test_branches_that_may_overlap_are_alternatives_unless_strict(strict: bool) -> None:
    """Only the engine finds out whether branches overlap, so the grammar is composed a second time."""
    schema = {"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "maximum": 5}]}
    if strict:
        with pytest.raises(ConstraintError, match="'oneOf'"):
            compiled_constraint(form=JsonFormat(schema, strict=True))
        return
    constraint = compiled_constraint(form=JsonFormat(schema))
    assert constraint.grammar is not None
    assert constraint.unenforced == ("#/oneOf",)
    assert accepts(constraint.grammar, "8")
    apart = compiled_constraint(form=JsonFormat({"oneOf": [{"type": "integer"}, {"type": "string"}]}))
    assert apart.unenforced == ()


def test_an_engine_without_grammars_is_not_asked_to_compile() -> None:
    constraints = ConstraintCompiler(scripted(), tokenizer())
    turn = Turn(
        prompt=ChatPrompt(messages=()), sampling=SamplingParams(max_tokens=5), output_format=JsonFormat()
    )
    with pytest.raises(ConstraintError, match="does not support"):
        run(constraints.grammar(turn, AnswerSyntax(), frame()))


def test_text_that_includes_thinking_cannot_be_constrained() -> None:
    """The text would contain the thinking; without thinking it can be constrained."""
    for tools in ((), (Tool(name="good", parameters=HELD),)):
        with pytest.raises(ConstraintError, match="leaves the thinking in the text"):
            compiled_constraint(*tools, form=JsonFormat(), reasoning="minimax_m2_append_think")
        assert compiled_constraint(
            *tools, form=JsonFormat(), reasoning="minimax_m2_append_think", ended=True
        ).grammar
        assert compiled_constraint(*tools, form=JsonFormat(), reasoning="minimax_m2").grammar

"""Which tools give way when an engine cannot hold their schemas, and which do not."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from typing import Any

import pytest
from support.models import scripted, scripted_info

from plumbline.dialects.build import build_dialect
from plumbline.dialects.parsers.render import render_calls
from plumbline.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.dialects.spec.answer_syntax import AnswerSyntax
from plumbline.dialects.spec.call_format import Call
from plumbline.engines.grammar import GrammarError
from plumbline.engines.port import Engine, RefusedRequestError, SamplingParams
from plumbline.structured_output.constraints import Constraint, ConstraintCompiler
from plumbline.structured_output.grammar.errors import ConstraintError
from plumbline.turn import ChatPrompt, JsonFormat, Message, OutputFormat, Tool, ToolChoice, Turn

from .walk import accepts, frame, matcher, tokenizer

HELD = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 3}}, "required": ["a"]}
UNHELD = {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 3}}}, "required": ["a"]}
UNREAD = {"type": "object", "properties": {"a": {"type": "integer", "$ref": "http://x"}}, "required": ["a"]}


class Compiling:
    """An engine that compiles grammars and does nothing else."""

    info = scripted_info(features=frozenset({"grammar"}))

    async def check_grammar(self, grammar: str) -> None:
        try:
            await asyncio.to_thread(matcher, grammar)
        except GrammarError as error:
            raise RefusedRequestError(str(error)) from None


def promised(
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
    promises = ConstraintCompiler(made, tokenizer())
    return asyncio.run(promises.grammar(turn, syntax, frame(ended=ended)))


def call(name: str, value: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": {value}}}}}\n</tool_call>'


@pytest.mark.parametrize("unheld", [UNHELD, UNREAD])
def test_a_tool_gives_way_alone_and_it_is_said(unheld: dict[str, Any]) -> None:
    """What one tool asks for and cannot have takes nothing from the others, whichever stands first."""
    tools = (Tool(name="good", parameters=HELD), Tool(name="bad", parameters=unheld), Tool(name="free"))
    for order in itertools.permutations(tools):
        promise = promised(*order)
        assert promise.grammar is not None
        assert accepts(promise.grammar, call("good", "3"))
        assert not accepts(promise.grammar, call("good", "4"))
        assert accepts(promise.grammar, call("bad", "4"))
        assert not accepts(promise.grammar, call("bad", '"x"'))
        assert len(promise.warnings) == 1
        assert promise.warnings[0].startswith("calls of bad ")


def test_what_is_held_is_held_without_a_word() -> None:
    assert promised(Tool(name="good", parameters=HELD)).warnings == ()


@pytest.mark.parametrize("dialect", ["qwen3_coder", "minimax_m3", "gemma4"])
def test_what_markup_leaves_out_of_a_loose_tool_is_said(dialect: str) -> None:
    """Markup writes the parameters that are named; what the whole object is asked, it knows nothing of."""
    promise = promised(Tool(name="f", parameters={**HELD, "minProperties": 1}), dialect=dialect)
    assert promise.grammar is not None
    (warning,) = promise.warnings
    assert warning.startswith("calls of f are not held to all that their parameters ask: 'minProperties'")
    assert promised(Tool(name="f", parameters=HELD), dialect=dialect).warnings == ()
    assert promised(Tool(name="f", parameters={**HELD, "minProperties": 1})).warnings == ()


@pytest.mark.parametrize(
    ("dialect", "end"),
    [("qwen3_coder", "</parameter>"), ("minimax_m3", "]<]minimax[>["), ("gemma4", '<|"|>')],
)
def test_a_listed_text_that_markup_would_cut_is_not_written(dialect: str, end: str) -> None:
    """A call is never written that is read as another."""
    listed = {"type": "object", "properties": {"a": {"type": "string", "enum": [f"x{end}y", "b"]}}}
    promise = promised(Tool(name="f", parameters=listed), dialect=dialect)
    assert promise.grammar is not None
    text = render_calls([Call("f", json.dumps({"a": f"x{end}y"}))], TOOL_DIALECTS[dialect].sections[0])
    assert not accepts(promise.grammar, text)
    (warning,) = promise.warnings
    assert warning.startswith("calls of f are held to the names and types of their arguments only: ")


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
def test_hostile_parameters_give_way_at_once(dialect: str, parameters: dict[str, Any]) -> None:
    """A schema that is none, or means more than anybody can write, costs its own tool its form and nobody any time."""
    promise = promised(
        Tool(name="f", parameters=parameters), Tool(name="good", parameters=HELD), dialect=dialect
    )
    assert promise.grammar is not None
    assert not any(warning.startswith("calls of good ") for warning in promise.warnings)
    with contextlib.suppress(ConstraintError):
        promised(Tool(name="f", parameters=parameters, strict=True), dialect=dialect)


@pytest.mark.parametrize(
    "dialect", ["hermes", "qwen3_coder", "glm47", "minimax_m3", "gemma4", "deepseek_v32"]
)
@pytest.mark.parametrize(
    "schema", [{"$ref": "#/$defs/S"}, {"anyOf": [{"$ref": "#/$defs/S"}, {"type": "null"}]}]
)
def test_what_is_referred_to_is_held_of_a_loose_tool_too(dialect: str, schema: dict[str, Any]) -> None:
    """As pydantic writes `Optional[Enum]`."""
    parameters = {
        "type": "object",
        "properties": {"a": schema},
        "required": ["a"],
        "$defs": {"S": {"type": "string", "enum": ["q", "r"]}},
    }
    promise = promised(Tool(name="f", parameters=parameters), dialect=dialect)
    assert promise.grammar is not None
    assert promise.warnings == ()
    section = TOOL_DIALECTS[dialect].sections[0]
    fits = [
        accepts(promise.grammar, render_calls([Call("f", json.dumps({"a": v}))], section))
        for v in ("q", "zz")
    ]
    assert fits == [True, False]


def test_a_listed_text_inside_of_json_is_held() -> None:
    """Between tags an array is JSON, in whose strings the end of the tag means nothing."""
    text = "x</parameter>y"
    for schema in ({"type": "array", "items": {"enum": [text]}}, {"type": "array", "enum": [[text]]}):
        promise = promised(Tool(name="f", parameters={"properties": {"a": schema}}), dialect="qwen3_coder")
        assert promise.grammar is not None
        assert not any("names and types" in warning for warning in promise.warnings)


def test_the_search_for_what_cannot_be_held_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with many tools that compile slowly costs a bounded time; those not tried give way."""
    monkeypatch.setattr("plumbline.structured_output.constraints._SEARCH_TIME", -1.0)
    promise = promised(Tool(name="good", parameters=HELD), Tool(name="bad", parameters=UNHELD))
    assert promise.grammar is not None
    assert accepts(promise.grammar, call("bad", "4"))
    assert not accepts(promise.grammar, call("bad", '"x"'))
    assert len(promise.warnings) == 2
    assert all("no time" in warning for warning in promise.warnings)


def test_strict_tools_and_forms_of_text_never_give_way() -> None:
    strict = Tool(name="bad", parameters=UNHELD, strict=True)
    for tools in ((strict,), (Tool(name="other", parameters=UNHELD), strict)):
        with pytest.raises(ConstraintError) as caught:
            promised(*tools)
        assert caught.value.tool == "bad"
    with pytest.raises(ConstraintError) as caught:
        promised(Tool(name="good", parameters=HELD), form=JsonFormat(UNHELD))
    assert caught.value.tool is None


def test_an_engine_that_holds_nothing_is_not_asked_to() -> None:
    promises = ConstraintCompiler(scripted(), tokenizer())
    turn = Turn(
        prompt=ChatPrompt(messages=()), sampling=SamplingParams(max_tokens=5), output_format=JsonFormat()
    )
    with pytest.raises(ConstraintError, match="cannot hold"):
        asyncio.run(promises.grammar(turn, AnswerSyntax(), frame()))


def test_no_form_is_promised_of_a_text_that_has_the_thinking_in_it() -> None:
    """The text would be the thinking and the form; without thinking it is the form."""
    for tools in ((), (Tool(name="good", parameters=HELD),)):
        with pytest.raises(ConstraintError, match="leaves the thinking in the text"):
            promised(*tools, form=JsonFormat(), reasoning="minimax_m2_append_think")
        assert promised(*tools, form=JsonFormat(), reasoning="minimax_m2_append_think", ended=True).grammar
        assert promised(*tools, form=JsonFormat(), reasoning="minimax_m2").grammar

"""Laws of constrained calls: the dialect's parser reads every text of the grammar as the calls that were required."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from support.laws import EXPLORED, FIRST_SEED
from support.parsing.folding import fold

from plumbline.answer.dialects.model_dialect import ModelDialect
from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import ToolDialect
from plumbline.answer.events import TextDelta
from plumbline.answer.structured_output.answer_grammar import compose
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.tool_calls import calls
from plumbline.answer.turn import ChoiceFormat, JsonFormat, LarkFormat, RegexFormat, Tool, ToolChoice

from .walk import accepts, builder, frame, model_dialect, sampled, thinking

WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    strict=True,
)  # fmt: skip
ALARM = Tool(
    name="set_alarm",
    parameters={
        "type": "object",
        "properties": {"on": {"type": "boolean"}, "sound": {"enum": ["bell", "horn"]}},
        "required": ["on"],
        "additionalProperties": False,
    },
    strict=True,
)
TOOLS = (WEATHER, ALARM)
SCHEMAS: dict[str, Any] = {tool.name: tool.parameters for tool in TOOLS}

TOOL_NAMES = sorted({dialect.name for dialect in TOOL_DIALECTS.values()})
REASONING_NAMES = sorted({dialect.name for dialect in REASONING_DIALECTS.values()})
SEEDS = range(FIRST_SEED, FIRST_SEED + max(1, EXPLORED // 400))
"""The texts that are drawn of each grammar; 50 in `nox -s properties`."""


def drawn(grammar: str, dialect: ToolDialect, *, limit: int = 30) -> Iterator[str]:
    """Texts of the grammar. What the dialect writes around its values helps them to an end."""
    section = dialect.sections[0]
    texts = [section.item_close, *section.close, *_strings(section.call_format)]
    hints = sorted({before + text for text in texts if text.strip() for before in ("", "\n")})
    found = [sampled(grammar, seed, limit=limit, most=300, hints=hints) for seed in SEEDS]
    yield from (text for text in found if text is not None)


def _strings(form: Any) -> list[str]:
    """The texts in the data of a call format."""
    return (
        [text for text in msgspec.structs.astuple(form) if isinstance(text, str)]
        if isinstance(form, msgspec.Struct)
        else []
    )


def read(found: ModelDialect, text: str, *, inside: bool = False) -> tuple[list[tuple[str, ...]], list[str]]:
    """What the dialect's parser makes of a text, and its warnings."""
    parser = found.parser(SCHEMAS, frame(inside=inside))
    events = [*parser.push(TextDelta(text)), *parser.finish("stop")]
    return fold(events), list(parser.warnings)


def composed(found: ModelDialect, choice: ToolChoice, **changes: Any) -> str:
    grammar = compose(builder(), tools=TOOLS, choice=choice, syntax=found.syntax, **changes)
    assert grammar is not None
    return grammar


def check_calls(folded: list[tuple[str, ...]]) -> list[str]:
    """Every call is whole and its arguments satisfy the tool's schema; the names."""
    names: list[str] = []
    for part in folded:
        if part[0] == "call":
            _, name, arguments, ending = part
            assert ending == "whole"
            assert jsonschema_rs.is_valid(SCHEMAS[name], json.loads(arguments)), (name, arguments)
            names.append(name)
    return names


@pytest.mark.sampled
@pytest.mark.parametrize("name", TOOL_NAMES)
def test_required_calls_are_read_as_calls(name: str) -> None:
    """TOOL-04, TOOL-01: at least one call, nothing else, and every argument as its schema wants it."""
    found = model_dialect(TOOL_DIALECTS[name])
    grammar = composed(found, ToolChoice(mode="required"))
    for text in drawn(grammar, TOOL_DIALECTS[name]):
        folded, warnings = read(found, text)
        assert {part[0] for part in folded} == {"call"}, text
        assert check_calls(folded)
        assert not warnings


@pytest.mark.sampled
@pytest.mark.parametrize("name", TOOL_NAMES)
def test_a_named_tool_is_called_once(name: str) -> None:
    """TOOL-05, TOOL-07."""
    found = model_dialect(TOOL_DIALECTS[name])
    for tool in TOOLS:
        grammar = composed(found, ToolChoice(mode="required", names=(tool.name,), parallel=False))
        for text in drawn(grammar, TOOL_DIALECTS[name]):
            assert check_calls(read(found, text)[0]) == [tool.name], text


@pytest.mark.sampled
@pytest.mark.parametrize("name", TOOL_NAMES)
@pytest.mark.parametrize("parallel", [True, False])
def test_what_begins_as_a_call_of_a_strict_tool_goes_on_as_one(name: str, parallel: bool) -> None:
    """With `auto` text is free, and no call in it breaks its schema; nothing that looks like a call stays text."""
    found = model_dialect(TOOL_DIALECTS[name])
    if name == "functionary_v32":
        with pytest.raises(
            ConstraintError, match="cannot be distinguished"
        ):  # Its calls begin with their name.
            composed(found, ToolChoice(mode="auto", parallel=parallel))
        return
    grammar = composed(found, ToolChoice(mode="auto", parallel=parallel))
    assert accepts(grammar, "") or name == "harmony"
    for text in drawn(grammar, TOOL_DIALECTS[name], limit=20):
        folded, warnings = read(found, text)
        assert len(check_calls(folded)) <= (99 if parallel else 1), text
        assert not warnings, text


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_rendered_calls_are_in_the_grammar(name: str) -> None:
    """What a trained model writes goes through as it is, one call and several."""
    if name == "harmony":
        pytest.skip("harmony ends a call by an end of sequence, which is no text")
    dialect = TOOL_DIALECTS[name]
    one = WrittenCall("get_weather", '{"city": "Paris", "days": 3}')
    two = WrittenCall("set_alarm", '{"on": true, "sound": "bell"}')
    several, single = builder(), builder()
    grammar = several.build(calls(several, dialect, TOOLS, parallel=True))
    text_besides_calls = single.build(calls(single, dialect, TOOLS, parallel=False))
    for said in ([one], [two], [one, two], [two, two, one]):
        text = render_calls(said, dialect.sections[0])
        assert accepts(grammar, text), text
        assert accepts(text_besides_calls, text) == (len(said) == 1), text


@pytest.mark.sampled
@pytest.mark.parametrize("name", REASONING_NAMES)
@pytest.mark.parametrize("inside", [True, False])
def test_thinking_is_free_and_the_constraint_begins_after_it(name: str, inside: bool) -> None:
    """A schema neither suppresses nor constrains the thinking."""
    reasoning = REASONING_DIALECTS[name]
    found = model_dialect(TOOL_DIALECTS["harmony"] if name == "harmony" else None, reasoning)
    inside = inside or reasoning.starts_inside
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    grammar = compose(
        builder(), output_format=JsonFormat(schema), syntax=found.syntax, thinking=thinking(inside=inside)
    )
    assert grammar is not None
    for seed in SEEDS:
        text = sampled(grammar, seed, limit=30, most=500)
        if text is None or reasoning.append:
            continue
        folded, _ = read(found, text, inside=inside)
        said = "".join(part[1] for part in folded if part[0] == "text")
        assert jsonschema_rs.is_valid(schema, json.loads(said)), text
    thought = "What now? {not json} I know."
    opening = "" if inside else reasoning.open[0]
    gap = reasoning.after_close + found.syntax.text_header
    whole = f"{opening}{thought}{reasoning.close[0]}{gap}" + '{"a": true}'
    assert accepts(grammar, whole)
    assert not accepts(grammar, whole[:-1])


def test_required_calls_come_after_the_thinking() -> None:
    found = model_dialect(TOOL_DIALECTS["hermes"], REASONING_DIALECTS["qwen3"])
    grammar = composed(found, ToolChoice(mode="required"), thinking="inside")
    call = '<tool_call>\n{"name": "set_alarm", "arguments": {"on": true}}\n</tool_call>'
    assert accepts(grammar, f"Well.\n</think>\n\n{call}")
    assert accepts(grammar, f"</think>{call}\n{call}")
    for text in (
        f"Well.\n</think>\n\nNo.{call}",
        "Well.\n</think>\n\n",
        call,
        f"Well.{call}",
        f"</think>{call}.",
    ):
        assert not accepts(grammar, text), text


def test_a_prompt_that_has_ended_the_thinking_leaves_no_more_of_it() -> None:
    """Templates turn thinking off with an empty thought; a constrained model must not begin another."""
    syntax = model_dialect(None, REASONING_DIALECTS["qwen3"]).syntax
    for thought in (False, True):
        grammar = compose(
            builder(), output_format=JsonFormat(), syntax=syntax, thinking=thinking(ended=thought)
        )
        assert grammar is not None
        assert accepts(grammar, "{}")
        assert accepts(grammar, "<think>\nHm.\n</think>\n\n{}") != thought


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_what_must_not_be_called_is_not_begun(name: str) -> None:
    """TOOL-03: with `none` the markup of calls does not get into text either, but for calls that stand bare."""
    dialect = TOOL_DIALECTS[name]
    harmony = dialect.messages
    syntax = model_dialect(dialect).syntax
    forbidden = ToolChoice(mode="none", forbidden=True)
    grammar = compose(builder(), choice=forbidden, syntax=syntax)
    assert (grammar is not None) == (harmony or all(section.open for section in dialect.firm))
    if grammar is None:
        return
    before = syntax.text_header
    text = "It is < 5 [degrees] {now}."
    assert accepts(grammar, before + text)
    begun = ["<|channel|>commentary to=functions.get_weather"] if harmony else []
    for marker in [*begun, *(marker for section in dialect.firm for marker in section.open)]:
        assert not accepts(grammar, before + text + marker)
        assert not accepts(grammar, marker)


def test_a_message_of_harmony_that_is_continued_gets_no_second_header() -> None:
    """Where the prompt has begun the final message, the text goes on at once, and still begins no call."""
    syntax = model_dialect(TOOL_DIALECTS["harmony"]).syntax
    forbidden = ToolChoice(mode="none", forbidden=True)
    grammar = compose(builder(), choice=forbidden, syntax=syntax, thinking=thinking(ended=True))
    assert grammar is not None
    assert accepts(grammar, " goes on.")
    assert not accepts(grammar, " goes on.<|channel|>commentary to=functions.get_weather")
    form = JsonFormat({"type": "object"})
    grammar = compose(builder(), output_format=form, syntax=syntax, thinking=thinking(ended=True))
    assert grammar is not None
    assert accepts(grammar, "{}")
    assert not accepts(grammar, "<|channel|>final<|message|>{}")


@pytest.mark.parametrize("inside", [False, True])
def test_the_thinking_of_harmony_may_be_several_messages(inside: bool) -> None:
    syntax = model_dialect(TOOL_DIALECTS["harmony"], REASONING_DIALECTS["harmony"]).syntax
    forbidden = ToolChoice(mode="none", forbidden=True)
    grammar = compose(builder(), choice=forbidden, syntax=syntax, thinking=thinking(inside=inside))
    assert grammar is not None
    opening = "<|channel|>analysis<|message|>"
    first, more = "Hm.<|end|><|start|>assistant", f"{opening}Well.<|end|><|start|>assistant"
    for thoughts in (0, 1, 2):
        begun = first if inside else f"{opening}{first}"
        assert accepts(grammar, begun + more * thoughts + "<|channel|>final<|message|>Hello.")


TEXT = ToolChoice(mode="auto")


def test_nothing_is_constrained_without_a_constraint() -> None:
    """Free text and tools that are not strict cost nothing, nor does an answer without tools."""
    free = (Tool(name="f", parameters={"type": "object"}),)
    syntax = model_dialect(TOOL_DIALECTS["hermes"]).syntax
    assert compose(builder(), syntax=syntax) is None
    assert compose(builder(), tools=free, choice=TEXT, syntax=syntax) is None
    assert compose(builder(), choice=ToolChoice(mode="none"), syntax=syntax) is None
    # A tool that is shown and may not be called has to be kept out of free text as well.
    allowed = ToolChoice(mode="auto", names=("f",))
    grammar = compose(builder(), tools=(*free, Tool(name="g")), choice=allowed, syntax=syntax)
    assert grammar is not None
    assert accepts(grammar, 'Hm.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>')
    assert not accepts(grammar, 'Hm.\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>')


def test_a_tool_without_parameters_takes_none() -> None:
    tools = (Tool(name="f"),)
    syntax = model_dialect(TOOL_DIALECTS["hermes"]).syntax
    grammar = compose(builder(), tools=tools, choice=ToolChoice(mode="required"), syntax=syntax)
    assert grammar is not None
    assert accepts(grammar, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    assert not accepts(grammar, '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>')


def test_a_constraint_and_tools_give_constrained_text_or_calls() -> None:
    syntax = model_dialect(TOOL_DIALECTS["hermes"]).syntax
    grammar = compose(builder(), output_format=RegexFormat("[ab]+"), tools=TOOLS, choice=TEXT, syntax=syntax)
    assert grammar is not None
    assert accepts(grammar, "abba")
    assert accepts(grammar, '<tool_call>\n{"name": "set_alarm", "arguments": {"on": false}}\n</tool_call>')
    assert not accepts(grammar, "cold")


def test_the_input_of_a_custom_tool_is_constrained() -> None:
    """TOOL-14."""
    syntax = model_dialect(TOOL_DIALECTS["hermes"]).syntax
    tool = Tool(name="c", custom=True, parameters={}, input_format=RegexFormat('[a-c]+"\\n'))
    grammar = compose(builder(), tools=(tool,), choice=ToolChoice(mode="required"), syntax=syntax)
    assert grammar is not None
    assert accepts(grammar, '<tool_call>\n{"name": "c", "arguments": {"input": "abc\\"\\n"}}\n</tool_call>')
    assert not accepts(grammar, '<tool_call>\n{"name": "c", "arguments": {"input": "abc"}}\n</tool_call>')
    lark = Tool(name="c", custom=True, parameters={}, input_format=LarkFormat("start: <special>"))
    with pytest.raises(ConstraintError) as caught:
        compose(builder(), tools=(lark,), choice=ToolChoice(mode="required"), syntax=syntax)
    assert caught.value.tool == "c"


def test_tools_that_are_not_strict_give_way_and_strict_ones_do_not() -> None:
    unheld = {
        "type": "object",
        "properties": {"a": {"type": "integer", "not": {"multipleOf": 9}}},
        "required": ["a"],
    }
    syntax = model_dialect(TOOL_DIALECTS["hermes"]).syntax
    required = ToolChoice(mode="required")
    tools = (Tool(name="f", parameters=unheld),)
    for given_up in ([], ["f"]):
        relaxed = compose(builder(), tools=tools, choice=required, syntax=syntax, relaxed=given_up)
        assert relaxed is not None
        assert accepts(relaxed, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
        assert not accepts(relaxed, '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>')
    strict = (Tool(name="f", parameters=unheld, strict=True),)
    with pytest.raises(ConstraintError, match="#/properties/a/not"):
        compose(builder(), tools=strict, choice=required, syntax=syntax, relaxed=["f"])


@pytest.mark.parametrize(
    "choice", ["", "a", "yes or no", "<|im_end|>", "<tool_call>x</tool_call>", 'q"\n\\/é😀']
)
def test_a_choice_is_any_text(choice: str) -> None:
    syntax = model_dialect(None).syntax
    grammar = compose(builder(), output_format=ChoiceFormat((choice, "other")), syntax=syntax)
    assert grammar is not None
    if "<|im_end|>" not in choice:
        assert accepts(grammar, choice)
    assert accepts(grammar, "other")
    assert not accepts(grammar, choice + "!")


@pytest.mark.parametrize("count", [1, 2, 1999, 2000, 2001, 5000])
def test_there_may_be_any_number_of_choices(count: int) -> None:
    syntax = model_dialect(None).syntax
    choices = (*(f"choice {number} of" for number in range(count)), "choice", "")
    grammar = compose(builder(), output_format=ChoiceFormat(choices), syntax=syntax)
    assert grammar is not None
    for choice in (choices[0], choices[count - 1], "choice", ""):
        assert accepts(grammar, choice), choice
    for other in (f"choice {count} of", "choice 0", "choic"):
        assert not accepts(grammar, other), other

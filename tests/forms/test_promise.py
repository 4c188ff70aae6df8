"""Which tools give way when an engine cannot hold their schemas, and which do not."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from support.models import scripted, scripted_info

from plumbline.dialects.registry import TOOL_DIALECTS, Chosen
from plumbline.engine.api import Engine, RefusedRequestError, SamplingParams
from plumbline.engine.grammar import GrammarError
from plumbline.forms.errors import FormError
from plumbline.forms.promise import Promise, Promises
from plumbline.turn import ChatPrompt, JsonFormat, Message, OutputFormat, Tool, ToolChoice, Turn

from .walk import accepts, matcher, tokenizer

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


def promised(*tools: Tool, form: OutputFormat | None = None) -> Promise:
    engine: Any = Compiling()
    made: Engine = engine
    turn = Turn(
        prompt=ChatPrompt(messages=(Message(role="user", content="x"),), tools=tools),
        sampling=SamplingParams(max_tokens=5),
        tool_choice=ToolChoice(mode="required" if form is None else "auto"),
        output_format=form,
    )
    promises = Promises(made, tokenizer(), Chosen(TOOL_DIALECTS["hermes"], None))
    return asyncio.run(promises.grammar(turn, inside=False, ended=False))


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


def test_strict_tools_and_forms_of_text_never_give_way() -> None:
    strict = Tool(name="bad", parameters=UNHELD, strict=True)
    for tools in ((strict,), (Tool(name="other", parameters=UNHELD), strict)):
        with pytest.raises(FormError) as caught:
            promised(*tools)
        assert caught.value.tool == "bad"
    with pytest.raises(FormError) as caught:
        promised(Tool(name="good", parameters=HELD), form=JsonFormat(UNHELD))
    assert caught.value.tool is None


def test_an_engine_that_holds_nothing_is_not_asked_to() -> None:
    promises = Promises(scripted(), tokenizer(), None)
    turn = Turn(
        prompt=ChatPrompt(messages=()), sampling=SamplingParams(max_tokens=5), output_format=JsonFormat()
    )
    with pytest.raises(FormError, match="cannot hold"):
        asyncio.run(promises.grammar(turn, inside=False, ended=False))

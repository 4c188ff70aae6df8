"""Laws of repaired calls (`x_repair_calls`), in every dialect.

A model writes a call that fails first, and obeys the grammar of the second ask.

1. The answer has exactly one call more than the calls before, in the place of the failed one: complete, of a tool of
   the request, with arguments that its parameters allow. What was written before it stays, and comes once.
2. Usage is the sum of both asks, for one choice and for two.
3. Until a call is known to be right, nothing of it is emitted.
4. If the second ask fails too, the answer is that of a request without the field.
5. A call that is right is not asked for again, nor one that the token limit or a stop string cuts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parsing.folding import Folded, fold

from plumbline.answer.dialects.model_dialect import ModelDialect
from plumbline.answer.dialects.parsers.harmony import write_harmony
from plumbline.answer.dialects.parsers.render import render_utterance
from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import ToolDialect, Utterance
from plumbline.answer.events import CallPlace, Finish, OutputEvent, Usage
from plumbline.answer.road.road import Road
from plumbline.answer.structured_output.arguments import ArgumentsChecker, handler
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.turn import ChatPrompt, Message, Tool, ToolChoice, Turn
from plumbline.engines.constraints.grammar import GrammarError
from plumbline.engines.scripted import ScriptedEngine
from plumbline.port.engine import (
    EngineInfo,
    GenerateRequest,
    RefusedRequestError,
    SamplingParams,
    TokenChunk,
)
from plumbline.server.protocols.common.usage import total_usage

from .walk import ENDS, SIZE, compiler, model_dialect, run, sampled_from, tokenizer

PARAMETERS = {
    "type": "object",
    "properties": {"day": {"type": "integer", "enum": [1, 2]}},
    "required": ["day"],
    "additionalProperties": False,
}
TOOLS = (Tool(name="book", parameters=PARAMETERS), Tool(name="look", parameters=PARAMETERS))
GOOD = WrittenCall("look", '{"day": 2}')
DIALECTS = list(dict.fromkeys(TOOL_DIALECTS.values()))
INFO = EngineInfo(
    name="obedient",
    model="obedient",
    vocab_size=SIZE,
    max_model_len=2048,
    eos_token_ids=ENDS,
    features=frozenset({"grammar"}),
)
WRONG = [
    WrittenCall("book", '{"day": 3}'),
    WrittenCall("book", '{"days": 1}'),
    WrittenCall("book", "{}"),
    WrittenCall("nook", '{"day": 1}'),
]


class Checker:
    """Checks as the workers do, without them."""

    async def violates(self, parameters: Any, arguments: str, _: str) -> bool:
        return handler(b"")(json.dumps([parameters, arguments]).encode()) == b"no"

    async def close(self) -> None:
        """Nothing to end."""


class Obedient(ScriptedEngine):
    """Writes a text first, and what a grammar allows for every request with one.

    Attributes:
        counted: the tokens of every prompt and every answer.
        asks: the requests.
    """

    def __init__(self, text: str, size: int, *, disobeys: bool = False) -> None:
        super().__init__(INFO, self._play)
        self._text, self._size, self._disobeys = text, size, disobeys
        self._obeyed = ""
        self.counted = Usage(0, 0)
        self.asks: list[GenerateRequest] = []

    async def check_grammar(self, grammar: str, client: str = "") -> None:
        """Accept every grammar that is one, and write something that it allows."""
        try:
            found = await compiler().compile(grammar)
        except GrammarError as error:
            raise RefusedRequestError(str(error)) from error
        text = sampled_from(found, len(self.asks))
        assert text is not None
        self._obeyed = text

    def _play(self, request: GenerateRequest) -> Iterator[TokenChunk]:
        self.asks.append(request)
        text = self._text
        if request.sampling.grammar is not None:
            text = "" if self._disobeys else self._obeyed
        ids = [*tokenizer().encode_generated(text), min(ENDS)]
        self.counted = Usage(
            self.counted.prompt_tokens + len(request.prompt_token_ids),
            self.counted.completion_tokens + len(ids),
        )
        for at in range(0, len(ids), self._size):
            last = at + self._size >= len(ids)
            yield TokenChunk(
                token_ids=tuple(ids[at : at + self._size]), finish_reason="stop" if last else None
            )


def written(dialect: ToolDialect, *parts: str | WrittenCall) -> str:
    """What a model of the dialect writes."""
    utterance = Utterance(parts)
    return write_harmony(utterance) if dialect.messages else render_utterance(utterance, dialect, None)


def dialect_of(tool: ToolDialect) -> ModelDialect:
    """The dialect of a model that thinks only where its calls need it."""
    return model_dialect(tool)


def answer(
    tool: ToolDialect, text: str, size: int = 1, *, disobeys: bool = False, **changes: Any
) -> tuple[list[list[OutputEvent]], Obedient]:
    """The events of each choice."""
    engine = Obedient(text, size, disobeys=disobeys)
    renderer = Renderer(tokenizer(), ChatTemplate("{{ messages[0].content }}"))
    road = Road(engine, renderer, dialect_of(tool), checker=Checker())  # type: ignore[arg-type]
    turn = Turn(
        prompt=ChatPrompt(messages=(Message(role="user", content="Book."),), tools=TOOLS),
        sampling=SamplingParams(),
        tool_choice=ToolChoice(),
        repair_calls=True,
    )
    turn = msgspec.structs.replace(turn, **changes)
    found: list[list[OutputEvent]] = [[] for _ in range(turn.num_choices)]

    async def read() -> None:
        prepared = await road.prepare(turn)
        async for index, event in road.answer(prepared, "r"):
            found[index].append(event)

    run(read())
    return found, engine


def calls_of(folded: Folded) -> list[tuple[str, Any, str]]:
    return [(part[1], json.loads(part[2]), part[3]) for part in folded if part[0] == "call"]


def texts_of(folded: Folded) -> str:
    return "".join(part[1] for part in folded if part[0] == "text").strip()


def finish_of(events: list[OutputEvent]) -> Finish:
    """The end, which comes once and last."""
    assert not any(isinstance(event, CallPlace) for event in events)
    (finish,) = (event for event in events if isinstance(event, Finish))
    assert events[-1] is finish
    return finish


@settings(max_examples=8)
@given(
    st.sampled_from(range(0, len(DIALECTS), 6)),
    st.sampled_from([*WRONG, "cut"]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 9),
)
def test_a_failed_call_is_replaced(
    start: int, wrong: WrittenCall | str, before: bool, prose: bool, size: int
) -> None:
    for tool in DIALECTS[start : start + 6]:
        marked = bool(tool.sections[0].open) and not tool.answer_key
        if wrong == WRONG[-1] and tool.answer_key:
            continue  # Its answers are objects anyway.
        several = before and not tool.messages
        said = ["Well."] if prose and marked and not tool.text_header else []
        parts: list[str | WrittenCall] = [*said, *([GOOD] if several else [])]
        text = written(tool, *parts, GOOD if isinstance(wrong, str) else wrong)
        if isinstance(wrong, str):
            text = text[: text.rindex("day") + 3]
        (events,), engine = answer(tool, text, size)
        folded, finish = fold(events[:-1]), finish_of(events)
        calls = calls_of(folded)
        where = (tool.name, text, folded)
        assert calls[:-1] == [("look", {"day": 2}, "whole")] * several, where
        name, arguments, state = calls[-1]
        assert arguments in ({"day": 1}, {"day": 2}), where
        assert state == "whole", where
        assert wrong == WRONG[-1] or name == ("look" if wrong == "cut" else "book"), where
        assert texts_of(folded) == "".join(said), where
        assert (finish.reason, finish.undeclared_tools) == ("tool_calls", ()), where
        check_usage(finish, engine, repaired=1)


def check_usage(finish: Finish, engine: Obedient, repaired: int) -> None:
    """Every token of every ask is counted, and the repaired calls."""
    usage = finish.usage
    assert usage.prompt_tokens == engine.counted.prompt_tokens
    assert usage.completion_tokens == engine.counted.completion_tokens
    assert usage.repaired_calls == repaired


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_if_both_asks_fail_the_answer_is_the_first(wrong: WrittenCall) -> None:
    tool = TOOL_DIALECTS["hermes"]
    text = written(tool, "Well.", GOOD, wrong) + "So."
    (events,), engine = answer(tool, text, disobeys=True)
    (plain,), _ = answer(tool, text, repair_calls=False)
    assert fold(events[:-1]) == fold(plain[:-1])
    finish, other = finish_of(events), finish_of(plain)
    assert msgspec.structs.replace(finish, usage=other.usage) == other
    check_usage(finish, engine, repaired=0)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_messages_of_thinking_and_text_stay_before_a_repaired_call(wrong: WrittenCall) -> None:
    tool = TOOL_DIALECTS["harmony"]
    text = write_harmony(Utterance(("Well.", wrong), "Hm."))
    (events,), engine = answer(tool, text, 3)
    *before, call = fold(events[:-1])
    assert [part[:2] for part in before] == [("reasoning", "Hm."), ("text", "Well.")]
    assert json.loads(call[2]) in ({"day": 1}, {"day": 2})
    first, second = (tokenizer().decode(ask.prompt_token_ids) for ask in engine.asks)
    assert second == first + text[: text.rindex("<|start|>assistant")]


@pytest.mark.parametrize("before", ["", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"])
@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.book now:",
        "<|channel|>commentary to=functions.book <|constrain|>json now",
        " to=functions.book<|channel|>commentary, as asked: ",
        "<|channel|>commentary to=functions.nook, day 1",
    ],
)
def test_a_call_of_harmony_with_a_broken_header_is_replaced(header: str, before: str) -> None:
    (events,), engine = answer(TOOL_DIALECTS["harmony"], f"{before}{header} the first day", 3)
    folded, finish = fold(events[:-1]), finish_of(events)
    assert [part[:2] for part in folded[:-1]] == ([("reasoning", "Hm.")] if before else [])
    ((name, arguments, state),) = calls_of(folded)
    assert (name in ("book", "look"), arguments in ({"day": 1}, {"day": 2}), state) == (True, True, "whole")
    assert len(engine.asks) == 2
    check_usage(finish, engine, repaired=1)


@pytest.mark.parametrize(
    "said",
    [
        "A header is `<|channel|>commentary to=functions.book` and more.",
        "A call goes `to=functions.book` in <|channel|> commentary.",
    ],
)
def test_prose_about_a_header_of_harmony_is_not_a_call(said: str) -> None:
    (events,), engine = answer(TOOL_DIALECTS["harmony"], f"<|channel|>final<|message|>{said}<|return|>")
    assert texts_of(fold(events[:-1])) == said
    assert len(engine.asks) == 1


def test_what_follows_a_failed_call_stays() -> None:
    tool = TOOL_DIALECTS["hermes"]
    (events,), _ = answer(tool, written(tool, "Well.", WRONG[0], GOOD) + "So.")
    folded = fold(events[:-1])
    assert [part[:2] for part in folded] == [
        ("text", "Well."),
        ("call", "book"),
        ("call", "look"),
        ("text", "So."),
    ]


def test_choices_are_repaired_one_by_one() -> None:
    tool = TOOL_DIALECTS["hermes"]
    choices, engine = answer(tool, written(tool, WRONG[0]), num_choices=2)
    assert all(len(calls_of(fold(events[:-1]))) == 1 for events in choices)
    usage = total_usage([finish_of(events).usage for events in choices])
    assert usage.repaired_calls == 2
    assert usage.completion_tokens == engine.counted.completion_tokens
    # The first ask of both has one prompt.
    assert usage.prompt_tokens == engine.counted.prompt_tokens - len(engine.asks[0].prompt_token_ids)


@pytest.mark.parametrize(
    ("call", "changes"),
    [
        (GOOD, {}),
        (WRONG[0], {"stop": ("day",)}),
        (WRONG[0], {"sampling": SamplingParams(max_tokens=6)}),
        (WRONG[3], {"sampling": SamplingParams(max_tokens=6)}),
    ],
    ids=["right", "stop string", "limit", "limit before the name"],
)
def test_a_call_that_is_right_or_cut_is_not_asked_for_again(
    call: WrittenCall, changes: dict[str, Any]
) -> None:
    tool = TOOL_DIALECTS["hermes"]
    (events,), engine = answer(tool, written(tool, call), **changes)
    (plain,), _ = answer(tool, written(tool, call), repair_calls=False, **changes)
    assert fold(events[:-1]) == fold(plain[:-1])
    assert finish_of(events) == finish_of(plain)
    assert len(engine.asks) == 1


def test_prose_about_a_marker_is_not_a_call() -> None:
    (events,), engine = answer(TOOL_DIALECTS["hermes"], "The tag <tool_call> begins a call.")
    assert texts_of(fold(events[:-1])) == "The tag <tool_call> begins a call."
    assert len(engine.asks) == 1


CHECKED: list[tuple[Any, str, bool]] = [
    ({"properties": {"a": {"type": "integer"}}}, '{"a": 1.0}', False),
    ({"properties": {"a": {"type": "integer"}}}, '{"a": "1"}', True),
    ({"properties": {"a": {"items": [{"type": "string"}]}}}, '{"a": [1]}', True),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "required": ["a"]}, "{}", True),
    ({"$ref": "http://elsewhere.test/schema"}, '{"a": 1}', False),
    ({"$ref": "file:///etc/passwd"}, '{"a": 1}', False),
    ({"properties": {"a": {"pattern": "^(a|a)*$"}}}, json.dumps({"a": "a" * 60 + "b"}), True),
    ({}, '{"a": 1', True),
    ({}, "[]", True),
    ({}, '{"a": NaN}', True),
    ({}, '{"a": 1e400, "b": 9007199254740993}', False),
    ({"type": "dict"}, "{}", False),
    ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, "{}", False),
]


def test_what_violates_parameters() -> None:
    """A schema that cannot be checked is not violated."""

    async def check() -> list[bool]:
        checker = ArgumentsChecker()
        try:
            return [await checker.violates(schema, arguments, "") for schema, arguments, _ in CHECKED]
        finally:
            await checker.close()

    assert run(check()) == [violated for _, _, violated in CHECKED]

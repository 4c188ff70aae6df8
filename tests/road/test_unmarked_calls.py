"""An answer that is nothing but calls in plain JSON is calls, in every dialect; every other answer stays as it is."""

from __future__ import annotations

import asyncio
import atexit
import json
from collections.abc import Iterator
from contextlib import aclosing
from functools import cache
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import EOS, RENDERER, TOKENIZER, scripted_info, token_chunks
from support.speaking import TrustedScript

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.model_dialect import ModelDialect
from plumbline.answer.dialects.registry import TOOL_DIALECTS, choose
from plumbline.answer.dialects.unmarked import may_become_calls
from plumbline.answer.events import Finish, OutputEvent, TextDelta, ToolCallDelta, ToolCallStart
from plumbline.answer.road import call_advice
from plumbline.answer.road.road import Road
from plumbline.answer.turn import ChatPrompt, JsonFormat, Message, Tool, ToolChoice, Turn
from plumbline.port.engine import GenerateRequest, SamplingParams, TokenChunk

# One loop for all answers keeps its threads; starting them costs most.
_LOOP = asyncio.new_event_loop()
atexit.register(_LOOP.close)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = (Tool(name="get_weather", parameters=PARAMETERS), Tool(name="now"))
NAMES = ["none", *sorted({dialect.name for dialect in TOOL_DIALECTS.values()})]
OWN = ("hermes", "llama3_json", "llama4_json", "generic_json", "xlam", "granite")
"""Dialects some of whose own calls are plain JSON: they read them first, whatever the arguments are."""

CONSTRAINED = ("hermes", "mistral", "qwen3_coder")


@cache
def dialect_of(name: str) -> ModelDialect:
    return build_dialect(choose("", tool=name, reasoning="none"), TOKENIZER)


def road_of(texts: Iterator[str], dialect: str, *, reads: bool = True) -> Road:
    """Return a road on which the model answers with texts, one token of a byte or more at a time."""

    def play(request: GenerateRequest) -> Iterator[TokenChunk]:
        yield from token_chunks(request, TOKENIZER.encode_rendered(next(texts)))

    features = frozenset({"grammar"})
    info = scripted_info(max_model_len=20_000, eos_token_ids=frozenset({EOS}), features=features)
    return Road(TrustedScript(info, play), RENDERER, dialect_of(dialect), unmarked_calls=reads)


def answered(
    text: str, dialect: str, *, reads: bool = True, limit: int = 4000, **changes: Any
) -> list[OutputEvent]:
    """Return the events of an answer."""
    return answer_on(road_of(iter([text]), dialect, reads=reads), limit, **changes)


def answer_on(road: Road, limit: int = 4000, **changes: Any) -> list[OutputEvent]:
    """Return the events of the next answer on a road."""
    values: dict[str, Any] = {
        "prompt": ChatPrompt(messages=(Message(role="user", content="Hi"),), tools=TOOLS),
        "sampling": SamplingParams(max_tokens=limit),
        "tool_choice": ToolChoice(),
    }

    async def run() -> list[OutputEvent]:
        prepared = await road.prepare(Turn(**{**values, **changes}))
        async with aclosing(road.answer(prepared, "r")) as events:
            return [event async for _, event in events]

    return _LOOP.run_until_complete(run())


def calls_of(events: list[OutputEvent]) -> list[tuple[str, Any]]:
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            calls.append((event.name, ""))
        elif isinstance(event, ToolCallDelta):
            calls[-1] = (calls[-1][0], calls[-1][1] + event.arguments)
    return [(name, json.loads(arguments)) for name, arguments in calls]


def text_of(events: list[OutputEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


_VALID = st.fixed_dictionaries(
    {"city": st.text("abcü '\"\\{}[]\n", max_size=9)}, optional={"days": st.integers(-(2**70), 2**70)}
).map(lambda arguments: {"name": "get_weather", "arguments": arguments})


@st.composite
def _calls(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]]]:
    """A whole answer that is calls, with what they are."""
    calls = draw(st.lists(_VALID, min_size=1, max_size=2))
    listed = len(calls) > 1 or draw(st.booleans())
    text = json.dumps(
        calls if listed else calls[0], indent=draw(st.none() | st.just(2)), ensure_ascii=draw(st.booleans())
    )
    if draw(st.booleans()):
        text = f"```{draw(st.sampled_from(['json', '']))}\n{text}\n```"
    return draw(st.sampled_from(["", "\n", " "])) + text + draw(st.sampled_from(["", "\n"])), calls


@given(st.sampled_from(NAMES), _calls())
def test_an_answer_of_plain_calls_is_calls_in_every_dialect(
    dialect: str, drawn: tuple[str, list[dict[str, Any]]]
) -> None:
    text, calls = drawn
    events = answered(text, dialect)
    assert calls_of(events) == [(call["name"], call["arguments"]) for call in calls]
    assert text_of(events).strip() == ""
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == "tool_calls"
    if calls_of(answered(text, dialect, reads=False)) == []:
        assert finish.usage.unmarked_calls == len(calls)


_CALL = json.dumps({"name": "get_weather", "arguments": {"city": "Rome"}})
_OTHERS = [
    f"Here you are: {_CALL}",
    f"{_CALL} is the call.",
    f"```json\n{_CALL}\n``` runs it.",
    f"[{_CALL}, 3]",
    _CALL[:-9],
    _CALL.replace("get_weather", "get_wether"),
    _CALL.replace('"Rome"', "3"),
    _CALL.replace('"city"', '"town"'),
    '{"name": "Rome", "country": "Italy"}',
    '{"city": "Rome"}',
    "[1, 2]",
    '{"name": "get_weather", "description": "d", "parameters": {"type": "object"}}',
    "```python\nprint(1)\n```",
    '["a", {"b": 1}]',
    "{",
    "` `",
    "",
]


@pytest.mark.parametrize("dialect", sorted(set(NAMES) - set(OWN)))
def test_every_other_answer_is_what_the_dialect_makes_of_it(dialect: str) -> None:
    roads = [road_of(iter(_OTHERS), dialect, reads=reads) for reads in (True, False)]
    for text in _OTHERS:
        found, plain = map(answer_on, roads)
        assert text_of(plain) or calls_of(plain) or not text.strip()
        assert (text_of(found), calls_of(found), found[-1]) == (text_of(plain), calls_of(plain), plain[-1])


@pytest.mark.parametrize(
    "changes",
    [
        {"limit": 10},
        {"stop": ("}}",)},
        {"tool_choice": ToolChoice(mode="none")},
    ],
)
def test_what_may_not_be_a_call_or_was_cut_stays_text(changes: dict[str, Any]) -> None:
    assert calls_of(answered(_CALL, "none", **changes)) == []
    assert text_of(answered(_CALL, "none", **changes)) == text_of(
        answered(_CALL, "none", reads=False, **changes)
    )


@pytest.mark.parametrize("dialect", CONSTRAINED)
def test_strict_tools_are_called_too(dialect: str) -> None:
    """A grammar of strict tools constrains calls in markup and leaves text free, where small models write calls."""
    strict = tuple(msgspec.structs.replace(tool, strict=True) for tool in TOOLS)
    prompt = ChatPrompt(messages=(Message(role="user", content="Hi"),), tools=strict)
    assert calls_of(answered(_CALL, dialect, prompt=prompt)) == [("get_weather", {"city": "Rome"})]
    twice = f"[{_CALL}, {_CALL}]"
    one = ToolChoice(parallel=False)
    assert len(calls_of(answered(twice, dialect, prompt=prompt))) == 2
    assert calls_of(answered(twice, dialect, prompt=prompt, tool_choice=one)) == []


@settings(max_examples=20)  # Each compiles a grammar.
@given(st.sampled_from(CONSTRAINED), _VALID, st.booleans(), st.integers(1, 9), st.sampled_from([None, 2]))
def test_a_second_plain_call_ends_an_answer_that_may_have_one(
    dialect: str, call: dict[str, Any], fenced: bool, times: int, indent: int | None
) -> None:
    """A small model repeats its call until the limit; the first one is the answer, and no more is generated."""
    text = json.dumps(call, indent=indent)
    text = f"```json\n{text}\n```\n" if fenced else f"{text}\n"
    one = ToolChoice(parallel=False)
    events = answered(text + text * times, dialect, tool_choice=one)
    assert calls_of(events) == [(call["name"], call["arguments"])]
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == "tool_calls"
    until_second = text + text[: text.index('"') + 1]
    assert finish.usage.completion_tokens <= len(TOKENIZER.encode_rendered(until_second))
    cut = answered(
        text * (times + 1), dialect, tool_choice=one, limit=len(TOKENIZER.encode_rendered(text)) - 2
    )
    assert calls_of(cut) == []


@pytest.mark.parametrize("rest", [" is the call.", "\n[1]", "\n{}", "\n``", f"\nOr: {_CALL}"])
def test_other_text_after_a_plain_call_does_not_end_the_answer(rest: str) -> None:
    events = answered(_CALL + rest, "mistral", tool_choice=ToolChoice(parallel=False))
    assert (text_of(events), calls_of(events)) == (_CALL + rest, [])


def test_text_in_a_format_is_no_call() -> None:
    wanted = JsonFormat()
    assert calls_of(answered(_CALL, "hermes", output_format=wanted)) == []


@given(st.text(max_size=30))
def test_text_is_held_only_while_it_may_become_calls(text: str) -> None:
    """Where some continuation is calls the text is held, and nothing that is held can begin in another way."""
    held = may_become_calls(text)
    if held and may_become_calls(f'{text}x"'):
        assert '{"' in "".join(f'{text}x"'.split())
    if not held:
        assert not may_become_calls(text + "a")


@pytest.mark.parametrize("cut", range(len(f"```json\n[{_CALL}]\n```")))
def test_every_beginning_of_calls_is_held(cut: int) -> None:
    assert may_become_calls(f"```json\n[{_CALL}]\n```"[:cut])
    assert may_become_calls(f" \n{_CALL}"[:cut])


def test_other_text_is_not_held_back() -> None:
    events = answered("Well, it is warm.", "none")
    assert len([event for event in events if isinstance(event, TextDelta)]) > 5


WORKS = (_CALL, '[TOOL_CALLS][{"name": "now", "arguments": {}}]')
FAILS = (
    '{"name": "get_weather", "arguments": {"town": "Rome"}}',
    '```json\n[{"name": "fly", "arguments": {}}]\n```',
    '{"name": "fly", "parameters": {}}',
    '[TOOL_CALLS][{"name": "fly", "arguments": {}}]',
)
OTHERS = ("It is warm.", '{"city": "Rome"}', '{"name": "Ada"}', "[]")


@settings(max_examples=40)
@given(st.lists(st.sampled_from((*WORKS, *FAILS, *OTHERS)), max_size=8))
def test_calls_that_fail_in_a_row_are_explained_once(texts: list[str]) -> None:
    runs, failed = [0], 0
    for text in texts:
        failed = 0 if text in WORKS else failed + (text in FAILS)
        runs.append(failed)
    with pytest.MonkeyPatch.context() as patch:
        log = MagicMock()
        patch.setattr(call_advice, "_log", log)
        road = road_of(iter(texts), "mistral")
        for _ in texts:
            answer_on(road)
    assert log.warning.call_count == (max(runs) >= 3)

"""Preparing and answering turns: what fits, what is dropped, what ends together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import (
    RENDERER,
    TOKENIZER,
    GatedEngine,
    answer_with,
    chatml,
    scripted,
    scripted_info,
    until,
)

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.registry import choose
from plumbline.answer.events import Finish, TextDelta
from plumbline.answer.road.errors import EmptyPromptError, PromptTooLongError
from plumbline.answer.road.merge import merge
from plumbline.answer.road.phases import Phases
from plumbline.answer.road.road import Road
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.text.render import Renderer
from plumbline.answer.turn import (
    ChatPrompt,
    Message,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
    ToolChoice,
    Turn,
)
from plumbline.engines.scripted import ScriptedEngine
from plumbline.port.engine import GenerateRequest, SamplingParams, TokenChunk


def turn(*messages: Message, **changes: object) -> Turn:
    values: dict[str, object] = {
        "prompt": ChatPrompt(messages=messages),
        "sampling": SamplingParams(max_tokens=20),
    }
    return Turn(**{**values, **changes})  # type: ignore[arg-type]


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    found = [Message(role="system", content="Be brief.")] if draw(st.booleans()) else []
    for number, kind in enumerate(draw(st.lists(st.sampled_from(["user", "assistant", "call"]), max_size=6))):
        if kind == "call":
            calls = tuple(ToolCall(f"c{number}{i}", "f", "{}") for i in range(draw(st.integers(1, 2))))
            found.append(Message(role="assistant", tool_calls=calls))
            found += [
                Message(role="tool", content=f"result {number}", tool_call_id=call.id) for call in calls
            ]
        else:
            found.append(Message(role=kind, content=f"words {number} " * draw(st.integers(1, 6))))  # type: ignore[arg-type]
    found.append(Message(role="user", content="the last"))
    for number in range(draw(st.integers(0, 2))):  # An agent at work: the question may be long ago.
        call = ToolCall(f"d{number}", "f", "{}")
        found.append(Message(role="assistant", tool_calls=(call,)))
        found.append(Message(role="tool", content="found " * draw(st.integers(1, 6)), tool_call_id=call.id))
    return tuple(found)


@given(conversations(), st.integers(20, 200))
def test_truncation_keeps_a_conversation_that_makes_sense(messages: tuple[Message, ...], limit: int) -> None:
    """R-18: it drops from the oldest on, never instructions, never the last message, calls only with their results."""
    road = Road(scripted(info=scripted_info(max_model_len=limit)), RENDERER)
    refused: PromptTooLongError | None = None
    try:
        prepared = asyncio.run(road.prepare(turn(*messages, truncate_prompt=True)))
    except PromptTooLongError as error:
        refused = error
    if refused is not None:
        assert refused.prompt_tokens + refused.output_tokens > refused.max_model_len == limit
        return
    prompt = prepared.turn.prompt
    assert isinstance(prompt, ChatPrompt)
    kept = prompt.messages
    instructions = tuple(message for message in messages if message.role == "system")

    assert len(prepared.prompt_token_ids) + 20 <= limit
    assert kept[: len(instructions)] == instructions
    rest = kept[len(instructions) :]
    assert messages[len(messages) - len(rest) :] == rest
    assert rest[-1] == messages[-1]
    assert rest[0].role != "tool"
    if len(kept) < len(messages):
        # A question in front, as long as there is one; and nothing was dropped that could have stayed.
        assert rest[0].role == "user" or all(message.role != "user" for message in rest)
        start = len(messages) - len(rest)
        longer = [
            index
            for index in range(len(instructions), start)
            if messages[index].role == "user"
            or (messages[index].role != "tool" and all(m.role != "user" for m in messages[index:]))
        ]
        with pytest.raises(PromptTooLongError):
            asyncio.run(
                road.prepare(turn(*instructions, *messages[max(longer, default=len(instructions)) :]))
            )


@given(
    default=st.integers(1, 200),
    wanted=st.none() | st.integers(0, 20),
    min_tokens=st.integers(0, 20),
    words=st.integers(1, 100),
)
def test_the_default_length_applies_to_turns_without_one(
    default: int, wanted: int | None, min_tokens: int, words: int
) -> None:
    """It never exceeds the room, never falls below `min_tokens` and never changes a limit that was sent."""
    road = Road(scripted(info=scripted_info(max_model_len=300)), RENDERER, default_max_tokens=default)
    sampling = SamplingParams(max_tokens=wanted, min_tokens=min_tokens if wanted is None else 0)
    prompt = TokenPrompt((5,) * words)

    found = asyncio.run(road.prepare(Turn(prompt=prompt, sampling=sampling))).turn.sampling.max_tokens

    if wanted is not None:
        assert found == wanted
    else:
        room = 300 - words
        limit = max(default, min_tokens)
        assert found == (limit if limit < room else None)


def test_truncation_renders_a_long_conversation_only_a_few_times() -> None:
    """R-18: dropping thousands of messages one after the other would keep the server at it for minutes."""
    messages = [Message(role="user", content=f"words {number}") for number in range(3000)]
    renderer = CountingRenderer(RENDERER.tokenizer, RENDERER.template)
    road = Road(scripted(info=scripted_info(max_model_len=200)), renderer)

    prepared = asyncio.run(road.prepare(turn(*messages, truncate_prompt=True)))

    assert isinstance(prepared.turn.prompt, ChatPrompt)
    assert prepared.turn.prompt.messages[-1] == messages[-1]
    assert renderer.rendered <= 14  # The whole once, then log2(3000) tries.


def test_a_prompt_that_cannot_fit_is_refused_without_encoding_it() -> None:
    """ERR-09: megabytes of text would cost seconds and gigabytes only to be refused."""
    renderer = CountingRenderer(RENDERER.tokenizer, RENDERER.template)
    road = Road(scripted(info=scripted_info(max_model_len=200)), renderer)

    with pytest.raises(PromptTooLongError):
        asyncio.run(road.prepare(turn(Message(role="user", content="words " * 100_000))))

    assert renderer.rendered == 0


@given(text=st.text(max_size=3000))
def test_a_prompt_never_has_fewer_tokens_than_its_length_implies(text: str) -> None:
    prompt = TextPrompt(text)

    assert RENDERER.least_tokens(prompt) <= len(RENDERER.token_ids(prompt))


class CountingRenderer(Renderer):
    """Count the renderings."""

    rendered = 0

    def token_ids(self, prompt: Prompt, most: int | None = None) -> list[int]:
        self.rendered += 1
        return super().token_ids(prompt, most)


@pytest.mark.parametrize(("wanted", "fits"), [(None, 9), (0, 10), (1, 9), (4, 6), (10, 0), (11, None)])
async def test_prompt_and_limit_share_the_window(wanted: int | None, fits: int | None) -> None:
    """ERR-09: exactly the window is allowed, one token more is not."""
    road = Road(scripted(info=scripted_info(max_model_len=10)), RENDERER)
    sampling = SamplingParams(max_tokens=wanted)
    if fits:
        await road.prepare(Turn(prompt=TokenPrompt((5,) * fits), sampling=sampling))
    with pytest.raises(PromptTooLongError):
        await road.prepare(Turn(prompt=TokenPrompt((5,) * ((fits or 0) + 1)), sampling=sampling))


async def test_a_prompt_without_tokens_is_nothing_to_continue() -> None:
    road = Road(scripted(), chatml("{# nothing #}"))
    for prompt in (TextPrompt(""), ChatPrompt(messages=(Message(role="user", content="hi"),))):
        with pytest.raises(EmptyPromptError):
            await road.prepare(Turn(prompt=prompt, sampling=SamplingParams()))


async def test_every_choice_ends_with_one_finish() -> None:
    """Events of one choice are in order and closed by exactly one Finish."""
    road = Road(scripted(answer_with("one two")), RENDERER)
    prepared = await road.prepare(turn(Message(role="user", content="hi"), num_choices=3))
    events = [item async for item in road.answer(prepared, "r")]

    for index in range(3):
        mine = [event for number, event in events if number == index]
        assert [type(event) for event in mine].count(Finish) == 1
        assert isinstance(mine[-1], Finish)
        assert "".join(event.text for event in mine if isinstance(event, TextDelta)) == "one two"


@pytest.mark.parametrize("leaves", [False, True])
async def test_the_times_of_every_choice_are_told_once(leaves: bool) -> None:
    """Also of an answer that is left."""
    told: list[Phases] = []
    road = Road(scripted(answer_with("one two")), RENDERER)
    prepared = await road.prepare(turn(Message(role="user", content="hi"), num_choices=3))
    async with aclosing(road.answer(prepared, "r", watch=told.append)) as events:
        async for index, _ in events:
            if leaves and index == 2:
                break

    assert 0 < prepared.times[0] <= prepared.times[1] <= min(each.began for each in told)
    assert len(told) == 3
    for each in told:
        assert each.began <= each.scheduled <= each.first <= each.ended


async def test_a_wait_that_the_engine_knows_is_not_counted_as_computed() -> None:
    phases = Phases.begin()
    await asyncio.sleep(0.01)
    phases.came(TokenChunk(queued_seconds=0.004))
    assert phases.scheduled == phases.began + 0.004
    phases.came(TokenChunk(queued_seconds=9))
    assert phases.scheduled == phases.first


async def test_choices_have_different_ids_and_seeds() -> None:
    """CHAT-11: derived from the client's seed, and within 63 bits."""
    seen: list[GenerateRequest] = []

    def watching(request: GenerateRequest) -> object:
        seen.append(request)
        return answer_with("a")(request)

    road = Road(scripted(watching), RENDERER)  # type: ignore[arg-type]
    sampling = SamplingParams(seed=2**63 - 1)
    prepared = await road.prepare(turn(Message(role="user", content="hi"), num_choices=4, sampling=sampling))
    async for _ in road.answer(prepared, "r"):
        pass

    assert sorted(request.request_id for request in seen) == ["r-0", "r-1", "r-2", "r-3"]
    seeds = {request.sampling.seed for request in seen}
    assert len(seeds) == 4
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)


async def test_closing_an_answer_aborts_every_choice() -> None:
    engine = GatedEngine()
    road = Road(engine, RENDERER)
    prepared = await road.prepare(turn(Message(role="user", content="hi"), num_choices=3))
    async with aclosing(road.answer(prepared, "r")) as events:
        engine.let(1)
        await anext(events)
        await until(lambda: engine.num_running == 3)

    assert engine.num_running == 0
    assert sorted(engine.aborted) == ["r-0", "r-1", "r-2"]


async def test_the_first_failure_ends_all_sources_and_further_ones_do_not_begin() -> None:
    begun: list[int] = []
    closed: list[int] = []

    async def source(number: int) -> AsyncGenerator[int, None]:
        begun.append(number)
        try:
            yield number
            if number == 1:
                raise ZeroDivisionError
            await asyncio.Event().wait()
        finally:
            closed.append(number)

    with pytest.raises(ZeroDivisionError):
        async for _ in merge([source(number) for number in range(9)]):
            pass
    assert sorted(closed) == begun
    assert 1 < len(begun) < 9
    assert len(asyncio.all_tasks()) == 1


async def test_a_finish_names_the_stop_that_made_it() -> None:
    road = Road(scripted(answer_with("one two")), RENDERER)
    base = turn(Message(role="user", content="hi"))
    for changes, reason, match in (
        ({"stop": ("two",), "sampling": SamplingParams()}, "stop", "two"),
        ({"sampling": SamplingParams(max_tokens=2)}, "length", None),
        ({"sampling": SamplingParams(max_tokens=0)}, "length", None),
        ({"sampling": SamplingParams()}, "stop", None),
    ):
        prepared = await road.prepare(msgspec.structs.replace(base, **changes))
        *_, (_, last) = [item async for item in road.answer(prepared, "r")]
        assert isinstance(last, Finish)
        assert (last.reason, last.stop_match) == (reason, match)


async def test_a_message_that_breaks_off_in_a_call_is_not_continued_under_a_grammar() -> None:
    """TOOL-01: the grammar would not constrain the rest of such a call."""
    dialect = build_dialect(choose("", tool="hermes", reasoning="qwen3"), TOKENIZER)

    class Believing(ScriptedEngine):
        async def check_grammar(self, grammar: str, client: str = "") -> None:
            """Take every grammar."""

    info = scripted_info(features=frozenset({"grammar"}))
    road = Road(Believing(info, answer_with("x")), RENDERER, dialect)
    strict = Tool(
        name="f", parameters={"type": "object", "properties": {}, "additionalProperties": False}, strict=True
    )
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    for size in range(len(call)):
        begun = Message(role="assistant", content="So " + call[:size])
        prompt = ChatPrompt(
            messages=(Message(role="user", content="hi"), begun),
            tools=(strict,),
            add_generation_prompt=False,
            continue_final_message=True,
        )
        base = turn(prompt=prompt, tool_choice=ToolChoice(mode="auto"))
        free = msgspec.structs.replace(strict, strict=None)
        await road.prepare(
            msgspec.structs.replace(base, prompt=msgspec.structs.replace(prompt, tools=(free,)))
        )
        if size == 0:
            await road.prepare(base)
            continue
        with pytest.raises(ConstraintError, match="breaks off"):
            await road.prepare(base)

"""Rounds of an answer with the tools of remote servers, without a network and an engine.

Laws:
    1. Any answers give a legal stream: it has one `Finish`, at its end, and the writer takes it.
    2. The messages of each round are those that the items of the answer so far are read as.
    3. No more calls are made than the limit allows, and each at most once.
    4. The usage is the sum of all rounds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.events import (
    Finish,
    OutputEvent,
    ReasoningDelta,
    RemoteCallEnd,
    RemoteCallStart,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from plumbline.answer.remote_tools import (
    ANY_TOOL,
    ApprovedCall,
    RemoteResult,
    RemoteServer,
    RemoteTool,
    RemoteTools,
    ToolFilter,
    shown_name,
)
from plumbline.answer.turn import ChatPrompt, Message, Tool, ToolChoice, Turn
from plumbline.contract._generated.items import EasyInputMessage, InputItem
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.decode import encode
from plumbline.port.engine import SamplingParams
from plumbline.server.protocols.common.sampling.parameters import Defaults
from plumbline.server.protocols.responses.identity import Fresh
from plumbline.server.protocols.responses.initial_response import initial_response
from plumbline.server.protocols.responses.input import read_input
from plumbline.server.protocols.responses.reader import read_response
from plumbline.server.protocols.responses.writer import ResponsesWriter
from plumbline.server.tools.port import RemoteFailureError
from plumbline.server.tools.rounds import MAX_CALLS, NoRoomError, Rounds

BOX = RemoteServer(label="box", url="http://box/", never=ANY_TOOL, field="tools[0]")
ADD = RemoteTool("add", "Add.", {"type": "object"})
USER = Message(role="user", content="hi")


class Caller:
    """Remote servers that answer with what they were asked."""

    def __init__(self, failure: RemoteFailureError | None = None) -> None:
        self.calls: list[tuple[str, str, Any]] = []
        self.lists: list[str] = []
        self.starts: list[int] = []
        """How many events there were before each round."""
        self._failure = failure

    @asynccontextmanager
    async def sessions(self) -> AsyncIterator[Caller]:
        yield self

    async def tools(self, server: RemoteServer) -> tuple[RemoteTool, ...]:
        self.lists.append(server.label)
        if self._failure is not None:
            raise self._failure
        return (ADD,)

    async def call(self, server: RemoteServer, name: str, arguments: dict[str, Any]) -> RemoteResult:
        self.calls.append((server.label, name, arguments))
        return RemoteResult(json.dumps(arguments))


def turn(**changes: Any) -> Turn:
    remote = {"servers": (BOX,), **changes.pop("remote", {})}
    return Turn(
        prompt=ChatPrompt(messages=(USER,), tools=changes.pop("tools", ())),
        sampling=SamplingParams(**changes.pop("sampling", {})),
        tool_choice=changes.pop("tool_choice", ToolChoice(mode="auto")),
        remote=RemoteTools(**remote),
        **changes,
    )


def written(name: str, arguments: str = "{}", *, complete: bool = True) -> list[OutputEvent]:
    """The events of a call."""
    return [ToolCallStart(name, "call_x"), ToolCallDelta(arguments), ToolCallEnd(complete)]


async def played(
    given_turn: Turn, caller: Caller, *answers: list[OutputEvent], room: int = 1000
) -> tuple[list[OutputEvent], list[Turn]]:
    """The events of an answer in these rounds, and the turn of each; the last round repeats without an end."""
    found: list[OutputEvent] = []
    turns: list[Turn] = []

    async def generate(one: Turn) -> AsyncGenerator[OutputEvent, None]:
        if len(turns) == room:
            raise NoRoomError from ValueError("too long")
        turns.append(one)
        caller.starts.append(len(found))
        answer = answers[min(len(turns), len(answers)) - 1]
        if one.tool_choice.mode == "none":
            answer = [
                event
                for event in answer
                if not isinstance(event, ToolCallStart | ToolCallDelta | ToolCallEnd)
            ]

        async def events() -> AsyncGenerator[OutputEvent, None]:
            for event in answer:
                yield event

        return events()

    async for event in Rounds(given_turn, caller, generate).run():
        found += [event]
    return found, turns


def end(reason: Any = "stop", tokens: int = 3) -> Finish:
    return Finish(reason, Usage(10, tokens, cached_tokens=2, reasoning_tokens=1))


def test_undeclared_tools_of_all_rounds_are_named_once() -> None:
    def ended(*names: str) -> Finish:
        return msgspec.structs.replace(end("tool_calls"), undeclared_tools=names)

    answers = ([*written("box__add"), ended("a", "b")], [TextDelta("x"), ended("b", "c")])
    events, _ = asyncio.run(played(turn(), Caller(), *answers))  # type: ignore[arg-type]

    assert isinstance(events[-1], Finish)
    assert events[-1].undeclared_tools == ("a", "b", "c")


texts = st.text("ab ", min_size=1, max_size=3)
calls = st.builds(
    written, st.sampled_from(["box__add", "own"]), st.sampled_from(["{}", '{"a": 1}', "[1]", "no", ""]),
    complete=st.booleans(),
)  # fmt: skip
pieces = st.lists(
    st.one_of(
        texts.map(lambda text: [TextDelta(text)]), texts.map(lambda text: [ReasoningDelta(text)]), calls
    ),
    max_size=4,
)
rounds = st.lists(
    st.builds(
        lambda parts, reason: [*(event for part in parts for event in part), end(reason)],
        pieces,
        st.sampled_from(["stop", "tool_calls", "length"]),
    ),
    min_size=1,
    max_size=4,
)


def _writer() -> ResponsesWriter:
    request = CreateResponse(model="m", input="hi")
    return ResponsesWriter(initial_response(request, read_response(request, Defaults()), "m"), Fresh())


@given(rounds, st.booleans(), st.integers(0, 3), st.booleans())
def test_any_answers_are_one_legal_answer(
    answers: list[list[OutputEvent]], asks: bool, limit: int, lists: bool
) -> None:
    """Laws 1 to 4."""
    server = msgspec.structs.replace(BOX, never=None if asks else ANY_TOOL)
    remote = {"servers": (server,), "max_calls": limit, "listed": {} if lists else {"box": (ADD,)}}
    caller = Caller()
    given_turn = turn(remote=remote, tools=(Tool(name="own"),))
    events, turns = asyncio.run(played(given_turn, caller, *answers, [end()]))

    assert [isinstance(event, Finish) for event in events].index(True) == len(events) - 1
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert finish.usage == Usage(10 * len(turns), 3 * len(turns), 2 * len(turns), len(turns))
    assert len(caller.calls) <= limit
    assert not (asks and caller.calls)
    assert caller.lists == (["box"] if lists else [])

    begun, ended = (
        sum(isinstance(event, kind) for event in events) for kind in (RemoteCallStart, RemoteCallEnd)
    )
    assert begun - ended in ((0, 1) if finish.reason == "length" else (0,))

    writer = _writer()
    wire = writer.start()
    items: list[bytes] = []
    for number, event in enumerate(events):
        if number == caller.starts[-1]:
            items = [encode(item) for item in writer.response.output]
        wire += writer.event(event)
    assert writer.ended
    assert [event.sequence_number for event in wire] == list(range(len(wire)))
    if len(turns) > 1 and any(b'"mcp_call"' in item for item in items):
        read = [msgspec.json.decode(item, type=InputItem) for item in items]
        context = read_input([EasyInputMessage(role="user", content="hi"), *read], None)
        prompt = turns[-1].prompt
        assert isinstance(prompt, ChatPrompt)
        assert _plain(prompt.messages) == _plain(context)


@pytest.mark.parametrize(
    "rest", [[end()], [TextDelta("a"), end()], [TextDelta("a"), end("length")], [end("length")]]
)
async def test_a_call_that_breaks_off_fails_unless_the_limit_cut_it(rest: list[OutputEvent]) -> None:
    broken = written("box__add", '{"a": ', complete=False)
    events, turns = await played(turn(), Caller(), [*broken, *rest], [end()])
    cut = rest == [end("length")]
    ends = [event for event in events if isinstance(event, RemoteCallEnd)]
    assert [event.error is not None for event in ends] == ([] if cut else [True])
    assert len(turns) == (1 if end("length") in rest else 2)


def _plain(messages: tuple[Message, ...]) -> list[Any]:
    """Messages without the ids of calls."""
    return [
        (
            message.role, message.content or "", message.reasoning,
            [(call.name, call.arguments) for call in message.tool_calls],
        )
        for message in messages
    ]  # fmt: skip


async def test_calls_are_bounded_even_without_a_limit_of_the_client() -> None:
    caller = Caller()
    events, turns = await played(turn(), caller, [*written("box__add"), end("tool_calls")])
    assert len(caller.calls) == MAX_CALLS
    assert turns[-1].tool_choice.mode == "none"
    assert turns[-1].tool_choice.forbidden
    assert isinstance(events[-1], Finish)


async def test_results_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.server.tools.rounds.MAX_CHARS", 10)
    caller = Caller()
    calls = [*written("box__add", '{"a": "12345"}'), *written("box__add"), end("tool_calls")]
    events, _ = await played(turn(), caller, calls, [end()])
    errors = [event.error is not None for event in events if isinstance(event, RemoteCallEnd)]
    assert errors == [False, True]
    assert len(caller.calls) == 1


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("own", [(), (Tool(name="own"),)])
async def test_no_model_keeps_the_rounds_going(asks: bool, complete: bool, own: tuple[Tool, ...]) -> None:
    """Also one that calls what it must not, and one whose calls break off."""
    server = msgspec.structs.replace(BOX, never=None if asks else ANY_TOOL)
    answer = [*written("box__add", complete=complete), TextDelta("a"), end("tool_calls")]
    given_turn = turn(remote={"servers": (server,), "max_calls": 5}, tools=own)
    _, turns = await played(given_turn, Caller(), answer)
    assert len(turns) <= 7


async def test_the_prompt_keeps_its_tools_and_grows_at_its_end_only() -> None:
    """The prefix cache has the earlier rounds."""
    _, turns = await played(turn(), Caller(), [*written("box__add"), end("tool_calls")], [end()])
    first, second = (one.prompt for one in turns)
    assert isinstance(first, ChatPrompt)
    assert isinstance(second, ChatPrompt)
    assert first.tools == second.tools
    assert second.messages[: len(first.messages)] == first.messages


async def test_results_that_leave_no_room_end_the_answer_as_cut() -> None:
    events, _ = await played(turn(), Caller(), [*written("box__add"), end("tool_calls")], room=1)
    assert events[-1] == Finish("length", Usage(10, 3, 2, 1))
    with pytest.raises(ValueError, match="too long"):
        await played(turn(), Caller(), [end()], room=0)


async def test_tokens_are_counted_over_all_rounds() -> None:
    sampling = {"max_tokens": 7, "min_tokens": 5}
    events, turns = await played(
        turn(sampling=sampling),
        Caller(),
        [*written("box__add"), end("tool_calls")],
        [*written("box__add"), end()],
    )
    assert [(one.sampling.max_tokens, one.sampling.min_tokens) for one in turns] == [(7, 5), (4, 2), (1, 0)]
    assert events[-1] == Finish("length", Usage(30, 9, 6, 3))


@pytest.mark.parametrize("arguments", ["[1]", "no", "", "1", "[" * 100_000])
async def test_arguments_that_are_no_object_are_not_sent(arguments: str) -> None:
    caller = Caller()
    events, _ = await played(turn(), caller, [*written("box__add", arguments), end("tool_calls")], [end()])
    (failed,) = (event for event in events if isinstance(event, RemoteCallEnd))
    assert failed.error is not None
    assert "JSON object" in failed.error.message
    assert not caller.calls


async def test_an_approved_call_of_a_tool_that_is_not_allowed_is_not_made() -> None:
    call = ApprovedCall("box", "other", "{}", "mcpr_1")
    caller = Caller()
    events, _ = await played(turn(remote={"approved": (call,)}), caller, [end()])
    (failed,) = (event for event in events if isinstance(event, RemoteCallEnd))
    assert failed.error is not None
    assert "no tool 'other'" in failed.error.message
    assert not caller.calls


async def test_a_stop_string_of_the_client_ends_the_answer() -> None:
    stopped = Finish("stop", Usage(10, 3), stop_match="END")
    events, turns = await played(turn(), Caller(), [*written("box__add"), stopped])
    assert len(turns) == 1
    assert events[-1] == stopped


# Values


@pytest.mark.parametrize(
    ("always", "never", "asks"),
    [
        (ANY_TOOL, None, True),
        (None, ANY_TOOL, False),
        (None, ToolFilter(frozenset({"add"})), False),
        (None, ToolFilter(frozenset({"other"})), True),
        (ToolFilter(frozenset({"add"})), None, True),
        (ToolFilter(frozenset({"other"})), None, False),
        (None, ToolFilter(read_only=True), False),
        (None, ToolFilter(frozenset({"other"}), read_only=True), True),
        (ToolFilter(frozenset({"add"})), ToolFilter(read_only=True), True),
        (None, None, True),
    ],
)
def test_a_policy_chooses_the_calls_that_need_approval(
    always: ToolFilter | None, never: ToolFilter | None, asks: bool
) -> None:
    server = msgspec.structs.replace(BOX, always=always, never=never)
    tool = RemoteTool("add", None, {}, {"readOnlyHint": True})
    assert server.needs_approval(tool) == asks


@given(
    st.tuples(st.text(max_size=90), st.text(max_size=90)),
    st.tuples(st.text(max_size=90), st.text(max_size=90)),
)
def test_names_are_legal_and_two_tools_never_have_the_same(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    names = [shown_name(*one), shown_name(*other)]
    assert all(1 <= len(name) <= 64 for name in names)
    assert all(char.isascii() and (char.isalnum() or char in "_-") for name in names for char in name)
    assert (names[0] == names[1]) == (one == other)


@pytest.mark.parametrize("one", [("a__b", "c"), ("a", "b__c"), ("a_", "_b"), ("a", "__b"), ("a__", "b")])
@pytest.mark.parametrize("other", [("a__b", "c"), ("a", "b__c"), ("a_", "_b"), ("a", "__b"), ("a__", "b")])
def test_names_that_join_to_the_same_text_differ(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (shown_name(*one) == shown_name(*other)) == (one == other)


def test_a_server_does_not_show_its_credentials() -> None:
    server = RemoteServer(label="a", url="http://a/?key=secret", headers={"a": "secret"}, field="tools[0]")
    assert "secret" not in repr(server)
    assert "secret" not in repr(RemoteTools(servers=(server,)))

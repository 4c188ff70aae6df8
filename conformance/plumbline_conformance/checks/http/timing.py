"""Check the arrival times of stream events, with wide tolerances for busy machines and long prompts."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from itertools import accumulate

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answers import chunks, deltas
from plumbline_conformance.checks.chat.tools import fragments
from plumbline_conformance.checks.laws import STREAM, stream, streams
from plumbline_conformance.checks.messages.texts import message
from plumbline_conformance.checks.request_reader import requested_tools
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange

Steps = Generator[Request, Exchange, None]
QUESTION = "Count from one to a hundred."
EVENTS = 48
SECONDS = 1.0
SHARE = 0.01
AT_ONCE = 0.02
LONG = 80
AIMS = 8
TURN = 0.01
"""A stream was buffered if it lasts at least SECONDS and EVENTS events arrive within the last SHARE of it and AT_ONCE
seconds. SHARE alone would blame a fast server that first loads the model. LONG is in characters: no server collects
more text for one event. AIMS is how often a stream may miss the turn of a second, which is TURN seconds away from its
first and its last event."""


@scenario("chat/stream-long", "A stream of many events")
def chat_long(target: Target) -> Steps:
    messages = [{"role": "user", "content": QUESTION}]
    body = chat(target, messages=messages, max_tokens=96, stream=True)
    yield Request(name=STREAM, path="/chat/completions", json=body)


@scenario("responses/stream-long", "A stream of many events", needs=("responses",))
def responses_long(target: Target) -> Steps:
    body = create_response(target, QUESTION, max_output_tokens=96, stream=True)
    yield Request(name=STREAM, path="/responses", json=body)


@scenario("completions/stream-long", "A stream of many events", needs=("completions",))
def completions_long(target: Target) -> Steps:
    body = {"model": target.model, "prompt": "1, 2, 3,", "max_tokens": 96, "stream": True}
    yield Request(name=STREAM, path="/completions", json=body)


@scenario("messages/stream-long", "A stream of many events", needs=("messages",))
def messages_long(target: Target) -> Steps:
    messages = [{"role": "user", "content": QUESTION}]
    body = message(target, messages=messages, max_tokens=96, stream=True)
    yield Request(name=STREAM, path="/messages", json=body)


@stream("messages/stream-long/incremental", "Send events immediately, not all at the end", "HTTP-15")
@stream("completions/stream-long/incremental", "Send events immediately, not all at the end", "HTTP-15")
@stream("responses/stream-long/incremental", "Send events immediately, not all at the end", "HTTP-15")
@stream("chat/stream-long/incremental", "Send events immediately, not all at the end", "HTTP-15")
def incremental(exchange: Exchange) -> Iterator[Problem]:
    """Detect a buffered stream: dozens of events arrive together at the end of a long answer (HTTP-15).

    A long wait for the first event is not a violation; a short stream that arrives at once is not one either.
    """
    if exchange.header("content-encoding") not in (None, "identity"):
        raise NotRequested("a compressed stream arrives in blocks")
    if not exchange.frames:
        return
    total = exchange.frames[-1][0]
    ends = accumulate(len(frame) for _, frame in exchange.frames)
    first = exchange.body.find(b"\n\n") + 2
    began = next((at for (at, _), end in zip(exchange.frames, ends, strict=True) if end >= first), total)
    if len(exchange.events) >= EVENTS and total >= SECONDS and total - began <= min(AT_ONCE, SHARE * total):
        shown = f"{len(exchange.events)} events between {began:.2f} s and {total:.2f} s"
        yield Problem(expected="events over time", actual=shown, pointer="event 0")


@scenario(
    "chat/tools-stream-long", "A stream of many events, with a tool that is not needed", needs=("tools",)
)
def chat_tools_long(target: Target) -> Steps:
    messages = [{"role": "user", "content": QUESTION}]
    fields = {"messages": messages, "tools": [tools.weather], "max_tokens": 96, "stream": True}
    yield Request(name=STREAM, path="/chat/completions", json=chat(target, **fields))


stream(
    "chat/tools-stream-long/incremental",
    "Send events immediately, not all at the end",
    "HTTP-15",
)(incremental)


@stream(
    "chat/tools-stream-long/pieces",
    "Stream text in several events if tools are offered",
    "HTTP-15",
)
def pieces(exchange: Exchange) -> Iterator[Problem]:
    """Detect a server that buffers a long text until its end to look for calls (HTTP-15)."""
    if not requested_tools(exchange):
        raise NotRequested("the request has no tools")
    found = [delta for _, _, delta in deltas(exchange)]
    if any(delta.get("tool_calls") for delta in found):
        raise Inconclusive("the model called a tool")
    texts = [text for delta in found if isinstance(text := delta.get("content"), str) and text]
    length = sum(map(len, texts))
    if length < LONG:
        raise Inconclusive("the text is too short")
    if len(texts) == 1:
        shown = f"{length} characters in one"
        yield Problem(expected="text in several events", actual=shown, pointer="choices[0].delta.content")


@scenario("chat/call-stream-long", "A call whose arguments have to be long", needs=("tools",))
def call_long(target: Target) -> Steps:
    fields = {**tools.noting(), "max_tokens": 128, "temperature": 0, "stream": True}
    messages = [{"role": "user", "content": tools.NOTE}]
    yield Request(name=STREAM, path="/chat/completions", json=chat(target, messages=messages, **fields))


@stream("chat/call-stream-long/pieces", "Stream long arguments in several pieces", "HTTP-15")
def argument_pieces(exchange: Exchange) -> Iterator[Problem]:
    """Detect a server that buffers a long call until its end (HTTP-15)."""
    pieces_by_call: dict[object, list[str]] = {}
    for where, piece in fragments(exchange):
        function = piece.get("function")
        text = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(text, str) and text:
            pieces_by_call.setdefault(
                (where.partition(".delta")[0].rpartition(" ")[2], as_json(piece.get("index"))), []
            ).append(text)
    lengths = {key: sum(map(len, texts)) for key, texts in pieces_by_call.items()}
    if all(length < LONG for length in lengths.values()):
        raise Inconclusive("no call has long arguments")
    for key, texts in pieces_by_call.items():
        if len(texts) == 1 and lengths[key] >= LONG:
            shown, where = f"{lengths[key]} characters in one", "delta.tool_calls[].function.arguments"
            yield Problem(expected="arguments in several pieces", actual=shown, pointer=where)


@scenario("chat/stream-clock", "A stream, repeated until it crosses a full second")
def chat_clock(target: Target) -> Steps:
    """Repeat a stream at most `AIMS` times, each so that a second should turn in its middle.

    The second turns on the judge's clock; if the server's clock differs by parts of a second, it is luck.
    """
    body = chat(target, max_tokens=48, temperature=0, seed=1, stream=True)
    exchange = yield Request(name="timed", path="/chat/completions", json=body)
    for number in range(1, AIMS + 1):
        pause = _until_a_turn(exchange)
        exchange = yield Request(name=f"stream/{number}", path="/chat/completions", json=body, pause=pause)
        if exchange.status != 200 or _crossed_a_turn(exchange, time.time()):
            return


def _until_a_turn(exchange: Exchange) -> float:
    """Return the seconds to wait so that an equally long stream crosses a full second in its middle."""
    if not exchange.frames:
        return 0.0
    middle = (exchange.frames[0][0] + exchange.frames[-1][0]) / 2
    return -(time.time() + middle) % 1.0


def _crossed_a_turn(exchange: Exchange, ended: float) -> bool:
    """Return whether a second turned between events of the stream that has ended at this time."""
    if not exchange.frames:
        return False
    began = ended - exchange.frames[-1][0] + exchange.frames[0][0]
    return int(began + TURN) < int(ended - TURN)


@streams("chat/stream-clock/created", "Keep `created` the same in all chunks", "CS-01")
def _created(exchange: Exchange) -> Iterator[Problem]:
    """Check that `created` stays the same across a full second, where a time per chunk differs (CS-01)."""
    found = {as_json(chunk.get("created")) for chunk in chunks(exchange)}
    if len(found) > 1:
        yield Problem(expected="one created", actual=", ".join(sorted(found))[:200], pointer="created")

"""Check the arrival times of stream events, with wide tolerances for busy machines and long prompts."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from itertools import accumulate
from typing import Any

import msgspec

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answers import chunks, deltas
from plumbline_conformance.checks.chat.tools import fragments
from plumbline_conformance.checks.common import accepted, group
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
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Fields = dict[str, Any]
Steps = Generator[Request, Exchange, None]
QUESTION = "Count from one to a hundred."
EVENTS = 48
SECONDS = 1.0
SHARE = 0.01
AT_ONCE = 0.02
LONG = 80
HEAD = 6
LATE = 0.75
SHORT, TIMES = "short", 2
AIMS = 8
TURN = 0.01
"""A stream was buffered if it lasts at least SECONDS and EVENTS events arrive within the last SHARE of it and AT_ONCE
seconds. SHARE alone would blame a fast server that first loads the model. LONG is in characters: no server collects
more text for one event. AIMS is how often a stream may miss the turn of a second, which is TURN seconds away from its
first and its last event."""


def _long(path: str, body: Fields, limit: str, least: int) -> Steps:
    """Send a long stream; if its first text is late, again, each after a whole answer of the least length."""
    sent = Request(name=STREAM, path=path, json={**body, "stream": True})
    exchange = yield sent
    for number in range(2, 2 + TIMES):
        if not _is_late(exchange, 0.0):
            return
        yield Request(name=f"{SHORT}/{number}", path=path, json={**body, limit: least})
        exchange = yield msgspec.structs.replace(sent, name=f"{STREAM}/{number}")


def _is_late(exchange: Exchange, short: float) -> bool:
    """Return whether the first of many texts came when most of the time of a stream had passed.

    Args:
        exchange: the stream.
        short: seconds of a whole answer of the least length: reading the prompt takes no longer.
    """
    if exchange.header("content-encoding") not in (None, "identity") or not exchange.frames:
        return False
    total = exchange.frames[-1][0] - short
    many = exchange.status == 200 and len(exchange.events) >= EVENTS
    return many and total >= SECONDS and _began(exchange) - short >= LATE * total


def _began(exchange: Exchange) -> float:
    """Return when the event HEAD was complete: those before it may have no text, and then cost no time."""
    ends = accumulate(len(frame) for _, frame in exchange.frames)
    first = 0
    for _ in range(HEAD):
        first = exchange.body.find(b"\n\n", first) + 2
    total = exchange.frames[-1][0]
    return next((at for (at, _), end in zip(exchange.frames, ends, strict=True) if end >= first), total)


@scenario("chat/stream-long", "A stream of many events")
def chat_long(target: Target) -> Steps:
    messages = [{"role": "user", "content": QUESTION}]
    yield from _long("/chat/completions", chat(target, messages=messages, max_tokens=96), "max_tokens", 1)


@scenario("responses/stream-long", "A stream of many events", needs=("responses",))
def responses_long(target: Target) -> Steps:
    body = create_response(target, QUESTION, max_output_tokens=96)
    yield from _long("/responses", body, "max_output_tokens", 16)


@scenario("completions/stream-long", "A stream of many events", needs=("completions",))
def completions_long(target: Target) -> Steps:
    body = {"model": target.model, "prompt": "1, 2, 3,", "max_tokens": 96}
    yield from _long("/completions", body, "max_tokens", 1)


@scenario("messages/stream-long", "A stream of many events", needs=("messages",))
def messages_long(target: Target) -> Steps:
    messages = [{"role": "user", "content": QUESTION}]
    yield from _long("/messages", message(target, messages=messages, max_tokens=96), "max_tokens", 1)


@stream("messages/stream-long/incremental", "Send events immediately, not all at the end", "HTTP-15")
@stream("completions/stream-long/incremental", "Send events immediately, not all at the end", "HTTP-15")
@stream("responses/stream-long/incremental", "Send events immediately, not all at the end", "HTTP-15")
@stream("chat/stream-long/incremental", "Send events immediately, not all at the end", "HTTP-15")
def incremental(exchange: Exchange) -> Iterator[Problem]:
    """Detect a buffered stream: dozens of events arrive together at the end of a long answer (HTTP-15).

    A long wait for the first events is not a violation; a short stream that arrives at once is not one either.
    """
    if exchange.header("content-encoding") not in (None, "identity"):
        raise NotRequested("a compressed stream arrives in blocks")
    if not exchange.frames:
        return
    total, began = exchange.frames[-1][0], _began(exchange)
    if len(exchange.events) >= EVENTS and total >= SECONDS and total - began <= min(AT_ONCE, SHARE * total):
        shown = f"{len(exchange.events)} events between {began:.2f} s and {total:.2f} s"
        yield Problem(expected="events over time", actual=shown, pointer="event 0")


def first_is_early(seen: Transcript) -> Iterator[Problem]:
    """Detect a stream that is written when its answer is complete, in pieces over time (HTTP-15).

    A queue, a long prompt or a model that is loaded delay any answer, also a short one. Hidden thinking delays a stream
    alone, but then less than half of its tokens are left for EVENTS events, so it is not late.
    """
    found = [accepted(one) for one in group(seen, STREAM)]
    if not _is_late(found[0], 0.0):
        return
    shorts = [accepted(one) for one in group(seen, SHORT)]
    pairs = list(zip(shorts, found[1:], strict=False))
    times = [short.frames[-1][0] if short.frames else 0.0 for short, _ in pairs]
    if len(pairs) < TIMES or not all(_is_late(one, max(times)) for _, one in pairs):
        raise Inconclusive("the first text was late once, but not in each of the further streams")
    shown = f"at {_began(found[-1]):.2f} s of {found[-1].frames[-1][0]:.2f} s"
    wanted = f"text soon after {max(times):.2f} s, which a short answer takes"
    yield Problem(expected=wanted, actual=shown, pointer=f"event {HEAD - 1}", exchange=found[-1].name)


for _slug in ("chat", "responses", "completions", "messages"):
    check(f"{_slug}/stream-long/first", "Send the first text before the answer is complete", "HTTP-15")(
        first_is_early
    )


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

"""Check messages whose prompt fills the context, and prompts that exceed it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from math import ceil
from typing import Any

from plumbline_conformance.checks.common import accepted, at, refused
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.checks.messages.fold import message_of, prompt_tokens, usage_of
from plumbline_conformance.checks.messages.texts import COUNT, PATH, message
from plumbline_conformance.checks.request_reader import request_fields
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
LENGTHS = ("max_model_len", "context_length", "context_window", "max_input_tokens")
"""Members of a model that servers give the length of their context in."""
MOST = 65_536
"""A longer context costs too much to fill."""
ROOM = 8
"""Tokens that a full prompt leaves to the answer."""
LIMIT = 256
"""`max_tokens`, more than the room."""
FEW, MANY = 100, 200
"""Words of the prompts that show how many tokens a word has."""
FULL = "model_context_window_exceeded"


@scenario("messages/context", "Prompts that fill the context, and one that exceeds it", needs=("messages",))
def context(target: Target) -> Steps:
    """Send nothing if the server does not say how long its context is, or counts no tokens."""
    length = _length((yield Request(name="models", path="/models", method="GET")), target.model)
    if length is None or length > MOST:
        return
    counts: list[int] = []
    for words in (FEW, MANY):
        body = {"model": target.model, "messages": _words(words)}
        counts.append(_count((yield Request(name=f"count/{words}", path=COUNT, json=body))))
    each = (counts[1] - counts[0]) / (MANY - FEW)
    if each < 1 or counts[0] <= 0:
        return
    words = FEW + int((length - ROOM - counts[0]) / each)
    full = message(target, messages=_words(words), max_tokens=LIMIT)
    yield Request(name=WHOLE, path=PATH, json=full)
    yield Request(name=STREAM, path=PATH, json={**full, "stream": True})
    over = _words(words + ceil(2 * ROOM / each))
    yield Request(name="over", path=PATH, json=message(target, messages=over, max_tokens=LIMIT))


def _words(count: int) -> list[dict[str, Any]]:
    return user("Count the words: " + " word" * count)


def _length(exchange: Exchange, model: str) -> int | None:
    listed = exchange.json.get("data") if isinstance(exchange.json, dict) else None
    found = next((one for one in objects_in(listed) if one.get("id") == model), {})
    return next((found[name] for name in LENGTHS if isinstance(found.get(name), int)), None)


def _count(exchange: Exchange) -> int:
    found = exchange.json.get("input_tokens") if isinstance(exchange.json, dict) else None
    return found if isinstance(found, int) else 0


def _filled(seen: Transcript, name: str) -> Exchange:
    """Return an exchange whose prompt leaves less room than `max_tokens`."""
    _ = accepted(at(seen, "models"))
    if not any(one.name == name for one in seen.exchanges):
        raise Inconclusive(f"the server names no context of at most {MOST} tokens, or counts no tokens")
    return at(seen, name)


def _ending(seen: Transcript, name: str) -> Iterator[Problem]:
    """Check the reason at the end of the context (MSG-09). A server may also refuse what has too little room.

    A SHOULD: the SDK says that `max_tokens` may also be the model's maximum, and servers end a full context with it.
    """
    found = _filled(seen, name)
    if found.status == 400:
        raise Inconclusive("the server refuses a limit that does not fit behind the prompt")
    reason = message_of(accepted(found)).get("stop_reason")
    length = _length(at(seen, "models"), str(request_fields(found).get("model")))
    written, prompt = usage_of(found)["output_tokens"], prompt_tokens(found)
    where = {"pointer": "stop_reason", "exchange": name}
    if reason == "max_tokens" and written < LIMIT:
        wanted = f"{FULL} after {written} of {LIMIT} tokens"
        yield Problem(expected=wanted, actual=as_json(reason), **where)
    if reason == FULL and length is not None and prompt + written < length - 1:
        wanted = f"another reason after {prompt + written} of {length} tokens"
        yield Problem(expected=wanted, actual=as_json(reason), **where)


@check("messages/context/ending", "Say that the context is full", "MSG-09", request=WHOLE, milder=True)
def ending(seen: Transcript) -> Iterator[Problem]:
    yield from _ending(seen, WHOLE)


@check(
    "messages/context/stream-ending",
    "Say in a stream that the context is full",
    "MSG-09",
    request=STREAM,
    milder=True,
)
def stream_ending(seen: Transcript) -> Iterator[Problem]:
    yield from _ending(seen, STREAM)


@check(
    "messages/context/refused", "Refuse a prompt that is longer than the context", "MSG-11", request="over"
)
def too_long(seen: Transcript) -> Iterator[Problem]:
    """Check a prompt that exceeds the context, unless the counts were too high: Anthropic calls them estimates."""
    found, full = _filled(seen, "over"), at(seen, WHOLE)
    length = _length(at(seen, "models"), str(request_fields(found).get("model"))) or 0
    if found.status == full.status == 200 and prompt_tokens(full) <= length - 2 * ROOM:
        counted = f"the prompt that should fill {length} tokens has {prompt_tokens(full)} by its usage"
        raise Inconclusive(f"{counted}: the counts are estimates")
    yield from refused(found, 400, 413, 422)

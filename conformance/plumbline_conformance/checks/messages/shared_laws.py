"""Laws of every message and of every stream of Messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plumbline_conformance.checks.common import framing, sse_content_type, valid_body
from plumbline_conformance.checks.messages.fold import (
    PROMPT,
    blocks_of,
    events_of,
    is_new,
    message_of,
    prompt_tokens,
    usage_of,
)
from plumbline_conformance.checks.request_reader import request_fields
from plumbline_conformance.suite.scenario import Problem, breaking
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import is_stream, objects_in
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.transcript.sse import load_json

__all__ = ["blocks", "ending", "event_shapes", "folded", "lifecycle", "shape", "usage", "wire"]

Json = dict[str, Any]
_DELTAS = {
    "text": ("text_delta", "citations_delta"),
    "thinking": ("thinking_delta", "signature_delta"),
    "tool_use": ("input_json_delta",),
}
_EMPTY = {"text": "", "thinking": "", "signature": "", "input": {}}


def shape(exchange: Exchange) -> Iterator[Problem]:
    """Check the schema of a whole message, and that it is identified and has ended (MSG-01)."""
    yield from valid_body(exchange, "CreateMessageResponse")
    if isinstance(exchange.json, dict):
        yield from _identified(exchange.json)


def folded(exchange: Exchange) -> Iterator[Problem]:
    """Check that a stream folds to a message (MSG-01)."""
    found = message_of(exchange)
    yield from violations("CreateMessageResponse", found, "folded, ")
    yield from _identified(found)


def _identified(message: Json) -> Iterator[Problem]:
    for name in ("id", "model"):
        if message.get(name) == "":
            yield Problem(expected=f"a {name}", actual="''", pointer=name)
    calls = [
        block.get("id") for block in objects_in(message.get("content")) if block.get("type") == "tool_use"
    ]
    if len(set(map(as_json, calls))) != len(calls):
        yield Problem(expected="calls with ids of their own", actual=as_json(calls)[:200], pointer="content")
    for place, block in enumerate(objects_in(message.get("content"))):
        if block.get("id") == "":
            yield Problem(expected="an id of the call", actual="''", pointer=f"content.{place}.id")


def usage(exchange: Exchange) -> Iterator[Problem]:
    """Check that the counts fit a prompt and the token limit (MSG-10)."""
    found, limit = usage_of(exchange), request_fields(exchange).get("max_tokens")
    if prompt_tokens(exchange) < 1:
        yield Problem(expected="at least 1 token of a prompt", actual=as_json(found)[:200], pointer="usage")
    elif is_stream(exchange):
        yield from _counted_from_start(exchange)
    written = found["output_tokens"]
    if isinstance(limit, int) and written > limit:
        where = "usage.output_tokens"
        yield Problem(expected=f"at most {limit}", actual=str(written), pointer=where)
    if written < 1 and any(block.get("text") for block in blocks_of(exchange, "text")):
        yield Problem(expected="tokens of the text", actual=str(written), pointer="usage.output_tokens")


def _counted_from_start(exchange: Exchange) -> Iterator[Problem]:
    """Check that the first event counts the prompt: clients take the input from it (vercel/ai#17326)."""
    start = next((event.get("message") for _, event in events_of(exchange)), None)
    counts = start.get("usage") if isinstance(start, dict) else None
    if isinstance(counts, dict) and not any(counts.get(name) for name in PROMPT):
        where = "message_start, message.usage"
        yield Problem(expected="at least 1 token of a prompt", actual=as_json(counts)[:200], pointer=where)


def ending(exchange: Exchange) -> Iterator[Problem]:
    """Check why the answer ended, by what it has (MSG-09)."""
    message, written = message_of(exchange), usage_of(exchange)["output_tokens"]
    reason, sequence = message.get("stop_reason"), message.get("stop_sequence")
    asked = request_fields(exchange)
    calls = blocks_of(exchange, "tool_use")
    if reason is None and "stop_reason" in message:
        yield Problem(expected="a reason", actual="null", pointer="stop_reason")
    if calls and reason in ("end_turn", "stop_sequence"):
        yield Problem(expected="tool_use after calls", actual=as_json(reason), pointer="stop_reason")
    if not calls and reason == "tool_use":
        yield Problem(expected="a call", actual="none, and the reason tool_use", pointer="stop_reason")
    sequences = asked.get("stop_sequences")
    if reason == "stop_sequence" and sequence not in (sequences if isinstance(sequences, list) else []):
        yield Problem(expected="a sequence of the request", actual=as_json(sequence), pointer="stop_sequence")
    if reason != "stop_sequence" and sequence is not None:
        yield Problem(expected=f"null with {reason}", actual=as_json(sequence)[:200], pointer="stop_sequence")
    limit = asked.get("max_tokens")
    if reason == "max_tokens" and isinstance(limit, int) and written < limit:
        wanted = f"{limit} tokens, or another reason"
        yield Problem(expected=wanted, actual=f"max_tokens after {written}", pointer="stop_reason")


def wire(exchange: Exchange) -> Iterator[Problem]:
    """Check the media type, the framing, the names of the events, and that there is no `[DONE]` (MSG-07)."""
    yield from breaking("MSG-07", sse_content_type(exchange))
    yield from breaking("MSG-07", framing(exchange, named=True))
    if any(event.data == "[DONE]" for event in exchange.events):
        yield Problem(expected="no [DONE]", actual="one", pointer="events", rule="MSG-07")


def event_shapes(exchange: Exchange) -> Iterator[Problem]:
    """Check the schema of every event of a known type (MSG-07)."""
    for number, event in enumerate(exchange.chunks):
        if isinstance(event, dict) and not is_new(event):
            yield from breaking("MSG-07", violations("MessageStreamEvent", event, f"event {number}, "))


def lifecycle(exchange: Exchange) -> Iterator[Problem]:
    """Check the first event and the two last ones (MSG-07)."""
    found = [event for _, event in events_of(exchange)]
    kinds = [event.get("type") for event in found]
    outer = [kind for kind in kinds if not str(kind).startswith("content_block_")]
    wanted = ["message_start", "message_delta", "message_stop"]
    if outer != wanted or kinds[:1] != wanted[:1] or kinds[-2:] != wanted[1:]:
        shown = ", ".join(map(str, [*kinds[:2], "…", *kinds[-3:]]))
        yield Problem(
            expected=f"{wanted[0]} first, {wanted[1]} and {wanted[2]} last", actual=shown, pointer="events"
        )
        return
    start, end = found[0].get("message"), found[-2].get("delta")
    for name, value in (("content", []), ("stop_reason", None), ("stop_sequence", None)):
        if isinstance(start, dict) and start.get(name) != value:
            shown = as_json(start.get(name))[:200]
            yield Problem(expected=as_json(value), actual=shown, pointer=f"message_start, message.{name}")
    if isinstance(end, dict) and end.get("stop_reason") is None:
        yield Problem(expected="a reason", actual="null", pointer="message_delta, delta.stop_reason")


def blocks(exchange: Exchange) -> Iterator[Problem]:
    """Check that blocks follow each other, each from its start to its stop (MSG-08)."""
    is_open, count, kind, arguments = False, 0, "", ""
    for number, event in events_of(exchange):
        step = str(event.get("type"))
        where = f"event {number}"
        if not step.startswith("content_block_"):
            if is_open:
                yield Problem(expected="the stop of the block", actual=step, pointer=where)
                return
            continue
        if is_open is (step == "content_block_start"):
            wanted = "the stop of the block" if is_open else "the start of a block"
            yield Problem(expected=wanted, actual=step, pointer=where)
            return
        count += step == "content_block_start"
        if event.get("index") != count - 1 or isinstance(event.get("index"), bool):
            yield Problem(
                expected=f"index {count - 1}", actual=as_json(event.get("index"))[:80], pointer=where
            )
            return
        if step == "content_block_start":
            is_open, arguments = True, ""
            block = event.get("content_block")
            kind = str(block.get("type")) if isinstance(block, dict) else ""
            yield from _begins_empty(block, where)
        elif step == "content_block_delta":
            delta = event.get("delta")
            own = delta if isinstance(delta, dict) else {}
            if own.get("type") not in _DELTAS.get(kind, (own.get("type"),)):
                yield Problem(
                    expected=f"a delta of {kind}", actual=as_json(own.get("type"))[:80], pointer=where
                )
            arguments += str(own.get("partial_json") or "")
        else:
            is_open = False
            yield from _whole_arguments(exchange, kind, arguments, where)


def _begins_empty(block: Any, where: str) -> Iterator[Problem]:
    for name, empty in _EMPTY.items():
        if isinstance(block, dict) and block.get(name, empty) != empty:
            shown = as_json(block[name])[:200]
            yield Problem(expected=as_json(empty), actual=shown, pointer=f"{where}, content_block.{name}")


def _whole_arguments(exchange: Exchange, kind: str, arguments: str, where: str) -> Iterator[Problem]:
    """Check that the arguments of a call are an object, unless the answer was cut."""
    if kind != "tool_use" or not arguments or message_of(exchange).get("stop_reason") != "tool_use":
        return
    if not isinstance(load_json(arguments.encode()), dict):
        yield Problem(expected="a JSON object in partial_json", actual=arguments[:200], pointer=where)

"""Mutants of values of every type, of what a server keeps, and of what HTTP requires of every answer."""

from __future__ import annotations

from typing import Any

from mutants.basic import counted, of_kind, put
from mutants.chat.changes import STREAM, WHOLE, calls, pieces, text
from mutants.chat.features import logprobs, streamed_logprobs
from mutants.messages import ONE, changes
from mutants.mutations import (
    FIRST,
    Mutant,
    Mutation,
    body,
    body_bytes,
    changed,
    chunks,
    each,
    header,
    status,
    without,
)
from mutants.responses.basics import final, item
from mutants.state import messages
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["TYPED"]

FLAT = '{"count": "3", "ratio": 0.5, "on": true, "place": {}, "tags": []}'
"""Arguments with a text for a number."""
LATIN = '{"greeting": "GrÃ¼Ã\u009f dich", "place": {}, "tags": []}'
"""Text of several bytes a character, decoded as one byte each."""


def joined(value: str) -> Any:
    """Return the change of fragments of calls whose arguments join to this text."""

    def change(found: list[Any]) -> None:
        for place, piece in enumerate(found):
            piece["function"]["arguments"] = "" if place else value

    return change


def second_text(value: str, request: str) -> Mutation:
    """Replace the content of the second of two choices."""
    if request == WHOLE:
        return body(put("choices", 1, "message", "content", value), request)

    def change(found: list[Any]) -> None:
        deltas = [one["delta"] for data in found for one in data["choices"] if one["index"] == 1]
        for place, delta in enumerate(delta for delta in deltas if delta.get("content")):
            delta["content"] = "" if place else value

    return chunks(change, request)


def without_seed(seen: Transcript) -> Transcript:
    """Stream another text for every request."""
    for one in seen.exchanges:
        seen = text(f"text of {one.name}", one.name)(seen) if one.name == WHOLE else seen
        seen = chunks(lambda found, name=one.name: _say(found, name), one.name)(seen)  # type: ignore[misc]
    return seen


def _say(found: list[Any], name: str) -> None:
    for data in found:
        for one in data["choices"]:
            if one["delta"].get("content"):
                one["delta"]["content"] = name


def likely(entries: Any) -> None:
    """Give every alternative a probability of 0.9."""
    for entry in entries:
        entry["logprob"] = -0.1
        for place, one in enumerate(entry["top_logprobs"]):
            one["logprob"] = -0.1 - place / 1000


def streamed_likely(found: list[Any]) -> None:
    for entries in found:
        likely(entries)


def likely_list(answer: Any) -> None:
    for lists in (choice["logprobs"] for choice in answer["choices"]):
        lists["token_logprobs"] = [-0.1 for _ in lists["token_logprobs"]]
        lists["top_logprobs"] = [top and dict.fromkeys(top, -0.1) for top in lists["top_logprobs"]]


def of_answer(answer: Any) -> None:
    """Count the offsets from the end of the prompt."""
    lists = answer["choices"][0]["logprobs"]
    lists["text_offset"] = [offset - 5 for offset in lists["text_offset"]]


def response_entries(answer: Any) -> None:
    for one in answer["output"]:
        for part in one.get("content", []):
            likely(part.get("logprobs") or [])


def streamed_entries(found: list[Any]) -> None:
    for event in found:
        likely(event.get("logprobs") or [])
        likely((event.get("part") or {}).get("logprobs") or [])
        for holder in (event.get("response") or {}).get("output", []), [event.get("item") or {}]:
            for one in holder:
                for part in one.get("content") or []:
                    likely(part.get("logprobs") or [])


def twice(name: str, value: str, request: str) -> Mutation:
    """Send a header once more."""
    return each(request, lambda e: changed(e, headers=[*e.headers, (name, value)]))


def later(*path: str) -> Mutation:
    """Put the time of every event of a stream two hours later."""

    def change(found: list[Any]) -> None:
        for event in found:
            for name in path[:-1]:
                event = event.get(name) or {}
            if path[-1] in event:
                event[path[-1]] += 7200

    return chunks(change, STREAM)


def long_ago(seen: Transcript) -> Transcript:
    """Give the conversation a time of 2001, in every answer."""
    for name in ("created", "get", "update", "get_updated"):
        seen = body(put("created_at", 1_000_000_000), name)(seen)
    return seen


def lengthy(seen: Transcript) -> Transcript:
    """Send a length and say that the body comes in chunks."""
    return twice("transfer-encoding", "chunked", WHOLE)(header("content-length", "5", WHOLE)(seen))


def streamed_input(value: str) -> Mutation:
    """Stream this input of a call."""

    def change(found: list[Any]) -> None:
        deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
        for place, delta in enumerate(deltas):
            delta["partial_json"] = "" if place else value

    return chunks(change, STREAM)


def answered_all_the_same(seen: Transcript) -> Transcript:
    """Answer the prompt that exceeds the context as the one that fills it."""
    full = next(one for one in seen.exchanges if one.name == WHOLE)
    return each("over", lambda e: changed(e, status=200, headers=full.headers, frames=full.frames))(seen)


def broken_connection(request: str) -> Mutation:
    def change(exchange: Any) -> Any:
        why = "RemoteProtocolError: illegal status line"
        return changed(exchange, status=0, headers=[], frames=[], error=why)

    return each(request, change)


def in_milliseconds(answer: Any) -> None:
    answer["completed_at"] *= 1000


def an_hour_later(answer: Any) -> None:
    answer["completed_at"] += 3600


def reordered(answer: Any) -> None:
    """List the answer before its question."""
    data = answer["data"]
    data[0], data[1] = data[1], data[0]


CHAT_TYPED: list[tuple[str, str, Mutation, str]] = [
    ("json-nested", "a flat document", text("{}"), "valid"),
    ("json-nested", "text of another encoding", text(LATIN), "valid"),
    ("json-nested", "a flat document, streamed", text("{}", STREAM), "stream-valid"),
    ("json-choices", "prose in the second choice", second_text("Hello!", WHOLE), "valid"),
    ("json-choices", "streamed prose in the second choice", second_text("Hello!", STREAM), "stream-valid"),
    ("json-tools", "prose beside tools", text("Hello!"), "valid"),
    ("json-tools", "streamed prose beside tools", text("Hello!", STREAM), "stream-valid"),
    ("tool-typed", "a text for a number", calls(put(0, "function", "arguments", FLAT)), "arguments"),
    ("tool-typed", "a streamed text for a number", pieces(joined(FLAT)), "stream-arguments"),
    ("seed-stream", "no seed in streams", without_seed, "repeated"),
    ("tool-result", "a result left out", body(counted("prompt_tokens", 1), "long"), "read"),
    ("logprobs-pair", "probabilities of 1.8", logprobs(likely), "probable"),
    ("logprobs-pair", "streamed probabilities of 1.8", streamed_logprobs(streamed_likely), "stream-probable"),
]
RESPONSES_TYPED: list[tuple[str, str, Mutation, str]] = [
    ("json-nested", "a flat document", item(0, "content", 0, "text", "{}"), "valid"),
    (
        "json-nested",
        "a flat document at the end",
        final("output", 0, "content", 0, "text", "{}"),
        "stream-valid sums",
    ),
    ("json-tools", "prose beside functions", item(0, "content", 0, "text", "Hello!"), "valid"),
    (
        "json-tools",
        "prose at the end, beside functions",
        final("output", 0, "content", 0, "text", "Hello!"),
        "stream-valid sums",
    ),
    ("tool-typed", "a text for a number", item(0, "arguments", FLAT), "arguments"),
    (
        "tool-typed",
        "a streamed text for a number",
        final("output", 0, "arguments", FLAT),
        "stream-arguments sums",
    ),
    ("tool", "an end in milliseconds", body(in_milliseconds, WHOLE), "state"),
    ("tool", "an end an hour later", body(an_hour_later, WHOLE), "state"),
    ("tool-result", "an output left out", body(counted("input_tokens", 1), "long"), "read"),
    ("tool-result", "a call left out", body(counted("input_tokens", 1), "call"), "call"),
    ("unkept-stream", "kept all the same", status(200, "get"), "gone"),
    ("stored-function", "stored without its calls", body(put("output", []), "get"), "get"),
    ("conversation-deleted", "still there", status(200, "get"), "gone"),
    ("conversation-deleted", "an error without `param`", body(without("error", "param"), "get"), "envelope"),
    ("unkept-stream", "an error without `param`", body(without("error", "param"), "get"), "envelope"),
    ("conversation-deleted", "its items still there", status(200, "items"), "gone"),
    ("conversation-deleted", "continued after its end", status(200, "continued"), "gone"),
    (
        "history-text",
        "another history",
        body(put("output", 0, "content", 0, "text", "?"), "continued"),
        "same",
    ),
    ("conversation", "an answer before its question", body(reordered, "items"), "texts"),
    ("logprobs", "probabilities of 1.8", body(response_entries, WHOLE), "probable"),
    ("logprobs", "streamed probabilities of 1.8", chunks(streamed_entries, STREAM), "stream-probable"),
]
OTHERS: list[tuple[str, str, Mutation, str]] = [
    ("completions/logprobs", "probabilities over 1", body(likely_list, WHOLE), "probable"),
    ("completions/echo", "offsets without the prompt", body(of_answer), "offsets"),
    ("messages/tool-any", "no call", body(changes(content=[], stop_reason="end_turn"), WHOLE), "called"),
    (
        "messages/tool-any",
        "a call of another tool",
        of_kind("content_block_start", put("content_block", "name", "other"), STREAM),
        "stream-called",
    ),
    ("messages/tool-typed", "another tool", body(put("content", 0, "name", "other"), WHOLE), "called"),
    (
        "messages/tool-typed",
        "another tool, streamed",
        of_kind("content_block_start", put("content_block", "name", "other"), STREAM),
        "stream-called",
    ),
    ("messages/tool-typed", "a streamed text for a number", streamed_input(FLAT), "stream-arguments"),
    (
        "messages/tool-typed",
        "a text for a number",
        body(put("content", 0, "input", "count", "3"), WHOLE),
        "arguments",
    ),
    (
        "messages/context",
        "max_tokens at the end of the context",
        body(put("stop_reason", "max_tokens"), WHOLE),
        "ending",
    ),
    (
        "messages/context",
        "a context that is not full",
        body(put("usage", {"input_tokens": 9, "output_tokens": 8}), WHOLE),
        "ending",
    ),
    (
        "messages/context",
        "a streamed max_tokens at the end of the context",
        of_kind("message_delta", put("delta", "stop_reason", "max_tokens"), STREAM),
        "stream-ending",
    ),
    ("messages/context", "a prompt that is cut", answered_all_the_same, "refused"),
    ("messages/tool", "streamed input of another tool", streamed_input('{"zone": "x"}'), "stream-arguments"),
    ("completions/text", "a coding that nobody accepts", header("content-encoding", "br", WHOLE), "coding"),
    (
        "responses/stream-text",
        "a coding that nobody accepts",
        header("content-encoding", "br", STREAM),
        "coding",
    ),
    ("messages/text", "a coding that nobody accepts", header("content-encoding", "br", WHOLE), "coding"),
    ("models/list", "a coding that nobody accepts", header("content-encoding", "br", "list"), "coding"),
    ("errors/broken-json", "a coding that nobody accepts", header("content-encoding", "br", FIRST), "coding"),
    ("messages/tool-result", "a result left out", body(put("usage", ONE), "long"), "read"),
    ("chat/text", "two content types", twice("content-type", "text/plain", "whole"), "headers"),
    ("chat/text", "a coding that nobody accepts", header("content-encoding", "br", "whole"), "coding"),
    ("chat/stream-text", "two content types", twice("content-type", "text/plain", STREAM), "headers"),
    ("chat/stream-text", "a coding that nobody accepts", header("content-encoding", "br", STREAM), "coding"),
    ("errors/broken-json", "two content types", twice("content-type", "text/plain", FIRST), "headers"),
    ("models/list", "a byte order mark", body_bytes(lambda old: b"\xef\xbb\xbf" + old, "list"), "headers"),
    ("completions/text", "a length beside chunks", lengthy, "headers"),
    ("responses/stream-text", "two content types", twice("content-type", "text/plain", STREAM), "headers"),
    ("messages/text", "two content types", twice("content-type", "text/plain", WHOLE), "headers"),
    (
        "chat/http10",
        "chunks for an old client",
        twice("transfer-encoding", "chunked", WHOLE),
        "unchunked",
    ),
    (
        "chat/http10",
        "chunks of a stream for an old client",
        twice("transfer-encoding", "chunked", STREAM),
        "stream-unchunked",
    ),
    ("chat/stream-text", "made two hours later", later("created"), "created"),
    ("completions/stream", "made two hours later", later("created"), "created"),
    ("responses/stream-text", "made two hours later", later("response", "created_at"), "stream-created"),
    ("responses/conversation-items", "made long ago", long_ago, "created"),
    (
        "chat/stop",
        "the tokens after the stop string",
        body(counted("completion_tokens", 99), WHOLE),
        "counted",
    ),
    ("chat/connection", "a broken answer after an answer", broken_connection("after/1"), "served"),
    ("chat/connection", "a broken answer after a refusal", broken_connection("after/2"), "served"),
    ("chat/connection", "a broken answer after a stream", broken_connection("after/4"), "served"),
    ("websocket/turn", "binary messages", each("first", lambda e: changed(e, binary=True)), "messages"),
    (
        "websocket/errors",
        "numbers that go on after an error",
        messages(
            lambda found: [{**one, "sequence_number": one["sequence_number"] + 7} for one in found], "valid"
        ),
        "steps",
    ),
]
TYPED: list[Mutant] = [
    (f"{prefix}{scenario}", name, mutation, tuple(tripped.split()))
    for prefix, rows in (("chat/", CHAT_TYPED), ("responses/", RESPONSES_TYPED), ("", OTHERS))
    for scenario, name, mutation, tripped in rows
]

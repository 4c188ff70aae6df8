"""Mutants of the basic scenarios. Every check has at least one mutant that it detects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mutants.mutations import (
    LAST,
    Event,
    Mutation,
    again,
    body,
    body_bytes,
    chunk,
    chunks,
    events,
    header,
    status,
    without,
)
from plumbline_conformance.checks.laws import STREAM, WHOLE

__all__ = ["BASICS"]

DETAIL = b'{"detail": "Method Not Allowed"}'


def put(*path: Any) -> Callable[[Any], object]:
    """Set the member at `path[:-1]` to `path[-1]`."""

    def change(value: Any) -> None:
        for part in path[:-2]:
            value = value[part]
        value[path[-2]] = path[-1]

    return change


def counted(kind: str, number: int) -> Callable[[Any], object]:
    """Set a count of the usage, and the total with it."""

    def change(answer: Any) -> None:
        usage = answer["usage"]
        usage["total_tokens"] += number - usage[kind]
        usage[kind] = number

    return change


def done_twice(found: list[Event]) -> list[Event]:
    return [*found, (None, "[DONE]")]


def no_done(found: list[Event]) -> list[Event]:
    return [event for event in found if event[1] != "[DONE]"]


def after_done(found: list[Event]) -> list[Event]:
    return [found[-1], *found[:-1]]


def swap(a: int, b: int) -> Callable[[list[Event]], list[Event]]:
    def change(found: list[Event]) -> list[Event]:
        found[a], found[b] = found[b], found[a]
        return found

    return change


def drop(number: int) -> Callable[[list[Event]], list[Event]]:
    def change(found: list[Event]) -> list[Event]:
        del found[number]
        return found

    return change


def drop_kind(kind: str) -> Callable[[list[Event]], list[Event]]:
    return lambda found: [event for event in found if event[0] != kind]


def of_kind(kind: str, change: Callable[[Any], object], request: str | None = LAST) -> Mutation:
    """Change the first event of a type in place."""
    return chunks(lambda found: change(next(event for event in found if event["type"] == kind)), request)


def no_name(found: list[Event]) -> list[Event]:
    return [(None, data) for _, data in found]


def reindex(found: list[Any]) -> None:
    """Exchange the indexes of the first two choices."""
    for data in found:
        for choice in data["choices"]:
            choice["index"] = {0: 1, 1: 0}.get(choice["index"], choice["index"])


def crlf(content: bytes) -> bytes:
    return content.replace(b"\n", b"\r\n")


# (scenario, what the server does, the change, last segments of the checks that detect it)
BASICS: list[tuple[str, str, Mutation, tuple[str, ...]]] = [
    ("chat/text", "no object", body(without("object")), ("shape",)),
    ("chat/text", "no refusal", body(without("choices", 0, "message", "refusal")), ("shape",)),
    ("chat/text", "finish reason null", body(put("choices", 0, "finish_reason", None)), ("shape",)),
    ("chat/text", "created as text", body(put("created", "now")), ("shape",)),
    ("chat/text", "a body that is no JSON", body_bytes(lambda _: b"<html>"), ("shape", "one")),
    ("chat/text", "text/html", header("content-type", "text/html"), ("content-type",)),
    ("chat/text", "no request id", header("x-request-id", None), ("request-id",)),
    ("chat/text", "no choices", body(put("choices", [])), ("one", "shape")),
    ("chat/text", "an index from 1", body(put("choices", 0, "index", 1)), ("one", "shape")),
    ("chat/text", "a total of its own", body(put("usage", "total_tokens", 1)), ("usage",)),
    ("chat/text", "no usage", body(without("usage")), ("usage",)),
    ("chat/text", "an empty prompt", body(put("usage", "prompt_tokens", 0)), ("usage",)),
    ("chat/text", "more than asked for", body(put("usage", "completion_tokens", 9)), ("length", "usage")),
    ("chat/text", "`length` too soon", body(put("usage", "completion_tokens", 3)), ("length", "usage")),
    ("chat/choices", "one of two choices", body(lambda a: a["choices"].pop()), ("n", "sound")),
    ("chat/choices", "the same index twice", body(put("choices", 1, "index", 0)), ("n", "sound")),
    ("chat/logprobs", "asked for and null", body(put("choices", 0, "logprobs", None)), ("given",)),
    (
        "chat/logprobs",
        "no alternatives",
        body(without("choices", 0, "logprobs", "content", 0, "top_logprobs")),
        ("shape", "sound"),
    ),
    (
        "chat/logprobs",
        "the worst first",
        body(lambda a: a["choices"][0]["logprobs"]["content"][0]["top_logprobs"].reverse()),
        ("alternatives",),
    ),
    (
        "chat/logprobs",
        "likelier than certain",
        body(put("choices", 0, "logprobs", "content", 0, "logprob", 0.5)),
        ("alternatives",),
    ),
    (
        "chat/logprobs",
        "a byte of 256",
        body(put("choices", 0, "logprobs", "content", 0, "bytes", [256])),
        ("join",),
    ),
    ("chat/logprobs", "an entry lost", body(without("choices", 0, "logprobs", "content", 0)), ("join",)),
    ("chat/stream-text", "a stream as JSON", header("content-type", "application/json"), ("content-type",)),
    ("chat/stream-text", "named events", events(lambda f: [("chunk", d) for _, d in f]), ("framing",)),
    ("chat/stream-text", "an event without data", body_bytes(lambda b: b"event: x\n\n" + b), ("framing",)),
    ("chat/stream-text", "a retry field", body_bytes(lambda b: b"retry: 1\n\n" + b), ("tidy",)),
    ("chat/stream-text", "no blank line at the end", body_bytes(lambda b: b[:-1]), ("framing",)),
    (
        "chat/stream-text",
        "half a JSON object",
        body_bytes(lambda b: b.replace(b"}\n\n", b"\n\n", 1)),
        ("framing", "role-once"),
    ),
    ("chat/stream-text", "nothing", body_bytes(lambda _: b""), ("framing", "done", "finish-once")),
    ("chat/stream-text", "CRLF", body_bytes(crlf), ("tidy",)),
    ("chat/stream-text", "a byte order mark", body_bytes(lambda b: b"\xef\xbb\xbf" + b), ("tidy",)),
    ("chat/stream-text", "an id field", body_bytes(lambda b: b"id: 1\n" + b), ("tidy",)),
    ("chat/stream-text", "no [DONE]", events(no_done), ("done",)),
    ("chat/stream-text", "two [DONE]", events(done_twice), ("done",)),
    ("chat/stream-text", "chunks after [DONE]", events(after_done), ("done",)),
    ("chat/stream-text", "no id", chunk(1, without("id")), ("shape", "identity")),
    ("chat/stream-text", "another id", chunk(1, put("id", "chatcmpl-other")), ("identity",)),
    ("chat/stream-text", "another model", chunk(2, put("model", "other")), ("identity",)),
    ("chat/stream-clock", "another time", chunk(2, put("created", 1)), ("created", "sound")),
    (
        "chat/stream-text",
        "the role again",
        chunk(1, put("choices", 0, "delta", "role", "assistant")),
        ("role-once",),
    ),
    ("chat/stream-text", "no role", events(drop(0)), ("role-once",)),
    ("chat/stream-text", "no finish", events(drop(-2)), ("finish-once",)),
    ("chat/stream-text", "text after the finish", events(swap(-2, -3)), ("finish-once",)),
    (
        "chat/stream-text",
        "two finishes",
        chunk(1, put("choices", 0, "finish_reason", "stop")),
        ("finish-once",),
    ),
    ("chat/stream-text", "usage not asked for", chunk(0, put("usage", {})), ("no-usage", "shape")),
    (
        "chat/stream-text",
        "other words",
        again(chunk(1, put("choices", 0, "delta", "content", "other"))),
        ("same-as-whole",),
    ),
    ("chat/stream-text", "a delta lost", again(events(drop(1))), ("same-as-whole",)),
    (
        "chat/stream-text",
        "another reason",
        again(chunk(-1, put("choices", 0, "finish_reason", "stop"))),
        ("same-as-whole",),
    ),
    ("chat/stream-choices", "no object", chunk(0, without("object")), ("shape", "sound")),
    ("chat/stream-choices", "no finish of one choice", events(drop(-2)), ("finish-once",)),
    ("chat/stream-choices", "the second choice first", chunks(reindex), ("order",)),
    ("chat/stream-usage", "no object", chunk(0, without("object"), STREAM), ("shape", "sound")),
    ("chat/stream-usage", "usage before the end", events(swap(-2, -3), STREAM), ("last",)),
    ("chat/stream-usage", "no usage", events(drop(-2), STREAM), ("last",)),
    (
        "chat/stream-usage",
        "usage that does not add up",
        chunk(-1, put("usage", "total_tokens", 1), STREAM),
        ("last",),
    ),
    ("completions/text", "no object", body(without("object")), ("shape",)),
    ("completions/text", "one answer to two prompts", body(lambda a: a["choices"].pop()), ("indexes",)),
    ("completions/text", "a total of its own", body(put("usage", "total_tokens", 1)), ("usage",)),
    ("completions/stream", "named events", events(lambda f: [("chunk", d) for _, d in f]), ("framing",)),
    ("completions/stream", "no [DONE]", events(no_done), ("done",)),
    ("completions/stream", "no object", chunk(0, without("object")), ("shape",)),
    ("completions/stream", "another id", chunk(1, put("id", "cmpl-other")), ("shape",)),
    ("completions/echo", "no object", body(without("object")), ("shape",)),
    ("completions/echo", "no echo", body(put("choices", 0, "text", "!")), ("order",)),
    ("completions/echo", "no logprobs", body(put("choices", 0, "logprobs", None)), ("logprobs",)),
    (
        "completions/echo",
        "a token lost",
        body(without("choices", 0, "logprobs", "tokens", 0)),
        ("logprobs",),
    ),
    (
        "models/list",
        "no owner",
        body(without("data", 0, "owned_by"), "list"),
        ("shape", "retrievable", "every"),
    ),
    ("models/list", "a listed model is unknown", status(404, "listed"), ("retrievable", "envelope")),
    ("models/list", "another object by id", body(put("id", "other"), "listed"), ("retrievable",)),
    ("models/list", "the second one is unknown", status(404, "other/1"), ("every", "envelope")),
    ("models/list", "a slash ends an id", status(404, "other/2"), ("every", "envelope")),
    ("models/list", "the first model by every id", body(put("id", "reference"), "other/1"), ("every",)),
    ("models/list", "any model is known", status(200, "unknown"), ("unknown",)),
    ("models/list", "unknown without a message", body(without("error", "message"), "unknown"), ("envelope",)),
    ("models/list", "another code", body(put("error", "code", "x"), "unknown"), ("unknown",)),
]
BASICS += [
    ("errors/broken-json", "an error without `param`", body(without("error", "param")), ("envelope",)),
    ("errors/broken-json", "status 500", status(500), ("refused",)),
    ("errors/broken-json", "a page", body_bytes(lambda _: b"<html>"), ("refused", "envelope")),
    ("errors/broken-json", "no request id", header("x-request-id", None), ("request-id",)),
    ("errors/invalid-utf8", "taken for right", status(200), ("refused",)),
    ("errors/invalid-utf8", "another envelope", body_bytes(lambda _: DETAIL), ("refused", "envelope")),
    ("errors/unknown-model", "any model will do", status(200), ("not-found",)),
    ("errors/unknown-model", "another code", body(put("error", "code", "x")), ("not-found",)),
    ("errors/empty-messages", "an answer to nothing", status(200), ("refused",)),
    ("errors/out-of-range", "clamped", status(200, "top_p"), ("refused",)),
    ("errors/out-of-range", "status 500", status(500, "presence_penalty"), ("refused",)),
    ("errors/wrong-types", "text read as a number", status(200, "max_tokens"), ("refused",)),
    ("errors/wrong-types", "a number for a code", body(put("error", "code", 400), STREAM), ("envelope",)),
    ("errors/wrong-types", "no `param`", body(put("error", "param", None), STREAM), ("param",)),
    ("errors/stream-options", "ignored", status(200), ("refused",)),
    ("errors/unknown-route", "another envelope", body_bytes(lambda _: DETAIL), ("envelope",)),
    ("errors/unknown-route", "404 for a wrong method", status(404), ("envelope",)),
]


BASICS += [
    ("responses/stream-text", name, mutation, tripped)
    for name, mutation, tripped in [
        ("no object", body(without("object"), WHOLE), ("shape",)),
        ("no echo of parameters", body(without("tools"), WHOLE), ("shape",)),
        ("a total of its own", body(put("usage", "total_tokens", 1), WHOLE), ("usage",)),
        ("a stream as JSON", header("content-type", "application/json"), ("content-type",)),
        ("no names", events(no_name), ("framing",)),
        ("nothing", body_bytes(lambda _: b""), ("framing", "lifecycle", "terminator")),
        ("CRLF", body_bytes(crlf), ("tidy",)),
        ("two [DONE]", events(done_twice), ("done", "terminator")),
        ("no [DONE]", events(no_done), ("terminator",)),
        (
            "a type of its own",
            events(lambda f: [("x", {"type": "x"}), *f]),
            ("event-types", "lifecycle", "sequence"),
        ),
        ("no delta", of_kind("response.output_text.delta", without("delta")), ("event-shapes",)),
        ("no created", events(drop(0)), ("lifecycle",)),
        ("no terminal event", events(drop_kind("response.incomplete")), ("lifecycle",)),
        ("two terminal events", events(lambda f: [*f[:-1], f[-2], f[-1]]), ("lifecycle", "sequence")),
        ("numbers that go back", chunk(3, put("sequence_number", 0)), ("sequence",)),
        ("no numbers", chunk(3, without("sequence_number")), ("sequence", "event-shapes")),
        ("no item before its parts", events(drop_kind("response.output_item.added")), ("nesting", "steps")),
        ("no part before its text", events(drop_kind("response.content_part.added")), ("nesting", "steps")),
        ("a part that stays open", events(drop_kind("response.content_part.done")), ("nesting", "steps")),
        (
            "text of another item",
            of_kind("response.output_text.delta", put("item_id", "msg_other")),
            ("nesting",),
        ),
        (
            "text of another part",
            of_kind("response.output_text.delta", put("content_index", 1)),
            ("nesting", "sums"),
        ),
        ("a delta lost", events(drop(5)), ("sums", "steps")),
        (
            "other words",
            again(
                of_kind("response.incomplete", put("response", "output", 0, "content", 0, "text", "other"))
            ),
            ("same-as-whole", "sums"),
        ),
        ("another text at the end", of_kind("response.output_text.done", put("text", "x")), ("sums",)),
        (
            "another output at the end",
            of_kind("response.incomplete", put("response", "output", [])),
            ("sums",),
        ),
    ]
]

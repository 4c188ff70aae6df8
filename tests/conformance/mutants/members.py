"""Mutants that break one member that a clause names: chat, completions, errors and models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mutants.basic import put
from mutants.mutations import (
    FIRST,
    Event,
    Mutant,
    Mutation,
    again,
    body,
    chunk,
    chunks,
    events,
    header,
    without,
)
from plumbline_conformance.checks.laws import STREAM

__all__ = ["MEMBERS", "Row", "likelier", "missing", "twice", "whole"]

CHOICE = ("choices", 0)
Change = Callable[[Any], object]
Row = tuple[str, Mutation, str]


def whole(*path: Any) -> Mutation:
    return body(put(*path), FIRST)


def missing(*path: Any) -> Mutation:
    return body(without(*path), FIRST)


def in_usage(kind: str, part: str, count: int) -> Change:
    return lambda answer: answer["usage"].update({f"{kind}_tokens_details": {part: count}})


def last_usage(change: Change) -> Mutation:
    return chunks(lambda found: change(found[-1]), STREAM)


def emptied(answer: Any) -> None:
    """Count no token of the prompt."""
    answer["usage"].update(prompt_tokens=0, total_tokens=answer["usage"]["completion_tokens"])


def one_streamed_choice(found: list[Event]) -> list[Event]:
    return [event for event in found if event[1] == "[DONE]" or event[1]["choices"][0]["index"] == 0]


def two_at_once(found: list[Event]) -> list[Event]:
    """Send the last fragment of the first call after the second has begun."""
    places = [
        (place, data["choices"][0]["delta"]["tool_calls"][0]["index"])
        for place, (_, data) in enumerate(found)
        if data != "[DONE]" and data["choices"][0]["delta"].get("tool_calls")
    ]
    moved = max(place for place, index in places if index == 0)
    after = min(place for place, index in places if index == 1)
    kept = [event for place, event in enumerate(found) if place != moved]
    return [*kept[:after], found[moved], *kept[after:]]


def uncalled(found: list[Event]) -> list[Event]:
    """Stream text and the finish reason of a call."""
    kept = [
        event
        for event in found
        if event[1] == "[DONE]" or "tool_calls" not in event[1]["choices"][0]["delta"]
    ]
    kept[0][1]["choices"][0]["delta"]["content"] = "No."
    return kept


def role_of_second(found: list[Any]) -> None:
    one = next(one for data in found for one in data["choices"] if one["index"] == 1)
    del one["delta"]["role"]


def fragment(change: Change) -> Mutation:
    """Change the last fragment of a call."""

    def mutate(found: list[Any]) -> None:
        deltas = [data["choices"][0]["delta"] for data in found]
        change([delta["tool_calls"][0] for delta in deltas if delta.get("tool_calls")][-1])

    return chunks(mutate, STREAM)


def streamed_entries(change: Change) -> Mutation:
    def mutate(found: list[Any]) -> None:
        for data in found:
            for entry in (data["choices"][0]["logprobs"] or {}).get("content") or []:
                change(entry)

    return chunks(mutate, STREAM)


def likelier(entry: Any) -> None:
    if "top_logprobs" in entry:
        entry["logprob"] = 0.5
        entry["top_logprobs"][0]["logprob"] = 0.5


def twice(entry: Any) -> None:
    if "top_logprobs" in entry:
        entry["top_logprobs"][1:] = [dict(entry["top_logprobs"][0])]


MEMBERS_OF: dict[str, list[Row]] = {
    "chat/text": [
        ("the role of a user", whole(*CHOICE, "message", "role", "user"), "shape"),
        ("no content", missing(*CHOICE, "message", "content"), "shape"),
        ("content as a list", whole(*CHOICE, "message", "content", ["Hi"]), "shape"),
        ("a reason of its own", whole(*CHOICE, "finish_reason", "done"), "shape"),
        ("fewer cached than none", body(in_usage("prompt", "cached_tokens", -1)), "usage"),
        ("more thoughts than tokens", body(in_usage("completion", "reasoning_tokens", 99)), "usage"),
        ("a fingerprint that is a number", whole("system_fingerprint", 1), "shape"),
    ],
    "chat/stream-text": [
        ("no object", chunk(1, without("object"), STREAM), "shape"),
        ("text that is a number", chunk(1, put(*CHOICE, "delta", "content", 1), STREAM), "shape"),
        ("no request id of a stream", header("x-request-id", None, STREAM), "request-id"),
    ],
    "chat/stream-usage": [
        ("an empty prompt", last_usage(emptied), "last same-prompt"),
        ("more thoughts than tokens", last_usage(in_usage("completion", "reasoning_tokens", 99)), "last"),
        (
            "choices beside the usage",
            chunk(
                -1,
                put("choices", [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]),
                STREAM,
            ),
            "last sound",
        ),
    ],
    "chat/many": [("no role of the second choice", chunks(role_of_second, "stream/1"), "role-once")],
    "chat/tool-choices": [("one streamed choice of two", events(one_streamed_choice), "stream-called")],
    "chat/tool": [
        (
            "another call in the stream",
            again(fragment(lambda one: one["function"].update(arguments='g"}'))),
            "same-as-whole",
        ),
        ("no index of a delta", fragment(lambda one: one.pop("index")), "chunks id-once type-once index"),
        ("an index as text", fragment(lambda one: one.update(index="0")), "chunks id-once type-once index"),
        ("`tool_calls` without a streamed call", events(uncalled), "stream-finish chunks"),
        (
            "a streamed id of 65 characters",
            chunks(
                lambda found: next(d for d in found if d["choices"][0]["delta"].get("tool_calls"))["choices"][
                    0
                ]["delta"]["tool_calls"][0].update(id="x" * 65),
                STREAM,
            ),
            "stream-ids",
        ),
    ],
    "chat/tools": [("two calls at once", events(two_at_once), "index")],
    "chat/logprobs": [
        ("an entry without bytes", missing(*CHOICE, "logprobs", "content", 0, "bytes"), "shape sound")
    ],
    "chat/logprobs-pair": [
        ("likelier than certain, streamed", streamed_entries(likelier), "stream-count"),
        ("one alternative twice, streamed", streamed_entries(twice), "stream-count"),
    ],
    "completions/text": [
        ("created as text", whole("created", "now"), "shape"),
        ("no text", missing(*CHOICE, "text"), "shape"),
        ("no index", missing(*CHOICE, "index"), "shape"),
        ("no logprobs", missing(*CHOICE, "logprobs"), "shape"),
        ("a reason of its own", whole(*CHOICE, "finish_reason", "done"), "shape"),
    ],
    "completions/stream": [
        ("created as text", chunk(0, put("created", "now"), STREAM), "shape"),
        ("no text in a chunk", chunk(0, without(*CHOICE, "text"), STREAM), "shape"),
        ("a reason of its own", chunk(-1, put(*CHOICE, "finish_reason", "done"), STREAM), "shape"),
    ],
    "completions/logprobs": [
        (
            "no streamed list of offsets",
            chunk(0, without(*CHOICE, "logprobs", "text_offset"), STREAM),
            "stream-shape",
        ),
        (
            "more alternatives than asked for",
            whole(*CHOICE, "logprobs", "top_logprobs", 0, {"O": -0.5, "x": -1.0, "y": -2.0, "z": -3.0}),
            "sampled probable",
        ),
    ],
    "errors/broken-json": [
        ("an error without a message", missing("error", "message"), "envelope"),
        ("an error without a type", missing("error", "type"), "envelope"),
        ("a list for a message", whole("error", "message", ["no"]), "envelope"),
    ],
    "models/list": [
        ("no list", whole("object", "models"), "shape"),
        ("a time with a fraction", whole("data", 0, "created", 0.5), "shape"),
        ("another object", whole("data", 0, "object", "engine"), "shape retrievable every"),
    ],
}
"""By scenario: what the server does, the change, last segments of the checks that detect it."""
MEMBERS: list[Mutant] = [
    (scenario, name, mutation, tuple(slugs.split()))
    for scenario, rows in MEMBERS_OF.items()
    for name, mutation, slugs in rows
]

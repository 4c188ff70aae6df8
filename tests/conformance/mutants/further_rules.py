"""Mutants that break a rule other than the first of a check; problems have to name only that rule."""

from __future__ import annotations

import json
from typing import Any

from mutants.basic import done_twice, put
from mutants.mutations import (
    Event,
    Mutant,
    Mutation,
    body,
    body_bytes,
    chunk,
    chunks,
    each,
    events,
    header,
    status,
    with_body,
    without,
)
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["FURTHER_RULES"]

CHAT = "chat/logprobs-pair"
LIMITS = "responses/limits"
WIRES = ("chat/tool", "responses/tool")


def early_output(found: list[Any]) -> None:
    """Copy fields of the last snapshot into the first."""
    found[0]["response"]["output"] = found[-1]["response"]["output"]


def failing(found: list[Event]) -> list[Event]:
    """End the stream with an error."""
    error = {"message": "it broke", "type": "server_error", "param": None, "code": None}
    return [*found[:2], (None, {"error": error})]


def both_echoes(answer: Any) -> None:
    """Exchange the prompts of the choices."""
    first, second = answer["choices"]
    first["text"], second["text"] = second["text"], first["text"]
    first["logprobs"], second["logprobs"] = second["logprobs"], first["logprobs"]


def no_prompt_tokens(answer: Any) -> None:
    """Reduce the lists to the tokens of the answer."""
    for choice in answer["choices"]:
        lists = choice["logprobs"]
        kept = len(lists["tokens"]) - 1
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            lists[name] = lists[name][-kept:]


def shorter(exchange: Exchange) -> Exchange:
    """End the stream without any text."""
    kept = [event for event in exchange.events if event.data == "[DONE]" or not _has_content(event.json)]
    answer = "".join(
        f"data: {event.data if event.data == '[DONE]' else json.dumps(event.json)}\n\n" for event in kept
    )
    return with_body(exchange, answer.encode())


def _has_content(data: Any) -> bool:
    return any(choice["delta"].get("content") for choice in data["choices"])


def _wire(slug: str) -> list[tuple[str, Mutation, tuple[str, ...]]]:
    return [
        ("law of wire: a stream as JSON", header("content-type", "application/json", STREAM), ("wire",)),
        ("law of wire: two [DONE]", events(done_twice, STREAM), ("wire",)),
        ("law of wire: an event without data", body_bytes(lambda b: b"event: e\n\n" + b, STREAM), ("wire",)),
        ("law of wire: no blank line at the end", body_bytes(lambda b: b[:-1], STREAM), ("wire",)),
    ]


FURTHER_RULES: list[Mutant] = [
    ("chat/text", "a crash", status(500), ("shape",)),
    ("chat/tool", "an error within the stream", events(failing, STREAM), ("wire",)),
    (CHAT, "no role", body(without("choices", 0, "message", "role"), WHOLE), ("shape",)),
    (CHAT, "no reason", body(without("choices", 0, "finish_reason"), WHOLE), ("shape",)),
    (CHAT, "no model", body(without("model"), WHOLE), ("shape",)),
    (
        CHAT,
        "logprobs without `refusal`",
        body(without("choices", 0, "logprobs", "refusal"), WHOLE),
        ("shape",),
    ),
    (CHAT, "a chunk without a model", chunk(1, without("model"), STREAM), ("chunks",)),
    (CHAT, "no reason in a chunk", chunk(1, without("choices", 0, "finish_reason"), STREAM), ("chunks",)),
    (
        CHAT,
        "streamed logprobs without `refusal`",
        chunk(1, without("choices", 0, "logprobs", "refusal"), STREAM),
        ("chunks",),
    ),
    (CHAT, "half a usage in a chunk", chunk(1, put("usage", {}), STREAM), ("chunks",)),
    (LIMITS, "no tools", body(without("tools"), WHOLE), ("shape",)),
    (LIMITS, "an item of no state", body(put("output", 0, "status", "odd"), WHOLE), ("shape", "last-item")),
    (LIMITS, "an early response that is full", chunks(early_output, STREAM), ("snapshots",)),
    (LIMITS, "another limit echoed", body(put("max_output_tokens", 17), WHOLE), ("echo", "state")),
    *((slug, *row) for slug in WIRES for row in _wire(slug)),
    (
        "completions/stream",
        "no reason in a chunk",
        chunk(1, without("choices", 0, "finish_reason"), STREAM),
        ("shape",),
    ),
    ("completions/echo", "the prompts of each other", body(both_echoes, WHOLE), ("order",)),
    ("completions/echo", "lists without the prompt", body(no_prompt_tokens, WHOLE), ("logprobs",)),
    ("chat/stop", "nothing streamed before the stop string", each(STREAM, shorter), ("stream-prefix",)),
    (
        "chat/stop-limit",
        "`length` for a stop string",
        body(put("choices", 0, "finish_reason", "length"), WHOLE),
        ("reason",),
    ),
    (
        "chat/stop-limit",
        "a streamed `length`",
        chunk(-1, put("choices", 0, "finish_reason", "length"), STREAM),
        ("reason",),
    ),
    (
        "responses/reasoning",
        "more thoughts than tokens",
        body(put("usage", "output_tokens_details", "reasoning_tokens", 10**6), WHOLE),
        ("counted", "usage"),
    ),
    ("errors/responses-bounds", "metadata without a bound", status(200, "metadata"), ("refused",)),
    ("errors/hostile", "an answer to a list", status(200, "list"), ("refused", "sound")),
    (
        "errors/hostile",
        "an answer to a number without end",
        status(200, "huge_temperature"),
        ("refused", "sound"),
    ),
    ("errors/hostile", "an answer to half of an object", status(200, "deep_object"), ("refused", "sound")),
]

"""Mutants of laws that many scenarios share, one per law and scenario."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from mutants.basic import drop, no_done, no_name, put, swap
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
    status,
    without,
)
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS
from plumbline_conformance.transcript.answer_fold import is_stream
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["LAWS"]

PLACES = {"chat/stop": (WHOLE, STREAM, -1), "chat/many": ("three", f"{STREAM}/1", -2)}
"""The requests without and with `stream`, and the index of the last chunk of the stream with a choice."""
ALOUD = {"role": "assistant", "content": "", "reasoning_content": "b"}
TRACE = 'Traceback (most recent call last): File "/srv/app.py", line 3'


def thought(answer: Any) -> None:
    """Append an empty item."""
    answer["output"].insert(0, {"type": "reasoning", "id": "rs_other", "summary": []})


def thinking_aloud(found: list[Any]) -> None:
    """Add a second field to the first non-empty delta."""
    deltas = [choice["delta"] for data in found for choice in data["choices"]]
    delta = next((d for d in deltas if d.get("content") or d.get("tool_calls")), None)
    if delta is None:
        delta = next(d for d in deltas if d.get("reasoning_content"))
        delta["content"] = "b"
    else:
        delta["reasoning_content"] = "b"


def unknown_event(found: list[Event]) -> list[Event]:
    """Append an event with the next sequence number and an unknown type."""
    found.insert(-2, ("response.odd", {"type": "response.odd", "sequence_number": 0}))
    for number, (_, event) in enumerate(found[:-1]):
        event["sequence_number"] = number
    return found


def chat_laws(slug: str) -> list[tuple[str, Mutation, str]]:
    whole, stream, final = PLACES.get(slug, (WHOLE, STREAM, -1))
    # With several choices, the last event before the finish of one belongs to another.
    other = -4 if slug in ("chat/tool-choices", "chat/json-choices") else final - 2
    end = drop(final - 1) if slug == "chat/many" else swap(final - 1, other)
    return [
        ("no object", body(without("object"), whole), "shape"),
        ("a total of its own", body(put("usage", "total_tokens", 1), whole), "usage"),
        ("no [DONE]", events(no_done, stream), "wire"),
        ("another id at the end", chunk(final, put("id", "chatcmpl-other"), stream), "chunks"),
        (
            "the role at the end",
            chunk(final, put("choices", 0, "delta", {"role": "assistant"}), stream),
            "role-once",
        ),
        ("more after the finish", events(end, stream), "finish-once"),
        ("two things in one delta", chunks(thinking_aloud, stream), "one-channel"),
        ("more in the stream", again(chunk(0, put("choices", 0, "delta", ALOUD), stream)), "same-as-whole"),
    ]


def response_laws() -> list[tuple[str, Mutation, str]]:
    return [
        ("no object", body(without("object"), WHOLE), "shape"),
        ("a total of its own", body(put("usage", "total_tokens", 1), WHOLE), "usage"),
        ("events without names", events(no_name), "wire"),
        ("an early response without an object", chunk(0, without("response", "object")), "event-shapes"),
        ("an event of its own", events(unknown_event), "event-types"),
        ("no response.created", events(drop(0)), "lifecycle"),
        ("an item in another place", chunk(2, put("output_index", 5)), "nesting"),
        ("another item at the end", chunk(-1, put("response", "output", -1, "more", 1)), "sums"),
        ("another model meanwhile", chunk(1, put("response", "model", "other")), "snapshots"),
        (
            "an error beside the end",
            body(put("error", {"code": "server_error", "message": "m"}), WHOLE),
            "state",
        ),
        ("more items in one piece", again(body(thought, WHOLE)), "same-as-whole"),
    ]


def refusal_laws() -> list[tuple[str, Mutation, str]]:
    return [
        ("served", status(200, FIRST), "refused"),
        ("an error without `code`", body(without("error", "code"), FIRST), "envelope"),
        ("another field blamed", body(put("error", "param", "other"), FIRST), "param"),
        ("a stack trace", body(put("error", "message", TRACE), FIRST), "no-leak"),
        ("a line of the source", body(put("error", "message", TRACE.partition(": ")[2]), FIRST), "no-leak"),
    ]


def soundness_laws(slug: str) -> list[tuple[str, Mutation, str]]:
    """Break an answer of a scenario that looks at something else."""
    if slug.startswith("messages/"):
        return [("a message without a role", unsound(without("role")), "sound")]
    if slug == "chat/stream-choices":
        again = put("choices", 0, "delta", "role", "assistant")
        return [("the role in the finish", chunk(-1, again), "sound")]
    if slug == "responses/stream-text":
        return [("another model in a snapshot", chunk(1, put("response", "model", "other")), "sound")]
    if "stream" in slug and slug not in ("chat/stream-text", "chat/stream-usage"):
        return [("a stream without an object", unsound(without("object")), "sound")]
    if f"{slug}/shape" in CHECKS:
        return [("a total that is no sum", unsound(put("usage", "total_tokens", 1)), "sound")]
    return [("an answer without an object", unsound(without("object")), "sound")]


def refused_bare() -> Mutation:
    """Leave a key out of the error object."""

    def mutate(seen: Transcript) -> Transcript:
        refusal = next(one for one in seen.exchanges if 400 <= one.status < 500)
        return body(without("error", "param"), refusal.name)(seen)

    return mutate


_OBJECTS = {"response": ("response", "object"), "message": ("message", "role")}
"""The member that `unsound` removes, by the member that contains the answer in a first event."""


def unsound(change: Callable[[Any], object]) -> Mutation:
    """Change the last answer of the scenario's API; of a stream a member of its first event."""

    def mutate(seen: Transcript) -> Transcript:
        answered = [one for one in seen.exchanges if one.method == "POST" and one.status == 200]
        end = f"/{seen.scenario.partition('/')[0]}".replace("/chat", "/chat/completions")
        own = [one for one in reversed(answered) if one.url.endswith(end)]
        chosen = min(own, key=is_stream)  # A whole answer, if there is one.
        if is_stream(chosen):
            path = next((path for name, path in _OBJECTS.items() if name in chosen.chunks[0]), ("object",))
            return chunk(0, without(*path), chosen.name)(seen)
        return body(change, chosen.name)(seen)

    return mutate


ENVELOPED = (
    "errors/broken-json",
    "errors/wrong-types",
    "errors/hostile",
    "errors/unknown-response",
    "errors/unknown-route",
)
"""Scenarios with mutants of their own for the error object."""


def _laws(slug: str) -> list[tuple[str, Mutation, str]]:
    if f"{slug}/no-leak" in CHECKS:
        return refusal_laws()
    if slug.startswith("errors/") and f"{slug}/envelope" in CHECKS and slug not in ENVELOPED:
        return [("an error without `param`", refused_bare(), "envelope")]
    if slug.startswith("errors/"):
        return []
    if f"{slug}/sound" in CHECKS:
        return soundness_laws(slug) + (chat_laws(slug) if slug in PLACES else [])
    if f"{slug}/wire" not in CHECKS or slug.startswith("messages/"):
        return []  # `mutants/messages.py` has those of `messages/text`.
    return chat_laws(slug) if slug.startswith("chat/") else response_laws()


REPEATED = {"responses/reasoning-round": ("sound",)}
"""Scenarios with a second check of the shape."""
SHAPES: list[Mutant] = [
    (slug, "no object", body(without("object"), FIRST), ("shape", *REPEATED.get(slug, ())))
    for slug in SCENARIOS
    if f"{slug}/shape" in CHECKS and slug.endswith(("-round", "/inputs", "/count", "/branches"))
]
REASONED = {("chat/json-reasoning-off", law): ("stream-none",) for law in ("one-channel", "same-as-whole")}
"""Further checks that see the reasoning which a mutant adds."""
LAWS: list[Mutant] = [
    (slug, f"law of {law}: {name}", mutation, (law, *REASONED.get((slug, law), ())))
    for slug in SCENARIOS
    for name, mutation, law in _laws(slug)
    if f"{slug}/{law}" in CHECKS
]
LAWS += SHAPES

"""Change a member of a chat completion, whole or streamed: the message, its calls, its text, its finish reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mutants.basic import put
from mutants.mutations import Mutation, body, chunks
from plumbline_conformance.checks.laws import STREAM, WHOLE

__all__ = ["STREAM", "WHOLE", "Change", "calls", "message", "pieces", "reason", "streamed", "text"]

Change = Callable[[Any], object]


def message(change: Change, request: str = WHOLE) -> Mutation:
    return body(lambda answer: change(answer["choices"][0]["message"]), request)


def calls(change: Change, request: str = WHOLE) -> Mutation:
    return message(lambda answer: change(answer["tool_calls"]), request)


def pieces(change: Change, request: str = STREAM) -> Mutation:
    """Change the list of all fragments of calls in place."""

    def mutate(found: list[Any]) -> None:
        deltas = [choice["delta"] for data in found for choice in data["choices"]]
        change([piece for delta in deltas for piece in delta.get("tool_calls") or []])

    return chunks(mutate, request)


def reason(value: str, request: str = WHOLE) -> Mutation:
    if request == WHOLE:
        return body(put("choices", 0, "finish_reason", value), request)
    return chunks(lambda found: put(-1, "choices", 0, "finish_reason", value)(found), request)


def text(value: str, request: str = WHOLE) -> Mutation:
    """Replace the streamed content by this text, in one delta."""
    if request == WHOLE:
        return message(put("content", value), request)
    return streamed(value, request)


def streamed(value: str, request: str) -> Mutation:
    def mutate(found: list[Any]) -> None:
        deltas = [choice["delta"] for data in found for choice in data["choices"]]
        answer = [delta for delta in deltas if delta.get("content")] or [deltas[-1]]
        for place, delta in enumerate(answer):
            delta["content"] = "" if place else value

    return chunks(mutate, request)

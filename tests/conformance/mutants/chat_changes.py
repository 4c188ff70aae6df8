"""Change a member of a chat completion, whole or streamed: the message, its calls, its text, its finish reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mutants.basic import put
from mutants.mutations import Mutation, body, chunks

__all__ = ["STREAM", "WHOLE", "Change", "calls", "message", "pieces", "reason", "streamed", "text"]

WHOLE, STREAM = 0, 1
Change = Callable[[Any], object]


def message(change: Change, index: int = WHOLE) -> Mutation:
    return body(lambda answer: change(answer["choices"][0]["message"]), index)


def calls(change: Change, index: int = WHOLE) -> Mutation:
    return message(lambda answer: change(answer["tool_calls"]), index)


def pieces(change: Change, index: int = STREAM) -> Mutation:
    """Change the list of all fragments of calls in place."""

    def mutate(found: list[Any]) -> None:
        deltas = [choice["delta"] for data in found for choice in data["choices"]]
        change([piece for delta in deltas for piece in delta.get("tool_calls") or []])

    return chunks(mutate, index)


def reason(value: str, index: int = WHOLE) -> Mutation:
    if index == WHOLE:
        return body(put("choices", 0, "finish_reason", value), index)
    return chunks(lambda found: put(-1, "choices", 0, "finish_reason", value)(found), index)


def text(value: str, index: int = WHOLE) -> Mutation:
    """Replace the streamed content by this text, in one delta."""
    if index == WHOLE:
        return message(put("content", value), index)
    return streamed(value, index)


def streamed(value: str, index: int) -> Mutation:
    def mutate(found: list[Any]) -> None:
        deltas = [choice["delta"] for data in found for choice in data["choices"]]
        answer = [delta for delta in deltas if delta.get("content")] or [deltas[-1]]
        for place, delta in enumerate(answer):
            delta["content"] = "" if place else value

    return chunks(mutate, index)

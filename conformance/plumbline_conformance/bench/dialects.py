"""Build the request of each API, and read text, usage and the end of an answer from its stream events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

__all__ = ["APIS", "Api", "ReportedUsage"]


class ReportedUsage(msgspec.Struct, frozen=True):
    """Tokens as the server counts them; None where an event does not say."""

    prompt: int | None = None
    output: int | None = None


class Api(msgspec.Struct, frozen=True):
    """One API of streams."""

    path: str
    body: Callable[[Any, int], dict[str, Any]]
    """Makes the body from a prompt, which is a text or a list of messages, and the most tokens of its answer."""
    is_piece: Callable[[dict[str, Any]], bool]
    """Whether an event carries a part of the answer: text, reasoning or a call."""
    usage: Callable[[dict[str, Any]], ReportedUsage | None]
    is_end: Callable[[dict[str, Any]], bool]
    """Whether the answer is complete with this event; chat and completions end with `[DONE]`."""


_MOST_TOKENS = 2**40
_PIECES = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")


def _messages(prompt: Any) -> Any:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _chat(prompt: Any, tokens: int) -> dict[str, Any]:
    return {
        "messages": _messages(prompt),
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _completion(prompt: Any, tokens: int) -> dict[str, Any]:
    if not isinstance(prompt, str):
        prompt = "\n\n".join(_text(message) for message in prompt)
    return {
        "prompt": prompt,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _text(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str) else ""


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _chat_piece(event: dict[str, Any]) -> bool:
    deltas = [choice.get("delta") for choice in _dicts(event.get("choices"))]
    return any(delta.get(name) for delta in deltas if isinstance(delta, dict) for name in _PIECES)


def _counts(found: Any, prompt: str, output: str) -> ReportedUsage | None:
    if not isinstance(found, dict):
        return None
    counts = (found.get(prompt), found.get(output))
    # JSON has integers of any length, and no rate can be a float then.
    return ReportedUsage(
        *(value if type(value) is int and 0 <= value < _MOST_TOKENS else None for value in counts)
    )


def _chat_usage(event: dict[str, Any]) -> ReportedUsage | None:
    return _counts(event.get("usage"), "prompt_tokens", "completion_tokens")


def _part(event: dict[str, Any], name: str) -> Any:
    found = event.get(name)
    return found.get("usage") if isinstance(found, dict) else None


_ENDS = ("response.completed", "response.incomplete")
_SUMMARY = "response.reasoning_summary_text.delta"
"""Repeats reasoning that came as such, or sums it up."""


def _messages_usage(event: dict[str, Any]) -> ReportedUsage | None:
    return _counts(_part(event, "message") or event.get("usage"), "input_tokens", "output_tokens")


APIS: Mapping[str, Api] = MappingProxyType(
    {
        "chat": Api("/chat/completions", _chat, _chat_piece, _chat_usage, lambda event: False),
        "completions": Api(
            "/completions",
            _completion,
            lambda event: any(choice.get("text") for choice in _dicts(event.get("choices"))),
            _chat_usage,
            lambda event: False,
        ),
        "responses": Api(
            "/responses",
            lambda prompt, tokens: {
                "input": prompt,
                "max_output_tokens": tokens,
                "stream": True,
                "store": False,
            },
            lambda event: str(event.get("type")).endswith(".delta") and event["type"] != _SUMMARY,
            lambda event: _counts(_part(event, "response"), "input_tokens", "output_tokens"),
            lambda event: event.get("type") in _ENDS,
        ),
        "messages": Api(
            "/messages",
            lambda prompt, tokens: {"messages": _messages(prompt), "max_tokens": tokens, "stream": True},
            lambda event: event.get("type") == "content_block_delta",
            _messages_usage,
            lambda event: event.get("type") == "message_stop",
        ),
    }
)

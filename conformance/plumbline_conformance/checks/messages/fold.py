"""Read the message of an answer, whole or streamed."""

from __future__ import annotations

from typing import Any

from plumbline_conformance.suite.scenario import Inconclusive
from plumbline_conformance.transcript.answer_fold import is_stream, objects_in
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.transcript.sse import load_json

__all__ = [
    "PROMPT",
    "blocks_of",
    "content_of",
    "events_of",
    "is_new",
    "message_of",
    "prompt_tokens",
    "text_of",
    "usage_of",
]

Json = dict[str, Any]
PROMPT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
"""The counts that add up to the prompt (MSG-10)."""
KINDS = frozenset(
    {
        "content_block_delta",
        "content_block_start",
        "content_block_stop",
        "error",
        "message_delta",
        "message_start",
        "message_stop",
        "ping",
    }
)
"""The types of events that clients read."""
_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""The member of each delta, which is also the member of the block that it extends."""


def events_of(exchange: Exchange) -> list[tuple[int, Json]]:
    """Return the events of a stream with their numbers, without pings, `[DONE]` and events of new types."""
    found = enumerate(exchange.chunks)
    return [
        (number, event)
        for number, event in found
        if isinstance(event, dict) and event.get("type") != "ping" and not is_new(event)
    ]


def is_new(event: Json) -> bool:
    """Return whether clients ignore an event: the API may get further types at any time."""
    kind = event.get("type")
    return isinstance(kind, str) and bool(kind) and kind not in KINDS


def message_of(exchange: Exchange) -> Json:
    """Return the message of an answer; a stream is folded, as far as its events allow.

    Raises:
        Inconclusive: the answer is not an object, or the stream has no message.
    """
    found = _folded(exchange) if is_stream(exchange) else exchange.json
    if not isinstance(found, dict) or not found:
        raise Inconclusive("the answer has no message; another check reports this")
    return found


def _folded(exchange: Exchange) -> Json:
    message: Json = {}
    blocks: list[Json] = []
    inputs: dict[int, str] = {}
    for _, event in events_of(exchange):
        match event:
            case {"type": "message_start", "message": dict(start)}:
                message = {**start}
            case {"type": "content_block_start", "content_block": dict(block)}:
                blocks.append({**block})
            case {"type": "content_block_delta", "delta": dict(delta)} if blocks:
                if delta.get("type") == "input_json_delta":
                    place = len(blocks) - 1
                    inputs[place] = inputs.get(place, "") + str(delta.get("partial_json"))
                elif (name := _TEXTS.get(str(delta.get("type")))) is not None:
                    blocks[-1][name] = f"{blocks[-1].get(name) or ''}{delta.get(name)}"
            case {"type": "message_delta", "delta": dict(end)}:
                message |= {**end, "usage": _counts(message.get("usage"), event.get("usage"))}
    for place, text in inputs.items():
        blocks[place]["input"] = load_json(text.encode())
    return {**message, "content": blocks} if message else {}


def _counts(start: Any, end: Any) -> Any:
    """Return the counts at the end of a stream; one that is absent or null is that of the start."""
    if not isinstance(start, dict) or not isinstance(end, dict):
        return end
    return {**start, **{name: count for name, count in end.items() if count is not None}}


def blocks_of(exchange: Exchange, kind: str) -> list[Json]:
    """Return the blocks of an answer that have this type."""
    return [block for block in objects_in(message_of(exchange).get("content")) if block.get("type") == kind]


def content_of(exchange: Exchange) -> list[tuple[object, ...]]:
    """Return the content of an answer without ids and signatures, which differ between equal answers.

    Neighbouring texts count as one: a text may come in several blocks.
    """
    names = ("type", "text", "thinking", "name", "input")
    found: list[tuple[object, ...]] = []
    for block in objects_in(message_of(exchange).get("content")):
        one = tuple(block.get(name) for name in names)
        if found and one[0] == found[-1][0] == "text":
            one = ("text", f"{found.pop()[1]}{one[1]}", *one[2:])
        found.append(one)
    return found


def text_of(exchange: Exchange) -> str:
    """Return the text of an answer.

    Raises:
        Inconclusive: the answer has no text.
    """
    text = "".join(str(block.get("text")) for block in blocks_of(exchange, "text"))
    if not text:
        raise Inconclusive("the answer has no text")
    return text


def usage_of(exchange: Exchange) -> Json:
    """Return the usage of an answer.

    Raises:
        Inconclusive: the counts are missing or are not numbers.
    """
    found = message_of(exchange).get("usage")
    needed = ("input_tokens", "output_tokens")
    if not isinstance(found, dict) or not all(isinstance(found.get(name), int) for name in needed):
        raise Inconclusive("the answer has no counts; another check reports this")
    return found


def prompt_tokens(exchange: Exchange) -> int:
    """Return the tokens of the prompt: the sum of the three counts of the input (MSG-10)."""
    found = usage_of(exchange)
    return sum(found[name] for name in PROMPT if isinstance(found.get(name), int))

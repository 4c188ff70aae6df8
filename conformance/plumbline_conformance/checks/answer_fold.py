"""Chat answers read for what they say, whole or streamed, into one form that both have in common.

Reading is lenient: what is not of the documented shape is left out, because the check of the shape says so. A stream
and a whole answer that say the same are folded into equal values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from plumbline_conformance.checks.capabilities import REASONING_KEYS
from plumbline_conformance.checks.common import accepted, at
from plumbline_conformance.suite.model import Inconclusive, Untestable
from plumbline_conformance.transcript.model import Exchange, Transcript
from plumbline_conformance.transcript.sse import load_json

__all__ = [
    "Called",
    "Choice",
    "called",
    "choice",
    "choices",
    "chunks",
    "deltas",
    "finished",
    "is_stream",
    "parsed",
    "stream_of",
    "whole_of",
]


class Called(msgspec.Struct):
    """One call of a tool, with nothing that may differ between two answers that say the same."""

    name: str = ""
    arguments: str = ""
    """Or the input of a custom tool."""
    custom: bool = False


class Choice(msgspec.Struct):
    """What one choice says."""

    content: str = ""
    reasoning: str = ""
    calls: list[Called] = msgspec.field(default_factory=list)
    reason: Any = None


def is_stream(exchange: Exchange) -> bool:
    """Whether a stream was asked for."""
    body = load_json(exchange.request_body)
    return isinstance(body, dict) and body.get("stream") is True


def whole_of(seen: Transcript) -> Exchange:
    """The whole answer of a scenario that asks for one answer in both forms."""
    return accepted(at(seen, 0))


def stream_of(seen: Transcript) -> Exchange:
    """The streamed answer of such a scenario."""
    return accepted(at(seen, 1))


def chunks(exchange: Exchange) -> list[dict[str, Any]]:
    """The chunks of a stream that are objects."""
    return [chunk for chunk in accepted(exchange).chunks if isinstance(chunk, dict)]


def deltas(exchange: Exchange) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Of every choice of every chunk: the number of the chunk, the choice and its delta."""
    for number, chunk in enumerate(chunks(exchange)):
        for one in _dicts(chunk.get("choices")):
            delta = one.get("delta")
            yield number, one, delta if isinstance(delta, dict) else {}


def choices(exchange: Exchange) -> list[Choice]:
    """What the choices of an answer say, in the order of their index."""
    return _folded(exchange) if is_stream(exchange) else _whole(exchange)


def choice(exchange: Exchange) -> Choice:
    """The first of them, and there has to be one."""
    found = choices(exchange)
    if not found:
        raise Inconclusive("there is no choice; another check says so")
    return found[0]


def _whole(exchange: Exchange) -> list[Choice]:
    body = accepted(exchange).json
    found = _dicts(body.get("choices")) if isinstance(body, dict) else []
    read: list[Choice] = []
    for one in sorted(found, key=_index):
        held = one.get("message")
        message = held if isinstance(held, dict) else {}
        calls = [_call(call) for call in _dicts(message.get("tool_calls"))]
        read.append(
            Choice(
                content=_text(message.get("content")),
                reasoning=_reasoning(message),
                calls=calls,
                reason=one.get("finish_reason"),
            )
        )
    return read


def _folded(exchange: Exchange) -> list[Choice]:
    read: dict[int, Choice] = {}
    calls: dict[tuple[int, int], Called] = {}
    for _, one, delta in deltas(exchange):
        place = _index(one)
        said = read.setdefault(place, Choice())
        said.content += _text(delta.get("content"))
        said.reasoning += _reasoning(delta)
        said.reason = one["finish_reason"] if one.get("finish_reason") is not None else said.reason
        for piece in _dicts(delta.get("tool_calls")):
            part = _call(piece)
            if (place, _index(piece)) not in calls:
                calls[place, _index(piece)] = Called()
                said.calls.append(calls[place, _index(piece)])
            call = calls[place, _index(piece)]
            call.name += part.name
            call.arguments += part.arguments
            call.custom = call.custom or part.custom
    return [found for _, found in sorted(read.items())]


def _call(call: dict[str, Any]) -> Called:
    function, custom = call.get("function"), call.get("custom")
    if isinstance(custom, dict):
        return Called(_text(custom.get("name")), _text(custom.get("input")), custom=True)
    held = function if isinstance(function, dict) else {}
    return Called(_text(held.get("name")), _text(held.get("arguments")))


def _reasoning(message: dict[str, Any]) -> str:
    """Servers that rename the key write both for a while."""
    return next((_text(message[key]) for key in REASONING_KEYS if message.get(key)), "")


def _index(value: dict[str, Any]) -> int:
    index = value.get("index")
    return index if isinstance(index, int) else 0


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def finished(found: Choice) -> Choice:
    """Go on only with an answer that was not cut: half a document proves nothing."""
    if found.reason == "length":
        raise Inconclusive("the token limit cut the answer")
    return found


def called(exchange: Exchange, *, forced: bool = False) -> list[Called]:
    """The calls of the first choice. A model is free not to call, unless the request forces it to."""
    found = finished(choice(exchange))
    if not found.calls:
        if forced:
            raise Untestable("a call was forced, and none was made")
        raise Inconclusive("the model called no tool")
    return found.calls


def parsed(text: str) -> Any:
    """The one JSON document that a text is, or None."""
    return load_json(text)

"""Make the vectors of streams of Messages, and broken ones with their rules; see `streams.py`."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

__all__ = ["cases"]

Event = dict[str, Any]
Case = dict[str, Any]
_USAGE = {
    "input_tokens": 9,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 4,
}
_TOOL = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
_REQUEST = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
_WITH_TOOLS = {**_REQUEST, "tools": [_TOOL]}
_PARIS = ['{"ci', 'ty": "Pa', 'ris"}']


def _events(blocks: list[tuple[str, list[str]]], reason: str = "end_turn") -> list[Event]:
    """Return the events of a message; each block is its type and the pieces of its text or of its input."""
    start: dict[str, Any] = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {**_USAGE, "output_tokens": 0},
    }  # fmt: skip
    written: list[Event] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, (kind, pieces) in enumerate(blocks):
        call = {"type": "tool_use", "id": f"toolu_{index}", "name": "get_weather", "input": {}}
        empty = {"type": "text", "text": ""} if kind == "text" else call
        written.append({"type": "content_block_start", "index": index, "content_block": empty})
        for piece in pieces:
            text = {"type": "text_delta", "text": piece}
            delta = text if kind == "text" else {"type": "input_json_delta", "partial_json": piece}
            written.append({"type": "content_block_delta", "index": index, "delta": delta})
        written.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": reason, "stop_sequence": None}
    return [*written, {"type": "message_delta", "delta": ending, "usage": _USAGE}, {"type": "message_stop"}]


def _sse(events: list[Event], *, named: bool = True) -> str:
    return "".join(
        (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        for event in events
    )


def cases() -> Iterator[Case]:
    """Yield the cases, correct ones first."""
    yield from _right()
    yield from _wrong()


def _right() -> Iterator[Case]:
    def right(title: str, blocks: list[tuple[str, list[str]]], reason: str = "end_turn", **more: Any) -> Case:
        text = "".join("".join(pieces) for kind, pieces in blocks if kind == "text")
        calls = [
            {"id": f"toolu_{place}", "name": "get_weather", "input": json.loads("".join(pieces))}
            for place, (kind, pieces) in enumerate(blocks)
            if kind != "text"
        ]
        folded = {"content": text, "calls": calls, "stop_reason": reason, "usage": _USAGE}
        request = {**(_WITH_TOOLS if calls else _REQUEST), **more}
        return {"title": title, "request": request, "stream": _sse(_events(blocks, reason)), "folded": folded}

    yield right("text", [("text", ["It", " is", " 4."])])
    yield right("several bytes a character", [("text", ["Grü", "ße 東", "京 🎉"])])
    yield right("line feeds and quotes", [("text", ['a\n"b"', "\u2028c\\d"])])
    yield right("cut by the limit", [("text", ["It is"])], "max_tokens", max_tokens=4)
    yield right("a call", [("tool_use", _PARIS)], "tool_use")
    yield right("text and a call", [("text", ["Look."]), ("tool_use", _PARIS)], "tool_use")
    yield right("two calls", [("tool_use", _PARIS), ("tool_use", ["".join(_PARIS)])], "tool_use")
    yield right("a call character by character", [("tool_use", list("".join(_PARIS)))], "tool_use")
    pings = right("pings between events", [("text", ["It", " is", " 4."])])
    ping = 'event: ping\ndata: {"type": "ping"}\n\n'
    pings["stream"] = pings["stream"].replace(
        "event: content_block_delta", f"{ping}event: content_block_delta"
    )
    yield pings


def _wrong() -> Iterator[Case]:
    def wrong(title: str, stream: str, *rules: str, **more: Any) -> Case:
        return {"title": title, "request": {**_REQUEST, **more}, "stream": stream, "broken": sorted(rules)}

    def changed(place: int, **members: Any) -> list[Event]:
        found = copy.deepcopy(plain)
        found[place].update(members)
        return found

    plain = _events([("text", ["It", " is", " 4."])])
    call = _events([("tool_use", _PARIS)], "tool_use")
    yield wrong("events without names", _sse(plain, named=False), "MSG-07")
    yield wrong("[DONE] at the end", _sse(plain) + "data: [DONE]\n\n", "MSG-07")
    yield wrong("no message_start", _sse(plain[1:]), "MSG-01", "MSG-07")
    yield wrong("no message_stop", _sse(plain[:-1]), "MSG-07")
    yield wrong("no reason", _sse([*plain[:-2], plain[-1]]), "MSG-01", "MSG-07", "MSG-09", "MSG-10")
    yield wrong("a block that does not end", _sse([*plain[:6], *plain[7:]]), "MSG-08")
    yield wrong("a block that does not begin", _sse([*plain[:2], *plain[3:]]), "MSG-08")
    yield wrong("another index", _sse(changed(4, index=1)), "MSG-08")
    # Events of an unknown type are ignored, so a type that is not the event's is the fault.
    unlike = _sse(plain).replace("event: content_block_delta", "event: content_delta", 1)
    yield wrong("an event of another name", unlike, "MSG-07")
    yield wrong("input that is not JSON", _sse([*call[:-4], *call[-3:]]), "MSG-01", "MSG-08", tools=[_TOOL])
    yield wrong(
        "a call and another reason",
        _sse(
            [*call[:-2], {**call[-2], "delta": {"stop_reason": "end_turn", "stop_sequence": None}}, call[-1]]
        ),
        "MSG-09",
        tools=[_TOOL],
    )
    yield wrong(
        "a call of an unknown tool",
        _sse(call).replace("get_weather", "remove_all"),
        "MSG-04",
        "TOOL-02",
        tools=[_TOOL],
        tool_choice={"type": "any"},
    )

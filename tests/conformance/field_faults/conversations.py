"""Faults that threads of public trackers describe: of Messages, Responses, their state and WebSockets."""

from __future__ import annotations

import json
from typing import Any

from mutants.mutations import changed, with_body

from field_faults.changes import Event, Json, Row, streamed, whole, with_events

__all__ = ["CONVERSATIONS", "frames_changed", "lists_changed"]


def _kind(event: Event) -> str:
    return str(event[1].get("type", "")) if isinstance(event[1], dict) else ""


def _stopped_twice(events: list[Event], _: Json) -> list[Event]:
    tools = {
        data["index"]
        for _name, data in events
        if data["type"] == "content_block_start" and data["content_block"]["type"] == "tool_use"
    }
    return [
        one
        for event in events
        for one in [event] * (1 + (_kind(event) == "content_block_stop" and event[1]["index"] in tools))
    ]


def _empty_text_first(events: list[Event], _: Json) -> list[Event]:
    if not any(
        data["type"] == "content_block_start" and data["content_block"]["type"] == "tool_use"
        for _name, data in events
    ):
        return events
    place = next(number for number, one in enumerate(events) if _kind(one) == "content_block_start")
    for _name, data in events:
        if "index" in data:
            data["index"] += 1
    block = {"type": "text", "text": ""}
    added: list[Event] = [
        ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}),
        ("content_block_stop", {"type": "content_block_stop", "index": 0}),
    ]
    return [*events[:place], *added, *events[place:]]


def _ends_turn(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if data["type"] == "message_delta" and data["delta"]["stop_reason"] == "tool_use":
            data["delta"]["stop_reason"] = "end_turn"


def _no_input(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if data["type"] == "message_start":
            data["message"]["usage"].update(input_tokens=0, cache_read_input_tokens=0)
        elif data["type"] == "message_delta":
            data["usage"] = {"output_tokens": data["usage"]["output_tokens"]}


def _twice_counted(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if data["type"] == "message_delta":
            data["usage"]["input_tokens"] *= 2


def _delta_before_stop(events: list[Event], _: Json) -> None:
    for number in range(1, len(events)):
        if _kind(events[number]) == "message_delta" and _kind(events[number - 1]) == "content_block_stop":
            events[number - 1], events[number] = events[number], events[number - 1]
            return


def _cumulative(events: list[Event], _: Json) -> None:
    so_far: dict[int, str] = {}
    for _name, data in events:
        if (data.get("delta") or {}).get("type") == "input_json_delta":
            so_far[data["index"]] = so_far.get(data["index"], "") + data["delta"]["partial_json"]
            data["delta"]["partial_json"] = so_far[data["index"]]


def _thoughts_in_text(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if data["type"] == "content_block_start" and data["content_block"]["type"] == "thinking":
            data["content_block"] = {"type": "text", "text": ""}


def _no_names(events: list[Event], _: Json) -> list[Event]:
    return [(None, data) for _kind, data in events]


def _no_tool_id(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if data["type"] == "content_block_start" and data["content_block"]["type"] == "tool_use":
            data["content_block"]["id"] = None


def _openai_error(exchange: Any) -> Any:
    if (
        not exchange.path.startswith("/v1/messages")
        or exchange.status < 400
        or not isinstance(exchange.json, dict)
    ):
        return exchange
    error = {**exchange.json.get("error", {}), "param": None, "code": None}
    return with_body(exchange, json.dumps({"error": error}).encode())


# Responses.


def _renumbered(events: list[Event]) -> list[Event]:
    for number, (_name, data) in enumerate(one for one in events if isinstance(one[1], dict)):
        if "sequence_number" in data:
            data["sequence_number"] = number
    return events


def _no_created(events: list[Event], _: Json) -> list[Event]:
    return _renumbered([one for one in events if _kind(one) != "response.created"])


def _done_late(events: list[Event], _: Json) -> list[Event] | None:
    done = [number for number, one in enumerate(events) if _kind(one) == "response.output_item.done"]
    if len(done) < 2:
        return None
    events.insert(done[1], events.pop(done[0]))
    return _renumbered(events)


def _output_reversed(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if _kind((None, data)) in ("response.completed", "response.incomplete"):
            data["response"]["output"].reverse()


def _other_call_id(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if _kind((None, data)) in ("response.completed", "response.incomplete"):
            for item in data["response"]["output"]:
                if "call_id" in item:
                    item["call_id"] = f"call_{item['call_id'][::-1]}"


def _items_completed(answer: Json, _: Json) -> None:
    if answer["status"] == "incomplete":
        for item in answer["output"]:
            if "status" in item:
                item["status"] = "completed"


def _no_annotations(answer: Json, _: Json) -> None:
    for item in answer["output"]:
        for part in item.get("content") or () if item["type"] == "message" else ():
            part.pop("annotations", None)


def _fenced_format(answer: Json, asked: Json) -> None:
    if (asked.get("text") or {}).get("format", {}).get("type", "text") != "text":
        for item in answer["output"]:
            for part in item.get("content") or () if item["type"] == "message" else ():
                if "text" in part:
                    part["text"] = f"```json\n{part['text']}\n```"


def _unlinked(answer: Json, _: Json) -> None:
    answer["previous_response_id"] = None


def _in_foreground(exchange: Any) -> Any:
    if exchange.status != 200 or not isinstance(exchange.json, dict) or not exchange.json.get("background"):
        return exchange
    return with_body(exchange, json.dumps({**exchange.json, "background": False}).encode())


def _unstored(exchange: Any) -> Any:
    if exchange.method != "GET" or "/responses/resp" not in exchange.path or exchange.status != 200:
        return exchange
    error = {"message": "Response not found.", "type": "invalid_request_error", "param": None, "code": None}
    return with_body(changed(exchange, status=404), json.dumps({"error": error}).encode())


def _resumed(change: Any) -> Any:
    """Change the JSON of the events of a stream that is continued."""

    def apply(exchange: Any) -> Any:
        if exchange.method != "GET" or "starting_after" not in exchange.url or exchange.status != 200:
            return exchange
        return with_events(exchange, change)

    return apply


def _from_the_start(events: list[Event]) -> list[Event]:
    first = json.loads(json.dumps(events[0][1]))
    made = []
    for number, kind in enumerate(("response.created", "response.queued")):
        made.append((kind, {**first, "type": kind, "sequence_number": number}))
    return [*made, *events]


def lists_changed(path: str, change: Any) -> Any:
    """Change the JSON of lists of items."""

    def apply(exchange: Any) -> Any:
        if exchange.method != "GET" or not exchange.path.endswith(path) or exchange.status != 200:
            return exchange
        found = json.loads(exchange.body)
        change(found, exchange)
        return with_body(exchange, json.dumps(found).encode())

    return apply


def _made_items_only(page: Json, _: Any) -> None:
    page["data"] = [item for item in page["data"] if item.get("role") == "user" and len(page["data"]) > 99]
    page.update(first_id=None, last_id=None, has_more=False)


def _any_order(page: Json, _: Any) -> None:
    data = page["data"]
    if len(data) > 1:
        data[0], data[1] = data[1], data[0]
        page.update(first_id=data[0]["id"], last_id=data[-1]["id"])


def _no_object(page: Json, _: Any) -> None:
    page.pop("object", None)


def frames_changed(change: Any) -> Any:
    """Change the messages of WebSockets."""

    def apply(exchange: Any) -> Any:
        if exchange.method != "WEBSOCKET" or exchange.status != 101:
            return exchange
        found = [(at, text) for at, frame in exchange.frames for text in change(frame)]
        return exchange if found == exchange.frames else changed(exchange, frames=found)

    return apply


def _sse_frame(frame: bytes) -> list[bytes]:
    return [b"data: " + frame + b"\n\n"]


def _done_frame(frame: bytes) -> list[bytes]:
    last = b'"type": "response.completed"' in frame or b'"type": "response.incomplete"' in frame
    return [frame, b"[DONE]"] if last else [frame]


def _http_error_frame(frame: bytes) -> list[bytes]:
    found = json.loads(frame)
    return [json.dumps({"error": found["error"]}).encode()] if found.get("type") == "error" else [frame]


CONVERSATIONS: tuple[Row, ...] = (
    ("litellm#37273", "blocks of calls stop twice", streamed("messages", _stopped_twice)),
    ("litellm#34692", "an empty text before a call in streams", streamed("messages", _empty_text_first)),
    ("litellm#34692", "streamed calls of Messages end as text does", streamed("messages", _ends_turn)),
    ("mlx-node#45", "streams of Messages have no input", streamed("messages", _no_input)),
    ("ai-gateway#2239", "the end of a stream counts the input twice", streamed("messages", _twice_counted)),
    ("", "the reason comes before the end of the last block", streamed("messages", _delta_before_stop)),
    ("", "each fragment of an input has those before it", streamed("messages", _cumulative)),
    ("litellm#29600", "thoughts in a block of text", streamed("messages", _thoughts_in_text)),
    ("", "events of Messages without names", streamed("messages", _no_names)),
    ("", "calls of streams of Messages have no id", streamed("messages", _no_tool_id)),
    ("", "errors of Messages in OpenAI's form", _openai_error),
    ("litellm#9545", "no event says that a response was created", streamed("responses", _no_created)),
    ("litellm#36356", "items of streams end in another order", streamed("responses", _done_late)),
    ("surogate#175", "the output at the end in another order", streamed("responses", _output_reversed)),
    ("vllm#47916", "calls have another id at the end", streamed("responses", _other_call_id)),
    ("vllm#57998", "items of a cut response are complete", whole("responses", _items_completed)),
    ("lmstudio#1089", "texts of responses have no annotations", whole("responses", _no_annotations)),
    ("lmstudio#2403", "documents of responses between fences", whole("responses", _fenced_format)),
    ("", "a response does not name the one before it", whole("responses", _unlinked)),
    ("rvllm#14", "responses in the background say that they are not", _in_foreground),
    ("vllm#25428", "stored responses cannot be read", _unstored),
    ("", "a continued stream begins again", _resumed(_from_the_start)),
    ("", "a continued stream counts from 0", _resumed(_renumbered)),
    ("ogx#4718", "conversations stay empty", lists_changed("/items", _made_items_only)),
    ("ogx#5849", "items of conversations in another order", lists_changed("/items", _any_order)),
    ("", "lists of inputs are not called lists", lists_changed("/input_items", _no_object)),
    ("", "messages of WebSockets are lines of streams", frames_changed(_sse_frame)),
    ("", "WebSockets end a turn with [DONE]", frames_changed(_done_frame)),
    ("ogx#5224", "errors of WebSockets are those of HTTP", frames_changed(_http_error_frame)),
)

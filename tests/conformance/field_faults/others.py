"""Faults of Responses, of Messages, and of what all APIs share."""

from __future__ import annotations

import json
from typing import Any

from field_faults.changes import Event, Json, Row, ended, streamed, whole

__all__ = ["OTHERS"]


def _each(change: Any) -> Any:
    def apply(events: list[Event], asked: Json) -> None:
        for _, data in events:
            if isinstance(data, dict):
                change(data, asked)

    return apply


def _without(kind: str) -> Any:
    def apply(events: list[Event], _: Json) -> list[Event]:
        found = [one for one in events if not (isinstance(one[1], dict) and one[1].get("type") == kind)]
        for number, (_kind, data) in enumerate(found):
            if isinstance(data, dict) and "sequence_number" in data:
                data["sequence_number"] = number
        return found

    return apply


def _from_one(event: Json, _: Json) -> None:
    if "output_index" in event:
        event["output_index"] += 1


def _no_place(event: Json, _: Json) -> None:
    event.pop("output_index", None)


def _other_item(event: Json, _: Json) -> None:
    if "item_id" in event:
        event["item_id"] = "item_0"


def _empty_end(event: Json, _: Json) -> None:
    if event["type"] == "response.completed":
        event["response"]["output"] = []


def _no_usage(event: Json, _: Json) -> None:
    if event["type"] == "response.completed":
        event["response"]["usage"] = None


def _no_number(event: Json, _: Json) -> None:
    event["sequence_number"] = 0


def _completed(answer: Json, _: Json) -> None:
    if answer["status"] == "incomplete":
        answer.update(status="completed", incomplete_details=None, completed_at=answer["created_at"])
        for item in answer["output"]:
            item["status"] = "completed"


def _call_id(event: Json, _: Json) -> None:
    if event["type"] == "response.output_item.done" and "call_id" in event["item"]:
        event["item"]["call_id"] += "x"


def _done(events: list[Event], _: Json) -> list[Event]:
    name, data = events[-1] if events[-1][1] != "[DONE]" else events[-2]
    if data["type"] == "response.completed":
        data["type"] = "response.done"
    return [("response.done" if one is data and name else event, one) for event, one in events]


def _unnamed(events: list[Event], _: Json) -> list[Event]:
    return [(None, data) for _kind, data in events]


def _forgets(answer: Json, asked: Json) -> None:
    if asked.get("previous_response_id") and isinstance(answer.get("usage"), dict):
        usage = answer["usage"]
        usage.update(input_tokens=2, total_tokens=2 + usage["output_tokens"])


def _fraction(answer: Json, _: Json) -> None:
    answer["created_at"] += 0.25


def _no_format(answer: Json, _: Json) -> None:
    answer["text"] = None


def _no_tools(answer: Json, _: Json) -> None:
    answer["tools"] = []


def _chat_reason(answer: Json, _: Json) -> None:
    if answer["stop_reason"] == "end_turn":
        answer["stop_reason"] = "stop"


def _no_sequence(answer: Json, _: Json) -> None:
    if answer["stop_reason"] == "stop_sequence":
        answer.update(stop_reason="end_turn", stop_sequence=None)


def _before_first(event: Json, _: Json) -> None:
    if event["type"].startswith("content_block"):
        event["index"] -= 1


def _at_once(events: list[Event], _: Json) -> list[Event]:
    blocks: dict[int, str] = {}
    for _kind, data in events:
        if data.get("type") == "content_block_delta" and data["delta"]["type"] == "input_json_delta":
            blocks[data["index"]] = blocks.get(data["index"], "") + data["delta"]["partial_json"]
    for _kind, data in events:
        if data.get("type") == "content_block_start" and data["index"] in blocks:
            try:
                data["content_block"]["input"] = json.loads(blocks[data["index"]] or "{}")
            except ValueError:
                continue
    return [one for one in events if (one[1].get("delta") or {}).get("type") != "input_json_delta"]


def _no_start_usage(event: Json, _: Json) -> None:
    if event["type"] == "message_start":
        del event["message"]["usage"]


def _done_too(events: list[Event], _: Json) -> list[Event]:
    return [*events, (None, "[DONE]")]


def _text_input(answer: Json, _: Json) -> None:
    for block in answer["content"]:
        if block["type"] == "tool_use":
            block["input"] = json.dumps(block["input"])


def _stops_calls(answer: Json, _: Json) -> None:
    if answer["stop_reason"] == "tool_use":
        answer["stop_reason"] = "end_turn"


def _at(path: str, *statuses: int, method: str = "GET") -> Any:
    def wanted(exchange: Any) -> bool:
        found = exchange.path.startswith(f"/v1{path}") and exchange.method == method
        return found and exchange.status in statuses

    return wanted


def _wrong_key(exchange: Any) -> bool:
    return bool(exchange.status == 401)


def _broken_json(exchange: Any) -> bool:
    return exchange.method == "POST" and exchange.status == 400 and exchange.request_json is None


def _unknown_model(exchange: Any) -> bool:
    return exchange.method == "POST" and exchange.status == 404 and "model" in (exchange.request_json or {})


KEPT = json.dumps({"id": "resp_x", "object": "response", "status": "completed", "output": []}).encode()
PLAIN = json.dumps({"error": "not found"}).encode()
OTHERS: tuple[Row, ...] = (
    ("sglang#12644", "places begin at 1", streamed("responses", _each(_from_one))),
    ("llama.cpp#20607", "events have no place", streamed("responses", _each(_no_place))),
    ("ogx#5309", "no end of a text", streamed("responses", _without("response.output_text.done"))),
    ("gemini-web2api#57", "no item is added", streamed("responses", _without("response.output_item.added"))),
    (
        "gemini-web2api#57",
        "no end of arguments",
        streamed("responses", _without("response.function_call_arguments.done")),
    ),
    ("", "deltas name another item", streamed("responses", _each(_other_item))),
    ("", "the end has no output", streamed("responses", _each(_empty_end))),
    ("", "the end has no usage", streamed("responses", _each(_no_usage))),
    ("litellm#28899", "all numbers are 0", streamed("responses", _each(_no_number))),
    ("", "a cut answer is complete", whole("responses", _completed)),
    ("", "the end of a call has another id", streamed("responses", _each(_call_id))),
    ("", "another last event", streamed("responses", _done)),
    ("", "events without names", streamed("responses", _unnamed)),
    ("", "the previous response is ignored", whole("responses", _forgets)),
    ("OmniRoute#13964", "responses were made at a fraction of a second", whole("responses", _fraction)),
    ("litellm#28899", "no format of the text", whole("responses", _no_format)),
    ("", "no tools are repeated", whole("responses", _no_tools)),
    ("", "what is not kept can be read", ended(_at("/responses/", 404), status=200, content=KEPT)),
    ("vllm#22627", "the reason of chat", whole("messages", _chat_reason)),
    ("vllm#45807", "no stop sequence is named", whole("messages", _no_sequence)),
    ("vllm#22627", "calls end as text does", whole("messages", _stops_calls)),
    ("litellm#27442", "the first block is -1", streamed("messages", _each(_before_first))),
    ("", "the input comes at once", streamed("messages", _at_once)),
    ("", "no usage at the start", streamed("messages", _each(_no_start_usage))),
    ("", "[DONE] at the end", streamed("messages", _done_too)),
    ("", "no end of the message", streamed("messages", _without("message_stop"))),
    ("", "no end of blocks", streamed("messages", _without("content_block_stop"))),
    ("", "the input is a text", whole("messages", _text_input)),
    ("", "a wrong key is a failure", ended(_wrong_key, status=500)),
    ("", "broken JSON is a failure", ended(_broken_json, status=500)),
    ("", "an unknown model is a failure", ended(_unknown_model, status=500)),
    ("", "errors are a text", ended(_at("/models/", 404), content=PLAIN)),
    ("", "no list of models", ended(_at("/models", 200), content=b'{"models": []}')),
)

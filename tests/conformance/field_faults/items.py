"""Faults that threads report of Messages and Responses: blocks, items, events, and counts at their ends."""

from __future__ import annotations

from collections.abc import Callable

from field_faults.bodies import kind
from field_faults.changes import Change, Event, Json, Row, streamed, whole
from field_faults.conversations import frames_changed

__all__ = ["ITEMS"]

# Messages.


def _started_again(events: list[Event], _: Json) -> list[Event]:
    starts: dict[int, Event] = {}
    made: list[Event] = []
    for event in events:
        if kind(event) == "content_block_start":
            starts[event[1]["index"]] = event
        elif kind(event) == "content_block_delta" and made and kind(made[-1]) == "content_block_delta":
            made.append(starts[event[1]["index"]])
        made.append(event)
    return made


def _unsigned(answer: Json, _: Json) -> None:
    for block in answer["content"]:
        if block["type"] == "thinking":
            block.pop("signature", None)


def _no_stop_reason(events: list[Event], _: Json) -> None:
    for event in events:
        if kind(event) == "message_delta":
            event[1]["delta"]["stop_reason"] = None


def _no_end_usage(events: list[Event], _: Json) -> None:
    for event in events:
        if kind(event) == "message_delta":
            event[1].pop("usage", None)


def _even_indexes(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if "index" in data:
            data["index"] *= 2


def _other_model(answer: Json, _: Json) -> None:
    answer["model"] = ""


def _inputs_lost(answer: Json, _: Json) -> None:
    for block in answer["content"]:
        if block["type"] == "tool_use":
            block["input"] = {}


def _length_as_end(answer: Json, _: Json) -> None:
    if answer["stop_reason"] == "max_tokens":
        answer["stop_reason"] = "end_turn"


# Responses.


def _other_ids(events: list[Event], _: Json) -> None:
    for number, event in enumerate(events):
        if isinstance(event[1], dict) and "item_id" in event[1]:
            event[1]["item_id"] = f"{event[1]['item_id']}_{number}"


def _constant_number(events: list[Event], _: Json) -> None:
    for event in events:
        if kind(event) == "response.output_item.done":
            event[1]["sequence_number"] = 1


def _statusless(answer: Json, _: Json) -> None:
    for item in answer["output"]:
        if item["type"] == "message":
            item.pop("status", None)


def _in_event(wanted: str, change: Callable[[Json], object]) -> Change:
    def apply(events: list[Event], _: Json) -> None:
        for event in events:
            if kind(event) == wanted:
                change(event[1])

    return streamed("responses", apply)


def _last_delta_only(events: list[Event], _: Json) -> None:
    last = ""
    for event in events:
        if kind(event) == "response.output_text.delta":
            last = event[1]["delta"]
        elif kind(event) == "response.output_text.done":
            event[1]["text"] = last


def _times(events: list[Event], _: Json) -> None:
    for number, event in enumerate(events):
        if isinstance(event[1], dict) and "response" in event[1]:
            event[1]["response"]["created_at"] += number


def _reason_of_chat(answer: Json, _: Json) -> None:
    if answer.get("incomplete_details"):
        answer["incomplete_details"] = {"reason": "max_tokens"}


def _no_details(answer: Json, _: Json) -> None:
    if answer.get("usage"):
        answer["usage"].pop("output_tokens_details", None)


def _thoughts_not_output(answer: Json, _: Json) -> None:
    usage = answer.get("usage") or {}
    thoughts = (usage.get("output_tokens_details") or {}).get("reasoning_tokens") or 0
    if thoughts:
        usage["output_tokens"] -= thoughts
        usage["total_tokens"] -= thoughts


def _two_in_one(frame: bytes) -> list[bytes]:
    return [frame + b"\n" + frame]


def _created_twice(frame: bytes) -> list[bytes]:
    return [frame, frame] if b'"response.created"' in frame else [frame]


ITEMS: tuple[Row, ...] = (
    ("llama.cpp#18551", "blocks start with each piece", streamed("messages", _started_again)),
    ("sglang#29242", "thoughts have no signature", whole("messages", _unsigned)),
    ("", "streams of Messages have no reason", streamed("messages", _no_stop_reason)),
    ("", "the end of a message counts nothing", streamed("messages", _no_end_usage)),
    ("", "blocks are counted by two", streamed("messages", _even_indexes)),
    ("", "messages name no model", whole("messages", _other_model)),
    ("", "inputs of calls are empty", whole("messages", _inputs_lost)),
    ("LocalAI#3533", "a cut message ends as a complete one", whole("messages", _length_as_end)),
    ("litellm#30071", "each event names another item", streamed("responses", _other_ids)),
    ("litellm#28899", "the end of items has the number 1", streamed("responses", _constant_number)),
    ("OmniRoute#13964", "messages have no status", whole("responses", _statusless)),
    (
        "OmniRoute#13964",
        "responses in progress have no output",
        _in_event("response.in_progress", lambda data: data["response"].pop("output")),
    ),
    (
        "CLIProxyAPI#5851",
        "the usage of responses is empty",
        _in_event("response.completed", lambda data: data["response"].update(usage={})),
    ),
    (
        "",
        "pieces of text have no list of log probabilities",
        _in_event("response.output_text.delta", lambda data: data.update(logprobs=None)),
    ),
    (
        "",
        "the end of a part has no text",
        _in_event("response.content_part.done", lambda data: data["part"].update(text="")),
    ),
    ("", "the end of a text is its last piece", streamed("responses", _last_delta_only)),
    ("", "each event has a time of its own", streamed("responses", _times)),
    ("", "the limit of responses has the name of chat's", whole("responses", _reason_of_chat)),
    ("", "no details of the output's tokens", whole("responses", _no_details)),
    ("", "thoughts are no output", whole("responses", _thoughts_not_output)),
    ("", "two events in a message of a WebSocket", frames_changed(_two_in_one)),
    ("", "responses of WebSockets begin twice", frames_changed(_created_twice)),
)

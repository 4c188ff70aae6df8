"""Mutants of Messages."""

from __future__ import annotations

from typing import Any

from mutants.basic import done_twice, drop, drop_kind, no_name, of_kind, put, swap
from mutants.mutations import (
    Event,
    Mutant,
    Mutation,
    again,
    body,
    changed,
    each,
    events,
    header,
    status,
    without,
)
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.checks.messages.texts import BEGUN
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["MESSAGES"]

EMPTY = {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 16}
ONE = {"input_tokens": 1, "output_tokens": 16}
CALL = {"type": "tool_use", "id": "toolu_x", "name": "get_time", "input": {"zone": "Rome"}}
THOUGHT = {"type": "thinking_delta", "thinking": "Hm."}
OPENAI = {"error": {"message": "m", "type": "invalid_request_error", "param": None, "code": None}}


def ends(**changes: Any) -> Mutation:
    """Change members of the streamed end of a message."""
    return of_kind("message_delta", lambda event: event["delta"].update(changes), STREAM)


def changes(**members: Any) -> Any:
    return lambda answer: answer.update(members)


def one_id(seen: Transcript) -> Transcript:
    streamed = of_kind("message_start", put("message", "id", "msg_x"))
    return streamed(body(put("id", "msg_x"), WHOLE)(seen))


def unsigned(found: list[Event]) -> list[Event]:
    return [one for one in found if one[1].get("delta", {}).get("type") != "signature_delta"]


def thought_as_text(message: Any) -> None:
    thought = message["content"].pop(0)["thinking"]
    message["content"][0]["text"] = f"<think>{thought}</think>{message['content'][0]['text']}"


def repeated_end(found: list[Event]) -> list[Event]:
    return [*found[:-1], found[-2], found[-1]]


def any_key(seen: Transcript) -> Transcript:
    own = next(one for one in seen.exchanges if one.name == "own")
    return each("wrong", lambda one: changed(one, status=200, frames=own.frames, headers=own.headers))(seen)


def called_twice(answer: Any) -> None:
    answer["content"].append({**answer["content"][0], "id": "toolu_other"})


def called_twice_alike(answer: Any) -> None:
    answer["content"].append(answer["content"][0])


def twice_counted(event: Any) -> None:
    event["usage"]["input_tokens"] *= 2


def empty_text(answer: Any) -> None:
    answer["content"].insert(0, {"type": "text", "text": ""})


def empty_text_first(found: list[Event]) -> list[Event]:
    """Stream a text without words before the other blocks."""
    place = next(number for number, (kind, _) in enumerate(found) if kind == "content_block_start")
    for _, event in found:
        if "index" in event:
            event["index"] += 1
    block = {"type": "text", "text": ""}
    added: list[Event] = [
        ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}),
        ("content_block_stop", {"type": "content_block_stop", "index": 0}),
    ]
    return [*found[:place], *added, *found[place:]]


def replaced(answer: Any) -> None:
    answer.clear()
    answer.update(OPENAI)


TEXT: list[tuple[str, Mutation, str]] = [
    ("no role", body(without("role"), WHOLE), "shape"),
    ("content as text", body(put("content", "x"), WHOLE), "shape"),
    ("no usage", body(without("usage"), WHOLE), "shape"),
    ("an empty id", body(put("id", ""), WHOLE), "shape"),
    ("one id for all", one_id, "ids"),
    ("an empty prompt", body(put("usage", EMPTY), WHOLE), "usage"),
    ("more than asked for", body(put("usage", "output_tokens", 99), WHOLE), "usage"),
    ("a streamed empty prompt", of_kind("message_delta", put("usage", EMPTY)), "stream-usage"),
    (
        "more streamed than asked for",
        of_kind("message_delta", put("usage", "output_tokens", 99)),
        "stream-usage",
    ),
    ("the input counted twice", of_kind("message_delta", twice_counted), "same-prompt"),
    ("a text of no tokens", body(put("usage", "output_tokens", 0), WHOLE), "usage ending"),
    ("no reason", body(put("stop_reason", None), WHOLE), "ending"),
    ("tool_use without calls", body(put("stop_reason", "tool_use"), WHOLE), "ending"),
    ("a sequence and another reason", body(put("stop_sequence", "x"), WHOLE), "ending"),
    ("a sequence of its own", body(changes(stop_reason="stop_sequence", stop_sequence="x"), WHOLE), "ending"),
    ("max_tokens too soon", body(put("usage", "output_tokens", 3), WHOLE), "ending"),
    ("no streamed reason", ends(stop_reason=None), "lifecycle stream-ending"),
    ("streamed tool_use without calls", ends(stop_reason="tool_use"), "stream-ending"),
    ("a streamed sequence and another reason", ends(stop_sequence="x"), "stream-ending"),
    ("no request id", header("request-id", None, WHOLE), "request-id"),
    ("no request id of a stream", header("request-id", None, STREAM), "stream-request-id"),
    ("a stream as JSON", header("content-type", "application/json"), "wire"),
    ("no names", events(no_name), "wire"),
    ("a [DONE]", events(done_twice), "wire"),
    ("a delta without its text", of_kind("content_block_delta", without("delta", "text")), "event-shapes"),
    ("no streamed role", of_kind("message_start", without("message", "role")), "event-shapes folded"),
    ("an empty streamed id", of_kind("message_start", put("message", "id", "")), "folded"),
    ("no message_start", events(drop(0)), "lifecycle folded"),
    ("no message_stop", events(drop(-1)), "lifecycle"),
    ("two message_delta", events(repeated_end), "lifecycle"),
    ("message_stop before the end", events(swap(-1, -2)), "lifecycle"),
    (
        "a message that begins with text",
        of_kind("message_start", put("message", "content", [{"type": "text", "text": "x"}])),
        "lifecycle",
    ),
    (
        "other words",
        again(of_kind("content_block_delta", put("delta", "text", "other"))),
        "same-as-whole",
    ),
    ("an index from 1", of_kind("content_block_start", put("index", 1)), "blocks"),
    ("a block that stays open", events(drop_kind("content_block_stop")), "blocks"),
    ("a block without a start", events(drop_kind("content_block_start")), "blocks"),
    ("thinking in a text", of_kind("content_block_delta", put("delta", THOUGHT)), "blocks"),
    (
        "a block that begins with text",
        of_kind("content_block_start", put("content_block", "text", "x")),
        "blocks",
    ),
]
OTHERS: list[tuple[str, str, Mutation, str]] = [
    ("stop", "the sequence in the text", body(put("content", 0, "text", "Grüße!"), WHOLE), "absent"),
    (
        "stop",
        "the sequence in the stream",
        of_kind("content_block_delta", put("delta", "text", "Grüße!")),
        "stream-absent",
    ),
    ("stop", "end_turn", body(changes(stop_reason="end_turn", stop_sequence=None), WHOLE), "reported"),
    ("stop", "another sequence", body(put("stop_sequence", "\u2603never"), WHOLE), "reported"),
    ("stop", "a streamed end_turn", ends(stop_reason="end_turn", stop_sequence=None), "reported"),
    ("continued", "the beginning again", body(put("content", 0, "text", f"{BEGUN} x"), WHOLE), "new"),
    ("continued", "the beginning unread", body(put("usage", ONE), WHOLE), "read"),
    ("inputs", "a block as another prompt", body(put("usage", ONE), "block"), "block"),
    ("inputs", "two turns of one role", body(put("usage", ONE), "neighbours"), "turn"),
    ("system-turns", "no system message", body(put("usage", ONE), "long"), "read"),
    ("inputs", "no system prompt", body(put("usage", ONE), "system"), "system"),
    ("count", "another count", body(put("input_tokens", 1), "counted"), "same"),
    ("count", "no count", body(without("input_tokens"), "counted"), "same"),
    ("tool", "no call", body(changes(content=[], stop_reason="end_turn"), WHOLE), "called"),
    ("tool", "another tool", body(put("content", 0, "name", "get_time"), WHOLE), "called"),
    ("tool", "input of another tool", body(put("content", 0, "input", {"zone": "x"}), WHOLE), "arguments"),
    (
        "tool",
        "another tool, streamed",
        of_kind("content_block_start", put("content_block", "name", "get_time"), STREAM),
        "stream-called",
    ),
    (
        "tool",
        "arguments that are no object",
        of_kind("content_block_delta", put("delta", "partial_json", "["), STREAM),
        "stream-arguments sound",
    ),
    ("tool", "an empty text before a call", body(empty_text, WHOLE), "filled"),
    ("tool", "a streamed empty text before a call", events(empty_text_first, STREAM), "stream-filled"),
    ("tool", "two calls for one", body(called_twice, "single"), "single"),
    ("tool", "a forbidden call", body(changes(content=[CALL], stop_reason="tool_use"), "none"), "none"),
    ("tool", "no result taken", status(400, "result"), "taken"),
    ("tool", "one id for two calls", body(called_twice_alike, WHOLE), "sound"),
    (
        "text",
        "a prompt that is counted at the end",
        of_kind("message_start", put("message", "usage", EMPTY)),
        "stream-usage",
    ),
    ("thinking", "no signature", body(put("content", 0, "signature", ""), WHOLE), "signed"),
    ("thinking", "no streamed signature", events(unsigned, STREAM), "stream-signed"),
    ("thinking", "thinking after the text", body(lambda m: m["content"].reverse(), WHOLE), "signed"),
    ("thinking", "thinking in the text", body(thought_as_text, WHOLE), "signed"),
    ("thinking", "display ignored", body(put("content", 0, "thinking", "Hm."), "omitted"), "omitted"),
    ("thinking", "its own thinking refused", status(400, "back"), "taken"),
    ("thinking", "changed thinking taken", status(200, "forged"), "forged sound"),
    ("format", "a text without a form", body(put("content", 0, "text", "Ada"), WHOLE), "matching"),
    (
        "format",
        "another name",
        body(put("content", 0, "text", '{"name": "Eve", "age": 1}'), WHOLE),
        "matching",
    ),
    (
        "format",
        "a streamed text without a form",
        of_kind("content_block_delta", put("delta", "text", "x")),
        "stream-matching",
    ),
    ("image", "an image left out", body(put("usage", ONE), "image"), "seen"),
    ("image", "a server that fails of an image", status(500, "image"), "seen"),
    ("key", "a key of one header only", status(401, "own"), "taken"),
    ("key", "any key will do", any_key, "refused"),
    ("key", "the type of another error", body(put("error", "type", "api_error"), "wrong"), "refused"),
    ("refused", "no limit needed", status(200, "no_limit"), "invalid"),
    ("refused", "any model will do", status(200, "unknown_model"), "unknown-model"),
    ("refused", "a call without its result", status(200, "no_result"), "unpaired"),
    ("refused", "a result without its call", status(200, "no_call"), "unpaired"),
    ("refused", "no message", body(without("error", "message"), "no_limit"), "envelope"),
    ("refused", "the type of another status", body(put("error", "type", "api_error"), "empty"), "envelope"),
    ("refused", "the error object of OpenAI", body(replaced, "no_limit"), "envelope"),
    ("refused", "no request id", header("request-id", None, "no_limit"), "envelope"),
]
MESSAGES: list[Mutant] = [
    (f"messages/{scenario}", name, mutation, tuple(tripped.split()))
    for scenario, name, mutation, tripped in [*(("text", *row) for row in TEXT), *OTHERS]
]

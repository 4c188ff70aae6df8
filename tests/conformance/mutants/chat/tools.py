"""Mutants of tools on chat completions."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from mutants.basic import put
from mutants.chat.changes import STREAM, WHOLE, Change, calls, message, pieces, reason, streamed
from mutants.mutations import Event, Mutation, body, chunks, events, status

__all__ = ["TOOLS"]


def uncalled(answer: Any) -> None:
    del answer["tool_calls"]
    answer["content"] = "No."


def call_as_text(answer: Any) -> None:
    choice = answer["choices"][0]
    function = choice["message"].pop("tool_calls")[0]["function"]
    choice["message"]["content"] = _marked(function["name"], function["arguments"])
    choice["finish_reason"] = "stop"


def _marked(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def streamed_as_text(found: list[Any]) -> None:
    choices = [choice for data in found for choice in data["choices"]]
    with_calls = [choice["delta"] for choice in choices if "tool_calls" in choice["delta"]]
    arguments = "".join(delta.pop("tool_calls")[0]["function"]["arguments"] for delta in with_calls)
    with_calls[0]["content"] = _marked("get_weather", arguments)
    choices[-1]["finish_reason"] = "stop"


def not_called(request: str = WHOLE) -> Mutation:
    return message(uncalled, request)


def not_streamed(request: str = STREAM) -> Mutation:
    def drop(found: list[Event]) -> list[Event]:
        return [
            event
            for event in found
            if event[1] == "[DONE]" or "tool_calls" not in str(event[1]["choices"][0]["delta"])
        ]

    return events(drop, request)


def named(value: str) -> Change:
    return put(0, "function", "name", value)


def again_head(found: list[Any]) -> None:
    found[1].update(id="call_again", type="function")


def unnamed_later(found: list[Any]) -> None:
    found[1]["function"]["name"] = ""


def typed(found: list[Any]) -> None:
    found[1].update(type="function")


def no_type(found: list[Any]) -> None:
    del found[0]["type"]


def no_id(found: list[Any]) -> None:
    del found[0]["id"]


def shifted(found: list[Any]) -> None:
    for piece in found:
        piece["index"] += 1


def mixed(found: list[Any]) -> None:
    """Number calls by the tool's place in `tools`, so that 1 comes before 0."""
    for piece in found:
        piece["index"] = 1 - piece["index"]


def second(answer: Any) -> None:
    answer.append({**deepcopy(answer[0]), "id": "call_more"})


def second_piece(found: list[Event]) -> list[Event]:
    extra = deepcopy(next(event for event in found if "get_weather" in str(event[1])))
    extra[1]["choices"][0]["delta"]["tool_calls"][0].update(index=1, id="call_more")
    return [*found[:-2], extra, *found[-2:]]


def a_call(answer: Any) -> None:
    function = {"name": "get_weather", "arguments": "{}"}
    answer["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]


def a_piece(found: list[Any]) -> None:
    head: dict[str, Any] = {"index": 0, "id": "call_1", "type": "function"}
    found[1]["choices"][0]["delta"] = {"tool_calls": [{**head, "function": {"name": "f", "arguments": "{}"}}]}


def joined(value: str, key: str = "arguments") -> Change:
    """Replace the arguments of the streamed call by this text."""

    def change(found: list[Any]) -> None:
        for place, piece in enumerate(found):
            function = piece.get("function") or piece["custom"]
            function[key] = value if place == 1 else ""

    return change


TOOLS: list[tuple[str, str, Mutation, str]] = [
    ("tool", "arguments as an object in a list", calls(put(0, "function", "arguments", "[]")), "arguments"),
    ("tool", "arguments encoded twice", calls(put(0, "function", "arguments", '"{}"')), "arguments"),
    ("tool", "half of the arguments", pieces(joined('{"city": "P')), "stream-arguments"),
    ("tool", "a tool of its own", calls(named("get_nothing")), "known-name"),
    ("tool", "a streamed tool of its own", pieces(named("get_nothing")), "stream-known-name"),
    ("tool", "`stop` beside calls", reason("stop"), "finish"),
    ("tool", "a streamed `stop` beside calls", reason("stop", STREAM), "stream-finish"),
    ("tool", "the call as text as well", message(put("content", "<tool_call>{}")), "no-markup"),
    ("tool", "the call as text alone", body(call_as_text, WHOLE), "no-markup"),
    ("tool", "the call as streamed text alone", chunks(streamed_as_text, STREAM), "stream-no-markup"),
    ("tool-required", "the end of the call as text", message(put("content", "]</tool_call>")), "no-markup"),
    (
        "tool-required",
        "the end of the call as streamed text",
        streamed("]</tool_call>", STREAM),
        "stream-no-markup",
    ),
    ("tool", "the call as streamed text as well", streamed("<tool_call>{}", STREAM), "stream-no-markup"),
    ("tool", "id and type in every delta", pieces(again_head), "id-once type-once"),
    ("tool", "an empty name in later deltas", pieces(unnamed_later), "bare"),
    ("tool", "the type in every delta", pieces(typed), "type-once"),
    ("tool", "no type", pieces(no_type), "type-once"),
    ("tool", "no id", pieces(no_id), "id-once chunks"),
    (
        "tool",
        "an empty name first",
        pieces(put(0, "function", "name", "")),
        "id-once stream-known-name chunks",
    ),
    ("tool", "indexes from 1", pieces(shifted), "index"),
    ("tool", "an empty id", calls(put(0, "id", "")), "ids"),
    ("tool", "an id of 65 characters", calls(put(0, "id", "x" * 65)), "ids"),
    ("tools", "one id for both calls", calls(lambda found: found[1].update(id=found[0]["id"])), "ids"),
    ("tools", "indexes by the place in `tools`", pieces(mixed), "index"),
    ("tool-empty", "no arguments", calls(put(0, "function", "arguments", "")), "arguments"),
    ("tool-empty", "no streamed arguments", pieces(joined("")), "stream-arguments"),
    ("tool-round", "its own call refused", status(400, "result"), "answered"),
    ("tool-round", "parts refused", status(422, "result_in_parts"), "parts"),
    ("tool-required", "no call", not_called(), "called arguments finish shape"),
    ("tool-required", "no streamed call", not_streamed(), "stream-called stream-finish chunks"),
    ("tool-required", "`content_filter` for a required call", reason("content_filter"), "finish"),
    ("tool-required", "`content_filter`, streamed", reason("content_filter", STREAM), "stream-finish"),
    ("tool-required", "prose for arguments", calls(put(0, "function", "arguments", "Paris")), "arguments"),
    ("tool-named", "another tool", calls(named("get_weather")), "called"),
    ("tool-named", "another streamed tool", pieces(named("get_weather")), "stream-called"),
    ("tool-named", "`content_filter` for a named call", reason("content_filter"), "finish"),
    (
        "tool-named",
        "numbers for arguments",
        calls(put(0, "function", "arguments", '{"zone": 1}')),
        "arguments",
    ),
    ("tool-named", "streamed prose for arguments", pieces(joined("Rome")), "stream-arguments"),
    ("tool-allowed", "a tool that is not allowed", calls(named("get_weather")), "called"),
    (
        "tool-allowed",
        "a streamed tool that is not allowed",
        pieces(named("get_weather")),
        "stream-called",
    ),
    ("tool-none", "a call", message(a_call), "no-calls"),
    ("tool-none", "a streamed call", chunks(a_piece, STREAM), "stream-no-calls"),
    ("tool-single", "two calls", calls(second), "one"),
    ("tool-single", "two streamed calls", events(second_piece, STREAM), "stream-one"),
    ("tool-custom", "input beside the grammar", calls(put(0, "custom", "input", "now")), "input"),
    ("tool-custom", "streamed input beside the grammar", pieces(joined("now", "input")), "stream-input"),
    ("tool-custom", "the name in every delta", pieces(lambda f: f[1].update(id="call_again")), "id-once"),
    ("tool-custom", "a function", calls(put(0, "type", "function")), "type shape"),
    ("tool-required-reasoning", "thought and no call", not_called(), "called shape"),
    ("tool-required-reasoning", "streamed thought and no call", not_streamed(), "stream-called chunks"),
]


def same_ids(found: list[Any]) -> None:
    for piece in found:
        if "id" in piece:
            piece["id"] = "call_same"


def torn(found: list[Any]) -> None:
    """Move the last fragment of the first call to the second."""
    last = [piece for piece in found if piece["index"] == 0][-1]
    first = next(piece for piece in found if piece["index"] == 1)
    first["function"]["arguments"] = last["function"]["arguments"]
    last["function"]["arguments"] = ""


TOOLS += [
    ("tools", "one id for both streamed calls", pieces(same_ids), "stream-ids"),
    ("tools", "arguments that run into each other", pieces(torn), "arguments"),
]

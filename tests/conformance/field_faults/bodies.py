"""Faults that threads report of answers: parts of streams, calls, thoughts, documents, log probabilities and counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from field_faults.changes import Change, Event, Json, Row, calls_in, deltas, each_choice, streamed, whole
from field_faults.parts import entries, of_models

__all__ = ["BODIES", "choices_of", "kind"]


def kind(event: Event) -> str:
    """Return the type of an event."""
    return str(event[1].get("type")) if isinstance(event[1], dict) else ""


def choices_of(events: list[Event]) -> list[Json]:
    """Return the choices of all chunks."""
    return [choice for _, data in events if isinstance(data, dict) for choice in data.get("choices") or ()]


# Streams of chat completions.


def _own_index_of_arguments(choice: Json, _: Json) -> None:
    for call in calls_in(choice):
        if not (call.get("function") or {}).get("name"):
            call["index"] += 1


def _no_reason_member(choice: Json, _: Json) -> None:
    if choice.get("finish_reason") is None:
        choice.pop("finish_reason", None)


def _text_again(events: list[Event], _: Json) -> None:
    text = "".join(choice["delta"].get("content") or "" for choice in choices_of(events))
    for choice in choices_of(events):
        if choice.get("finish_reason") and text:
            choice["delta"]["content"] = text


def _stripped(choice: Json, _: Json) -> None:
    if choice["delta"].get("content"):
        choice["delta"]["content"] = choice["delta"]["content"].strip()


def _escaped(choice: Json, _: Json) -> None:
    if choice["delta"].get("content"):
        choice["delta"]["content"] = json.dumps(choice["delta"]["content"])[1:-1]


def _heartbeats(events: list[Event], _: Json) -> list[Event]:
    return [events[0], (None, {"heartbeat": True}), *events[1:]]


def _empty_data(events: list[Event], _: Json) -> list[Event]:
    return [*events[:1], (None, ""), *events[1:]]


def _message_events(events: list[Event], _: Json) -> list[Event]:
    return [("message", data) for _name, data in events]


def _usage_after_done(events: list[Event], _: Json) -> list[Event]:
    with_usage = [one for one in events if isinstance(one[1], dict) and one[1].get("usage")]
    return [one for one in events if one not in with_usage] + with_usage


def _usage_before_end(events: list[Event], _: Json) -> None:
    places = [n for n, one in enumerate(events) if isinstance(one[1], dict) and one[1].get("usage")]
    if places and places[-1] > 0:
        events[places[-1] - 1], events[places[-1]] = events[places[-1]], events[places[-1] - 1]


def _no_end(events: list[Event], _: Json) -> None:
    for choice in choices_of(events):
        choice["finish_reason"] = None


def _text_dropped_at_end(events: list[Event], _: Json) -> None:
    """Leave out what the server held back for stop strings."""
    texts = [choice for choice in choices_of(events) if choice["delta"].get("content")]
    if texts and len(texts) > 1:
        texts[-1]["delta"]["content"] = ""


def _first_index(choice: Json, _: Json) -> None:
    for call in calls_in(choice):
        call["index"] = call.get("index", 0) + 1


def _name_in_pieces(events: list[Event], _: Json) -> list[Event]:
    made: list[Event] = []
    for name, data in events:
        made.append((name, data))
        if not isinstance(data, dict):
            continue
        for choice in data["choices"]:
            for call in calls_in(choice):
                whole_name = (call.get("function") or {}).get("name")
                if whole_name and len(whole_name) > 2:
                    call["function"]["name"] = whole_name[:2]
                    rest = {"index": call["index"], "function": {"name": whole_name[2:]}}
                    delta = {"index": choice["index"], "delta": {"tool_calls": [rest]}, "finish_reason": None}
                    made.append((name, {**data, "choices": [{**delta, "logprobs": None}]}))
    return made


# Log probabilities.


def _certain(choice: Json, _: Json) -> None:
    for one in entries(choice):
        one["logprob"] = 0.0


def _first_alternatives(choice: Json, _: Json) -> None:
    found = entries(choice)
    for one in found[1:]:
        one["top_logprobs"] = found[0]["top_logprobs"]


def _pieces(choice: Json, _: Json) -> None:
    for one in entries(choice):
        one["token"] = one["token"].replace(" ", "Ġ")


def _repeated_alternatives(choice: Json, _: Json) -> None:
    for one in entries(choice):
        one["top_logprobs"] = [one["top_logprobs"][0] for _ in one["top_logprobs"]]


def _none_for_infinity(choice: Json, _: Json) -> None:
    for one in entries(choice):
        for other in one["top_logprobs"][1:]:
            other["logprob"] = None


def _shifted(choice: Json, _: Json) -> None:
    found = entries(choice)
    numbers = [one["logprob"] for one in found]
    for one, number in zip(found, [*numbers[1:], -1.25], strict=False):
        one["logprob"] = number


def _offsets_in_bytes(choice: Json, _: Json) -> None:
    found = choice.get("logprobs")
    if found and found.get("text_offset"):
        place = found["text_offset"][0]
        found["text_offset"] = [
            place + len("".join(found["tokens"][:number]).encode()) for number in range(len(found["tokens"]))
        ]


def _offsets_from_zero(events: list[Event], _: Json) -> None:
    for choice in choices_of(events):
        if choice.get("logprobs") and choice["logprobs"].get("text_offset"):
            choice["logprobs"]["text_offset"] = [0 for _ in choice["logprobs"]["text_offset"]]


# Text and stop strings.


def _part_of_stop(choice: Json, asked: Json) -> None:
    stop = asked.get("stop")
    stop = stop[0] if isinstance(stop, list) and stop else stop
    if isinstance(stop, str) and len(stop) > 1 and choice["finish_reason"] == "stop":
        if "text" in choice:
            choice["text"] += stop[: len(stop) // 2]
        elif isinstance(choice["message"].get("content"), str):
            choice["message"]["content"] += stop[: len(stop) // 2]


def _one_less(answer: Json, _: Json) -> None:
    if any(choice["finish_reason"] == "length" for choice in answer["choices"]):
        answer["usage"]["completion_tokens"] -= 1
        answer["usage"]["total_tokens"] -= 1


def _prompt_for_each(answer: Json, _: Json) -> None:
    number = len(answer["choices"])
    answer["usage"]["prompt_tokens"] *= number
    answer["usage"]["total_tokens"] = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]


def _one_id(answer: Json, _: Json) -> None:
    answer["id"] = "chatcmpl-123"


# Thoughts.


def _marker(message: Json, _: Json) -> None:
    for choice in message["choices"]:
        found = choice["message"]
        if found.get("reasoning_content") or found.get("reasoning"):
            found["content"] = f"</think>\n\n{found.get('content') or ''}"


def _late_thought(events: list[Event], _: Json) -> None:
    """Write the last thought after the first text."""
    texts = [n for n, one in enumerate(events) if any(c["delta"].get("content") for c in choices_of([one]))]
    thoughts = [
        n
        for n, one in enumerate(events)
        if any(c["delta"].get("reasoning_content") or c["delta"].get("reasoning") for c in choices_of([one]))
    ]
    if texts and thoughts and thoughts[-1] < texts[0]:
        events.insert(texts[0], events.pop(thoughts[-1]))


def _all_thought(answer: Json, _: Json) -> None:
    for choice in answer["choices"]:
        found = choice["message"]
        if found.get("reasoning_content") and found.get("content"):
            found["reasoning_content"] += found["content"]
            found["content"] = None


# Documents.


def _formatted(asked: Json) -> bool:
    return bool((asked.get("response_format") or {}).get("type", "text") != "text")


def _documents(change: Callable[[str], str]) -> Change:
    def each(choice: Json, asked: Json) -> None:
        text = choice["message"].get("content")
        if _formatted(asked) and isinstance(text, str) and choice["finish_reason"] == "stop":
            choice["message"]["content"] = change(text)

    return whole("chat", each_choice(each))


def _with_member(text: str) -> str:
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return json.dumps({**found, "note": "ok"}) if isinstance(found, dict) else text


def _as_text(text: str) -> str:
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return json.dumps({key: str(value) for key, value in found.items()}) if isinstance(found, dict) else text


# Calls.


def _arguments(change: Callable[[str], Any]) -> Change:
    def each(choice: Json, _: Json) -> None:
        for call in calls_in(choice):
            if "function" in call:
                call["function"]["arguments"] = change(call["function"]["arguments"])

    return whole("chat", each_choice(each))


def _qualified(choice: Json, _: Json) -> None:
    for call in calls_in(choice):
        if call.get("function", {}).get("name"):
            call["function"]["name"] = f"functions.{call['function']['name']}"


def _counted_ids(choice: Json, _: Json) -> None:
    for number, call in enumerate(calls_in(choice)):
        call["id"] = f"call_{number}"


def _untyped_calls(choice: Json, _: Json) -> None:
    for call in calls_in(choice):
        call.pop("type", None)


def _old_reason(choice: Json, _: Json) -> None:
    if choice["finish_reason"] == "tool_calls":
        choice["finish_reason"] = "function_call"


# Models.


def _silent_models(model: Json) -> None:
    model["created"] = str(model.get("created"))


BODIES: tuple[Row, ...] = (
    ("opencode2api#17", "arguments have another index than their name", deltas(_own_index_of_arguments)),
    ("vllm#19662", "chunks have no member for the reason", deltas(_no_reason_member)),
    ("", "the last chunk has the whole text again", streamed("chat", _text_again)),
    ("", "white space at the edges of pieces is lost", deltas(_stripped)),
    ("", "pieces of text are escaped", deltas(_escaped)),
    ("", "heartbeats are events of streams", streamed("chat", _heartbeats)),
    ("", "heartbeats are events without data", streamed("chat", _empty_data)),
    ("", "events of chat have a name", streamed("chat", _message_events)),
    ("", "the usage follows [DONE]", streamed("chat", _usage_after_done)),
    ("", "the usage comes before the reason", streamed("chat", _usage_before_end)),
    ("cherry-studio#19793", "streams end without a reason", streamed("chat", _no_end)),
    ("mlx-vlm#1069", "text that was held back is lost", streamed("chat", _text_dropped_at_end)),
    ("", "the indexes of calls begin at 1", deltas(_first_index)),
    ("", "names of tools come in pieces", streamed("chat", _name_in_pieces)),
    ("llama.cpp#27972", "each token is certain", whole("chat", each_choice(_certain))),
    (
        "sglang#2088",
        "all tokens have the alternatives of the first",
        whole("chat", each_choice(_first_alternatives)),
    ),
    ("", "tokens are pieces of the vocabulary", whole("chat", each_choice(_pieces))),
    ("", "the alternatives are one token", whole("chat", each_choice(_repeated_alternatives))),
    ("", "unlikely tokens have no number", whole("chat", each_choice(_none_for_infinity))),
    ("", "log probabilities are those of the next token", whole("chat", each_choice(_shifted))),
    ("", "offsets count bytes", whole("completions", each_choice(_offsets_in_bytes))),
    ("", "offsets of streams begin anew", streamed("completions", _offsets_from_zero)),
    ("omlx#2386", "the first half of a stop string stays", whole("completions", each_choice(_part_of_stop))),
    ("", "the first half of a stop string stays in chat", whole("chat", each_choice(_part_of_stop))),
    ("lmstudio#2335", "a cut answer counts one token less", whole("chat", _one_less)),
    ("lmstudio#2335", "a cut completion counts one token less", whole("completions", _one_less)),
    ("", "the prompt is counted for each choice", whole("chat", _prompt_for_each)),
    ("", "all answers have one id", whole("chat", _one_id)),
    ("vllm#51641", "the end of thinking is in the text", whole("chat", _marker)),
    ("", "a thought comes after text", streamed("chat", _late_thought)),
    ("", "the text is in the thoughts", whole("chat", _all_thought)),
    ("", "words follow a document", _documents(lambda text: f"{text}\n\nDone!")),
    ("", "documents lack their end", _documents(lambda text: text.rstrip()[:-1])),
    ("", "documents are strings", _documents(json.dumps)),
    ("", "documents have a member that the schema forbids", _documents(_with_member)),
    ("", "all members of documents are texts", _documents(_as_text)),
    ("", "arguments are encoded twice", _arguments(json.dumps)),
    ("", "arguments are lost", _arguments(lambda _: "{}")),
    ("", "tools have a qualified name", whole("chat", each_choice(_qualified))),
    ("", "ids of calls are counted in each answer", whole("chat", each_choice(_counted_ids))),
    ("", "calls have no type", whole("chat", each_choice(_untyped_calls))),
    ("", "calls end as functions did", whole("chat", each_choice(_old_reason))),
    ("", "the time of models is a text", of_models(_silent_models)),
)

"""Mutants of tools, reasoning, structured output, logprobs and stop strings on chat completions."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from mutants.basic import counted, put
from mutants.mutations import Event, Mutant, Mutation, body, chunks, events, status, without

__all__ = ["CHAT"]

WHOLE, STREAM = 0, 1
Change = Callable[[Any], object]


def message(change: Change, index: int = WHOLE) -> Mutation:
    return body(lambda answer: change(answer["choices"][0]["message"]), index)


def calls(change: Change, index: int = WHOLE) -> Mutation:
    return message(lambda answer: change(answer["tool_calls"]), index)


def pieces(change: Change, index: int = STREAM) -> Mutation:
    """Change the list of all fragments of calls in place."""

    def mutate(found: list[Any]) -> None:
        deltas = [choice["delta"] for data in found for choice in data["choices"]]
        change([piece for delta in deltas for piece in delta.get("tool_calls") or []])

    return chunks(mutate, index)


def reason(value: str, index: int = WHOLE) -> Mutation:
    if index == WHOLE:
        return body(put("choices", 0, "finish_reason", value), index)
    return chunks(lambda found: put(-1, "choices", 0, "finish_reason", value)(found), index)


def text(value: str, index: int = WHOLE) -> Mutation:
    """Replace the streamed content by this text, in one delta."""
    if index == WHOLE:
        return message(put("content", value), index)
    return streamed(value, index)


def streamed(value: str, index: int) -> Mutation:
    def mutate(found: list[Any]) -> None:
        deltas = [choice["delta"] for data in found for choice in data["choices"]]
        answer = [delta for delta in deltas if delta.get("content")] or [deltas[-1]]
        for place, delta in enumerate(answer):
            delta["content"] = "" if place else value

    return chunks(mutate, index)


def uncalled(answer: Any) -> None:
    del answer["tool_calls"]
    answer["content"] = "No."


def not_called(index: int = WHOLE) -> Mutation:
    return message(uncalled, index)


def not_streamed(index: int = STREAM) -> Mutation:
    def drop(found: list[Event]) -> list[Event]:
        return [
            event
            for event in found
            if event[1] == "[DONE]" or "tool_calls" not in str(event[1]["choices"][0]["delta"])
        ]

    return events(drop, index)


def named(value: str) -> Change:
    return put(0, "function", "name", value)


def again_head(found: list[Any]) -> None:
    found[1].update(id="call_again", type="function")


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
    ("tool", "the call as streamed text as well", streamed("<tool_call>{}", STREAM), "stream-no-markup"),
    ("tool", "id and type in every delta", pieces(again_head), "id-once"),
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
    ("tool-round", "its own call refused", status(400, 1), "answered"),
    ("tool-round", "parts refused", status(422, 2), "parts"),
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
FORMS: list[tuple[str, str, Mutation, str]] = [
    ("json-schema", "another city", text('{"city": "Rome", "warm": true, "kind": "place"}'), "valid"),
    ("json-schema", "a fence around the document", text("```json\n{}\n```"), "valid"),
    ("json-schema", "the document twice, streamed", text("{} {}", STREAM), "stream-valid"),
    ("json-object", "a list", text("[]"), "object"),
    ("json-object", "a streamed list", text("[]", STREAM), "stream-object"),
    ("json-cut", "`stop` for half a document", reason("stop"), "length"),
    ("json-cut", "`stop` for half a streamed document", reason("stop", STREAM), "stream-length"),
    ("json-reasoning", "prose after thinking", text("Paris."), "valid"),
    ("json-reasoning", "streamed prose after thinking", text("Paris.", STREAM), "stream-valid"),
    ("regex", "a year and more", text("2024."), "matches"),
    ("regex", "a streamed year and more", text("in 2024", STREAM), "stream-matches"),
    ("choice", "a third one", text("red"), "one-of"),
    ("choice", "a streamed third one", text("red", STREAM), "stream-one-of"),
]


def logprobs(change: Change) -> Mutation:
    return body(lambda answer: change(answer["choices"][0]["logprobs"]["content"]), WHOLE)


def streamed_logprobs(change: Change) -> Mutation:
    """Change the lists of entries of a stream in place."""

    def mutate(found: list[Any]) -> None:
        lists = [choice["logprobs"]["content"] for data in found for choice in data["choices"]]
        change([entries for entries in lists if entries])

    return chunks(mutate, STREAM)


def all_away(found: list[Any]) -> None:
    for entries in found:
        entries.clear()


LOGPROBS: list[tuple[str, str, Mutation, str]] = [
    ("logprobs-pair", "no streamed entries", streamed_logprobs(all_away), "stream-given"),
    ("logprobs-pair", "other tokens, streamed", streamed_logprobs(put(0, 0, "token", "?")), "stream-same"),
    ("logprobs-pair", "other bytes, streamed", streamed_logprobs(put(0, 0, "bytes", [63])), "stream-join"),
    ("logprobs-pair", "a value of its own", logprobs(put(0, "logprob", -0.3)), "sampled"),
    (
        "logprobs-pair",
        "a streamed value of its own",
        streamed_logprobs(put(0, 0, "logprob", -0.3)),
        "stream-sampled",
    ),
    ("logprobs-pair", "a worse token", logprobs(put(0, "top_logprobs", 1, "logprob", -0.1)), "greedy count"),
    (
        "logprobs-pair",
        "one alternative twice",
        logprobs(lambda e: e[0]["top_logprobs"].append(e[0]["top_logprobs"][1])),
        "count",
    ),
    (
        "logprobs-pair",
        "the worst first, streamed",
        streamed_logprobs(lambda f: f[0][0]["top_logprobs"].reverse()),
        "stream-count",
    ),
    (
        "logprobs-off",
        "logprobs not asked for",
        body(put("choices", 0, "logprobs", {"content": [], "refusal": None}), 0),
        "none",
    ),
    (
        "logprobs-off",
        "streamed logprobs not asked for",
        chunks(lambda f: put(1, "choices", 0, "logprobs", {"content": [], "refusal": None})(f), STREAM),
        "stream-none",
    ),
]


def late_thought(found: list[Any]) -> None:
    found[-1]["choices"][0]["delta"] = {"reasoning_content": "Hm."}


def all_thought(found: list[Any]) -> None:
    """Send content as reasoning."""
    for data in found:
        delta = data["choices"][0]["delta"]
        if delta.get("content"):
            delta["reasoning_content"] = delta.pop("content")


def at_the_end(found: list[Event]) -> list[Event]:
    """Send the text in one event, as a server that buffers to look for calls."""
    deltas = [event for _, event in found if event != "[DONE]"]
    answer = "".join(event["choices"][0]["delta"].get("content") or "" for event in deltas)
    deltas[1]["choices"][0]["delta"]["content"] = answer
    return [*found[:2], *found[-2:]]


def uncounted(answer: Any) -> None:
    answer["usage"]["completion_tokens_details"]["reasoning_tokens"] = 0


REASONING: list[tuple[str, str, Mutation, str]] = [
    ("reasoning", "markers in the content", text("</think>Hi"), "not-in-content"),
    ("reasoning", "streamed markers in the content", text("</think>Hi", STREAM), "stream-not-in-content"),
    ("reasoning", "a thought after the answer", chunks(late_thought, STREAM), "stream-first"),
    (
        "reasoning-off",
        "an answer that is called a thought",
        message(lambda m: m.update(content=None, reasoning_content=m["content"])),
        "content",
    ),
    (
        "reasoning-off",
        "a streamed answer that is called a thought",
        chunks(all_thought, STREAM),
        "stream-content",
    ),
    ("tools-stream-long", "tools turn streaming off", events(at_the_end), "pieces"),
    ("reasoning", "thoughts that cost nothing", body(uncounted, 0), "counted"),
    ("reasoning-tool", "markers in the content", text("<think>"), "apart"),
    ("reasoning-tool", "`stop` after a thought", reason("stop"), "finish"),
    ("reasoning-cut", "more than the limit", body(put("usage", "completion_tokens", 9), 0), "length usage"),
    ("reasoning-cut", "the thought as content", text("<think>Hm"), "not-in-content"),
    ("reasoning-round", "its own message refused", status(400, 1), "taken"),
    ("reasoning-round", "no more tokens", body(counted("prompt_tokens", 1), 1), "prompt"),
]
STOPPED: list[tuple[str, str, Mutation, str]] = [
    (
        "stop",
        "the stop string",
        message(lambda m: m.update(content=m["content"] + "e! 🌊"), 1),
        "absent prefix",
    ),
    ("stop", "too little text", message(put("content", "G"), 1), "prefix"),
    (
        "stop",
        "`tool_calls` for a stop string",
        body(put("choices", 0, "finish_reason", "tool_calls"), 1),
        "reason",
    ),
    (
        "stop",
        "a streamed `tool_calls`",
        chunks(lambda f: put(-1, "choices", 0, "finish_reason", "tool_calls")(f), 2),
        "stream-reason chunks",
    ),
    ("stop", "no stop at the second", message(lambda m: m.update(content="Grüße! 🌊"), 3), "any"),
    ("stop", "the streamed stop string", streamed("Grüße! 🌊", 2), "stream-absent stream-prefix"),
    ("stop", "the first half of the stop string, streamed", streamed("Grüße", 2), "stream-prefix"),
]


def lost_choice(found: list[Event]) -> list[Event]:
    return [e for e in found if e[1] == "[DONE]" or not e[1]["choices"] or e[1]["choices"][0]["index"] != 1]


def early_usage(found: list[Any]) -> None:
    found[0]["usage"] = deepcopy(found[-1]["usage"])


MANY: list[tuple[str, str, Mutation, str]] = [
    ("many", "two of three", body(lambda a: a["choices"].pop(), 1), "indexes"),
    ("many", "two of three, streamed", events(lost_choice, 2), "stream-indexes"),
    ("many", "a prompt for each", body(counted("prompt_tokens", 6), 1), "prompt-once"),
    (
        "many",
        "a prompt for each, streamed",
        chunks(lambda f: put(-1, "usage", "prompt_tokens", 6)(f), 2),
        "stream-prompt-once",
    ),
    ("many", "the tokens of one", body(counted("completion_tokens", 4), 1), "sum"),
    (
        "many",
        "the tokens of one, streamed",
        chunks(lambda f: put(-1, "usage", "completion_tokens", 4)(f), 2),
        "stream-sum",
    ),
    ("many", "usage in the first chunk", chunks(early_usage, 2), "stream-usage"),
]
OTHERS: list[tuple[str, str, Mutation, str]] = [
    ("unknown-field", "a crash", status(500), "no-crash"),
    ("nulls", "null refused", status(400), "taken"),
]
CHAT: list[Mutant] = [
    (f"chat/{scenario}", name, mutation, tuple(tripped.split()))
    for table in (TOOLS, FORMS, LOGPROBS, REASONING, STOPPED, MANY, OTHERS)
    for scenario, name, mutation, tripped in table
]
ERRORS: list[Mutant] = [
    ("errors/no-model", "any model will do", status(200), ("refused",)),
    ("errors/no-messages", "an answer to nothing", status(200), ("refused",)),
    ("errors/no-messages", "another type", body(put("error", "type", "oops")), ("type",)),
    ("errors/stream-refused", "a stream that begins", status(200), ("status",)),
    ("errors/hostile", "an answer to nothing", status(200, 0), ("refused",)),
    ("errors/hostile", "a crash", status(500, 6), ("refused",)),
    ("errors/hostile", "an error without a code", body(without("error", "code"), 2), ("envelope",)),
    ("errors/hostile", "dead afterwards", status(500, 8), ("served",)),
    ("errors/key", "any key will do", status(200, 1), ("refused",)),
]
CHAT += ERRORS

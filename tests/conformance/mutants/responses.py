"""Mutants of the Responses API: tools, reasoning, structured output, limits and state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mutants.basic import counted, drop_kind, put
from mutants.mutations import Event, Mutant, Mutation, body, chunk, chunks, events, status, without
from plumbline_conformance.transcript.model import Transcript

__all__ = ["RESPONSES"]

WHOLE, STREAM = 0, 1
Change = Callable[[Any], object]


def item(place: int, *path: Any) -> Mutation:
    """Set fields of an item of the non-streaming answer."""
    return body(put("output", place, *path), WHOLE)


def final(*path: Any) -> Mutation:
    """Set fields of the response in the terminal event."""
    return chunk(-1, put("response", *path), STREAM)


def every(kind: str, change: Change) -> Mutation:
    """Change every event of a type in place."""

    def mutate(found: list[Any]) -> None:
        for event in found:
            if event["type"] == kind:
                change(event)

    return chunks(mutate, STREAM)


def unknown(place: int) -> Mutation:
    """Answer 404 with an error object, as for an unknown id."""

    def refuse(answer: Any) -> None:
        answer.clear()
        answer["error"] = {"message": "none", "type": "invalid_request_error", "param": None, "code": None}

    def mutate(seen: Transcript) -> Transcript:
        return status(404, place)(body(refuse, place)(seen))

    return mutate


def reverse(answer: Any) -> None:
    answer["output"].reverse()


def more(answer: Any) -> None:
    call = answer["output"][0]
    answer["output"].append({**call, "id": "fc_more", "call_id": "call_more"})


def a_call(answer: Any) -> None:
    head = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_weather"}
    answer["output"].append({**head, "arguments": "{}", "status": "completed"})


def one_id(answer: Any) -> None:
    answer["output"][1]["call_id"] = answer["output"][0]["call_id"]


def one_item(answer: Any) -> None:
    answer["output"][1]["id"] = answer["output"][0]["id"]


def late(found: list[Event]) -> list[Event]:
    """Move the done event of the arguments before their deltas."""
    kinds = [event[0] for event in found]
    done = kinds.index("response.function_call_arguments.done")
    first = kinds.index("response.function_call_arguments.delta")
    moved = [*found[:first], found[done], *found[first:done], *found[done + 1 :]]
    for number, (_, event) in enumerate(moved[:-1]):
        event["sequence_number"] = number
    return moved


def no_parts(found: list[Event]) -> list[Event]:
    """Remove the part events of reasoning, but not of the message."""
    kept, seen = [], 0
    for event in found:
        if event[0] == "response.content_part.added":
            seen += 1
        if not (event[0] == "response.content_part.added" and seen == 1):
            kept.append(event)
    return kept


def crossed(found: list[Any]) -> None:
    """Exchange the output indexes of the two done events."""
    done = [event for event in found if event["type"] == "response.output_item.done"]
    done[0]["item"], done[1]["item"] = done[1]["item"], done[0]["item"]


Row = tuple[str, str, Mutation, str]
TOOLS: list[Row] = [
    ("tool", "arguments as an object", item(0, "arguments", {"city": "Paris"}), "arguments shape"),
    (
        "tool",
        "half of the arguments",
        final("output", 0, "arguments", '{"ci'),
        "stream-arguments done-arguments sums",
    ),
    ("tool", "a tool of its own", item(0, "name", "get_nothing"), "known-name"),
    (
        "tool",
        "one id for the item and the call",
        body(lambda r: r["output"][0].update(call_id=r["output"][0]["id"]), 0),
        "call-id",
    ),
    ("tool", "arguments done before they begin", events(late), "call-events sums"),
    ("tool", "arguments from the start", chunk(2, put("item", "arguments", "{}")), "added-empty"),
    ("tool", "no name at first", chunk(2, put("item", "name", "")), "added-empty"),
    (
        "tool",
        "done with other arguments",
        every("response.function_call_arguments.done", put("arguments", "{}")),
        "done-arguments sums",
    ),
    ("tool", "a call that goes on", item(0, "status", "in_progress"), "completed state"),
    ("tools", "one call_id for both", body(one_id, 0), "ids"),
    ("tools", "one item id for both", body(one_item, 0), "ids state"),
    ("tools", "items under each other's place", chunks(crossed), "output-index nesting sums"),
    ("tool-required", "no call", body(put("output", []), 0), "called"),
    ("tool-required", "no streamed call", final("output", []), "stream-called sums"),
    ("tool-named", "another tool", item(0, "name", "get_weather"), "called"),
    ("tool-named", "another streamed tool", final("output", 0, "name", "get_weather"), "stream-called sums"),
    ("tool-none", "a call", body(a_call, 0), "no-calls"),
    ("tool-single", "two calls", body(more, 0), "one"),
    ("tool-custom", "input beside the grammar", item(0, "input", "now"), "input"),
    (
        "tool-custom",
        "no end of the input",
        events(drop_kind("response.custom_tool_call_input.done")),
        "events",
    ),
    ("tool-round", "its own items refused", status(400, 1), "answered"),
    ("tool-round", "pairs by place alone", status(400, 2), "apart"),
    ("tool-round", "parts refused", status(422, 3), "parts"),
]


def half(event: Any) -> None:
    event["logprobs"] = event["logprobs"][:1]


FORMS: list[Row] = [
    ("reasoning", "reasoning after the message", body(reverse, 0), "first"),
    ("reasoning", "reasoning outside of a part", events(no_parts), "events nesting"),
    ("reasoning", "markers in the text", item(1, "content", 0, "text", "</think>Hi"), "not-in-text"),
    (
        "reasoning",
        "thoughts that cost nothing",
        body(put("usage", "output_tokens_details", "reasoning_tokens", 0), 0),
        "counted",
    ),
    ("reasoning-round", "its own items refused", status(400, 1), "own"),
    ("reasoning-round", "reasoning without an id refused", status(400, 2), "bare"),
    ("reasoning-round", "a crash", status(500, 4), "corrupt"),
    ("json-schema", "a document of another kind", item(0, "content", 0, "text", "{}"), "valid"),
    (
        "json-schema",
        "streamed prose",
        final("output", 0, "content", 0, "text", "Paris."),
        "stream-valid sums",
    ),
    (
        "json-schema",
        "no echo of the format",
        body(put("text", {"format": {"type": "text"}}), 0),
        "echo state",
    ),
    ("logprobs", "none", item(0, "content", 0, "logprobs", []), "given"),
    ("logprobs", "other bytes", item(0, "content", 0, "logprobs", 0, "bytes", [63]), "join"),
    (
        "logprobs",
        "the worst first",
        body(lambda r: r["output"][0]["content"][0]["logprobs"][0]["top_logprobs"].reverse(), 0),
        "ranked",
    ),
    ("logprobs", "a value of its own", item(0, "content", 0, "logprobs", 0, "logprob", -0.3), "sampled"),
    ("logprobs", "deltas with one entry each", every("response.output_text.delta", half), "deltas"),
    ("limits", "no reason", body(put("incomplete_details", None), 0), "incomplete state"),
    ("limits", "more than the limit", body(put("usage", "output_tokens", 17), 0), "incomplete usage state"),
    ("limits", "a time of completion", body(put("completed_at", 1_764_000_001), 0), "incomplete state"),
    ("limits", "a complete item", item(0, "status", "completed"), "last-item"),
    ("limits", "no echo of metadata", body(put("metadata", {}), 0), "echo state"),
    ("limits", "no end of the item", events(drop_kind("response.output_item.done")), "ended sums"),
    ("inputs", "a text that is something else", body(counted("input_tokens", 9), 0), "text chat"),
    ("inputs", "history refused", status(400, 2), "items"),
    ("inputs", "history for nothing", body(counted("input_tokens", 1), 2), "longer"),
    ("inputs", "another template", body(put("usage", "prompt_tokens", 99), 3), "chat sound"),
    ("count", "another object", body(put("object", "tokens"), 1), "object"),
    ("count", "another count", body(put("input_tokens", 99), 1), "same"),
]
STATE: list[Row] = [
    ("stored", "not found", status(404, 1), "get envelope"),
    ("stored", "found as something else", body(put("metadata", {"a": "b"}), 1), "get"),
    ("stored", "items without ids", body(without("data", 0, "id"), 2), "items objects"),
    ("stored", "items not found", unknown(2), "items"),
    ("stored", "another list", body(put("has_more", None), 2), "items objects"),
    ("stored", "another parent", body(put("previous_response_id", None), 3), "continued sound"),
    ("stored", "a parent forgotten", body(counted("input_tokens", 1), 3), "context"),
    ("stored", "cancelled after its end", status(200, 4), "cancel objects"),
    ("stored", "nothing deleted", body(put("deleted", False), 5), "delete objects"),
    ("stored", "still there", status(200, 6), "gone objects"),
    ("stored", "continued all the same", status(200, 9), "not-continued sound"),
    ("stored", "no object", body(without("object"), 3), "shape"),
    ("stored-stream", "another one later", body(put("status", "completed"), 1), "get"),
    ("unkept", "kept all the same", status(200, 1), "gone"),
    ("unkept", "another echo", body(put("store", True), 0), "echo sound"),
    ("pages", "no object", body(without("object"), 2), "shape"),
    ("pages", "one order", body(lambda page: page["data"].reverse(), 2), "order"),
    ("pages", "the first page again", body(lambda page: page["data"].clear(), 4), "after"),
    ("pages", "always more", body(put("has_more", True), 4), "has-more"),
    ("branches", "a child of its sister", body(counted("input_tokens", 99), 2), "apart"),
    ("branches", "no grandmother", body(counted("input_tokens", 3), 3), "transitive"),
]
RESPONSES: list[Mutant] = [
    (f"responses/{scenario}", name, mutation, tuple(tripped.split()))
    for table in (TOOLS, FORMS, STATE)
    for scenario, name, mutation, tripped in table
]
RESPONSES += [
    ("errors/unknown-response", "found", status(200, 0), ("refused",)),
    ("errors/unknown-response", "no error object", body(without("error", "code"), 1), ("envelope",)),
    ("errors/unknown-response", "continued from nothing", status(200, 4), ("previous",)),
    ("errors/unknown-response", "another code", body(put("error", "code", "x"), 4), ("previous",)),
]

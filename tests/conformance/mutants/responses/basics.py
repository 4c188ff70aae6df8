"""Mutants of the Responses API: tools, reasoning, structured output, limits and state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mutants.basic import counted, drop_kind, put
from mutants.mutations import Event, Mutant, Mutation, body, chunk, chunks, events, status, without
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["RESPONSES"]

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


def unknown(request: str) -> Mutation:
    """Answer 404 with an error object, as for an unknown id."""

    def refuse(answer: Any) -> None:
        answer.clear()
        answer["error"] = {"message": "none", "type": "invalid_request_error", "param": None, "code": None}

    def mutate(seen: Transcript) -> Transcript:
        return status(404, request)(body(refuse, request)(seen))

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
        body(lambda r: r["output"][0].update(call_id=r["output"][0]["id"]), WHOLE),
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
    ("tools", "one call_id for both", body(one_id, WHOLE), "ids"),
    ("tools", "one item id for both", body(one_item, WHOLE), "ids state"),
    ("tools", "items under each other's place", chunks(crossed), "output-index nesting sums"),
    ("tool-required", "no call", body(put("output", []), WHOLE), "called"),
    ("tool-required", "no streamed call", final("output", []), "stream-called sums"),
    ("tool-named", "another tool", item(0, "name", "get_weather"), "called"),
    ("tool-named", "another streamed tool", final("output", 0, "name", "get_weather"), "stream-called sums"),
    ("tool-none", "a call", body(a_call, WHOLE), "no-calls"),
    ("tool-single", "two calls", body(more, WHOLE), "one"),
    ("tool-custom", "input beside the grammar", item(0, "input", "now"), "input"),
    (
        "tool-custom",
        "no end of the input",
        events(drop_kind("response.custom_tool_call_input.done")),
        "events",
    ),
    ("tool-round", "its own items refused", status(400, "output"), "answered"),
    ("tool-round", "pairs by place alone", status(400, "output_apart"), "apart"),
    ("tool-round", "parts refused", status(422, "output_in_parts"), "parts"),
]


def half(event: Any) -> None:
    event["logprobs"] = event["logprobs"][:1]


FORMS: list[Row] = [
    ("reasoning", "reasoning after the message", body(reverse, WHOLE), "first"),
    ("reasoning", "reasoning outside of a part", events(no_parts), "events nesting"),
    ("reasoning", "markers in the text", item(1, "content", 0, "text", "</think>Hi"), "not-in-text"),
    (
        "reasoning",
        "thoughts that cost nothing",
        body(put("usage", "output_tokens_details", "reasoning_tokens", 0), WHOLE),
        "counted",
    ),
    ("reasoning-round", "its own items refused", status(400, "own"), "own"),
    ("reasoning-round", "reasoning without an id refused", status(400, "bare"), "bare"),
    ("reasoning-round", "a crash", status(500, "corrupt"), "corrupt"),
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
        body(put("text", {"format": {"type": "text"}}), WHOLE),
        "echo state",
    ),
    ("logprobs", "none", item(0, "content", 0, "logprobs", []), "given"),
    ("logprobs", "other bytes", item(0, "content", 0, "logprobs", 0, "bytes", [63]), "join"),
    (
        "logprobs",
        "the worst first",
        body(lambda r: r["output"][0]["content"][0]["logprobs"][0]["top_logprobs"].reverse(), WHOLE),
        "ranked",
    ),
    ("logprobs", "a value of its own", item(0, "content", 0, "logprobs", 0, "logprob", -0.3), "sampled"),
    ("logprobs", "deltas with one entry each", every("response.output_text.delta", half), "deltas"),
    ("limits", "no reason", body(put("incomplete_details", None), WHOLE), "incomplete state"),
    (
        "limits",
        "more than the limit",
        body(put("usage", "output_tokens", 17), WHOLE),
        "incomplete usage state",
    ),
    ("limits", "a time of completion", body(put("completed_at", 1_764_000_001), WHOLE), "incomplete state"),
    ("limits", "a complete item", item(0, "status", "completed"), "last-item"),
    ("limits", "no echo of metadata", body(put("metadata", {}), WHOLE), "echo state"),
    ("limits", "no end of the item", events(drop_kind("response.output_item.done")), "ended sums"),
    ("inputs", "a text that is something else", body(counted("input_tokens", 9), "text"), "text chat"),
    ("inputs", "history refused", status(400, "items"), "items"),
    ("inputs", "history for nothing", body(counted("input_tokens", 1), "items"), "longer"),
    ("inputs", "another template", body(put("usage", "prompt_tokens", 99), "chat"), "chat sound"),
    ("count", "another object", body(put("object", "tokens"), "count"), "object"),
    ("count", "another count", body(put("input_tokens", 99), "count"), "same"),
]
STATE: list[Row] = [
    ("stored", "not found", status(404, "get"), "get envelope"),
    ("stored", "found as something else", body(put("metadata", {"a": "b"}), "get"), "get"),
    ("stored", "items without ids", body(without("data", 0, "id"), "items"), "items objects"),
    ("stored", "items not found", unknown("items"), "items"),
    ("stored", "another list", body(put("has_more", None), "items"), "items objects"),
    ("stored", "another parent", body(put("previous_response_id", None), "continued"), "continued sound"),
    ("stored", "a parent forgotten", body(counted("input_tokens", 1), "continued"), "context"),
    ("stored", "cancelled after its end", status(200, "cancel"), "cancel objects"),
    ("stored", "nothing deleted", body(put("deleted", False), "delete"), "delete objects"),
    ("stored", "still there", status(200, "get_deleted"), "gone objects"),
    ("stored", "continued all the same", status(200, "continue_deleted"), "not-continued sound"),
    ("stored", "no object", body(without("object"), "continued"), "shape"),
    ("stored-stream", "another one later", body(put("status", "completed"), "get"), "get"),
    ("unkept", "kept all the same", status(200, "get"), "gone"),
    ("unkept", "another echo", body(put("store", True), "created"), "echo sound"),
    ("pages", "no object", body(without("object"), "oldest_first"), "shape"),
    ("pages", "one order", body(lambda page: page["data"].reverse(), "oldest_first"), "order"),
    ("pages", "the first page again", body(lambda page: page["data"].clear(), "second_page"), "after"),
    ("pages", "always more", body(put("has_more", True), "second_page"), "has-more"),
    ("branches", "a child of its sister", body(counted("input_tokens", 99), "second_child"), "apart"),
    ("branches", "no grandmother", body(counted("input_tokens", 3), "grandchild"), "transitive"),
]
RESPONSES: list[Mutant] = [
    (f"responses/{scenario}", name, mutation, tuple(tripped.split()))
    for table in (TOOLS, FORMS, STATE)
    for scenario, name, mutation, tripped in table
]
RESPONSES += [
    ("errors/unknown-response", "found", status(200, "get"), ("refused",)),
    ("errors/unknown-response", "no error object", body(without("error", "code"), "delete"), ("envelope",)),
    ("errors/unknown-response", "continued from nothing", status(200, "continue"), ("previous",)),
    ("errors/unknown-response", "another code", body(put("error", "code", "x"), "continue"), ("previous",)),
]

"""Mutants that break one member that a clause names: responses, whole and streamed."""

from __future__ import annotations

from typing import Any

from mutants.basic import put
from mutants.members import Row, likelier, missing, twice, whole
from mutants.mutations import Event, Mutant, Mutation, body, chunk, chunks, events, without
from mutants.responses.clauses import Change, entries, everywhere, of, renumbered, without_kind
from plumbline_conformance.checks.laws import STREAM, WHOLE

__all__ = ["RESPONSE_MEMBERS"]


def last(*path: Any) -> Mutation:
    """Set a member of the response in the last event."""
    return chunk(-1, put("response", *path), STREAM)


def first(*path: Any) -> Mutation:
    """Set a member of the response in the first event."""
    return chunk(0, put("response", *path), STREAM)


def every(*path: Any) -> Mutation:
    """Set a member of the response in every event that has one."""

    def change(found: list[Any]) -> None:
        for event in found:
            if "response" in event:
                put("response", *path)(event)

    return chunks(change, STREAM)


def of_item(place: int, change: Change) -> Mutation:
    """Change an item in its done event and in the last response."""

    def mutate(found: list[Any]) -> None:
        for event in found:
            if event["type"] == "response.output_item.done" and event["output_index"] == place:
                change(event["item"])
        change(found[-1]["response"]["output"][place])

    return chunks(mutate, STREAM)


def of_items(change: Change) -> Mutation:
    """Change the only item wherever an event has it."""

    def mutate(found: list[Any]) -> None:
        for event in found:
            for item in [event.get("item"), *event.get("response", {}).get("output", [])]:
                if item is not None:
                    change(item)

    return chunks(mutate, STREAM)


def ended_late(found: list[Event]) -> list[Event]:
    """Move the end of the first item behind that of the second."""
    first, second = (n for n, (kind, _) in enumerate(found) if kind == "response.output_item.done")
    found.insert(second, found.pop(first))
    return found


def incomplete_first(answer: Any) -> None:
    answer["output"][0]["status"] = "incomplete"


def one_streamed_call_id(found: list[Any]) -> None:
    first = next(event["item"]["call_id"] for event in found if event["type"] == "response.output_item.added")
    for event in found:
        for item in [event.get("item"), *event.get("response", {}).get("output", [])]:
            if item is not None:
                item["call_id"] = first


def second_alone(found: list[Event]) -> list[Event]:
    """Number the only part 1."""
    for _, event in found[:-1]:
        if "content_index" in event:
            event["content_index"] = 1
    return found


def part_of_call(found: list[Event]) -> list[Event]:
    """Put a content part around the arguments of a call."""
    names = [name for name, _ in found]
    begun = names.index("response.function_call_arguments.delta")
    ended = names.index("response.function_call_arguments.done")
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    where = {"item_id": found[begun][1]["item_id"], "output_index": 0, "content_index": 0, "part": part}
    added, done = (
        (
            f"response.content_part.{verb}",
            {"type": f"response.content_part.{verb}", "sequence_number": 0, **where},
        )
        for verb in ("added", "done")
    )
    text = {**where, "type": "response.output_text.done", "sequence_number": 0, "text": "", "logprobs": []}
    del text["part"]
    between = [added, ("response.output_text.done", text), done]
    return [*found[:begun], *between, *found[begun : ended + 1], *found[ended + 1 :]]


def other_name(found: list[Event]) -> list[Event]:
    """Name one event after another type."""
    return [(name if place != 3 else "response.odd", event) for place, (name, event) in enumerate(found)]


def late_reasoning(found: list[Any]) -> None:
    found[-1]["response"]["output"].reverse()


def completed_name(found: list[Event]) -> list[Event]:
    """Send a response that is incomplete in `response.completed`."""
    name, event = found[-2]
    event["type"] = name.replace("incomplete", "completed") if name else ""
    return [*found[:-2], (event["type"], event), found[-1]]


def whole_entries(change: Change) -> Mutation:
    def mutate(answer: Any) -> None:
        for item in answer["output"]:
            for part in item["content"]:
                for entry in part["logprobs"]:
                    change(entry)

    return body(mutate, WHOLE)


def bare_texts(found: list[Any]) -> None:
    for event in found:
        if event["type"].startswith("response.output_text"):
            event["logprobs"] = []


def no_logprobs(one: Any) -> None:
    if "logprobs" in one:
        one["logprobs"] = []


def sample(value: str) -> Change:
    """Make another text of the answer, in every event."""

    def change(found: list[Any]) -> None:
        deltas = [event for event in found if event["type"] == "response.output_text.delta"]
        for place, event in enumerate(deltas):
            event["delta"] = "" if place else value
        for event in found:
            for one in [event, event.get("part", {}), *_parts(event.get("item")), *_final(event)]:
                kind = str(one.get("type"))
                if one.get("text") and isinstance(one["text"], str) and "reasoning" not in kind:
                    one["text"] = value

    return change


def _parts(item: Any) -> list[Any]:
    return (item or {}).get("content") or []


def _final(event: Any) -> list[Any]:
    return [part for item in event.get("response", {}).get("output", []) for part in _parts(item)]


def input_of(value: object) -> Change:
    """Make another input of the custom call, in every event."""

    def change(found: list[Any]) -> None:
        deltas = [event for event in found if event["type"] == "response.custom_tool_call_input.delta"]
        for place, event in enumerate(deltas):
            event["delta"] = "" if place else value
        for event in found:
            for one in [event, event.get("item") or {}, *event.get("response", {}).get("output", [])]:
                if one.get("input"):
                    one["input"] = value

    return change


def added_call(found: list[Event]) -> list[Event]:
    """Make a call at the end of the stream."""
    names = [name for name, _ in found]
    end = len(names) - 2
    head = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_weather"}
    place = len(found[end][1]["response"]["output"])
    done = {**head, "arguments": "{}", "status": "completed"}
    where = {"sequence_number": 0, "output_index": place}
    of_call = {**where, "item_id": "fc_1", "name": "get_weather", "arguments": "{}"}
    made = [
        {
            "type": "response.output_item.added",
            **where,
            "item": {**head, "arguments": "", "status": "in_progress"},
        },
        {"type": "response.function_call_arguments.delta", **where, "item_id": "fc_1", "delta": "{}"},
        {"type": "response.function_call_arguments.done", **of_call},
        {"type": "response.output_item.done", **where, "item": done},
    ]
    found[end][1]["response"]["output"].append(done)
    return [*found[:end], *((str(event["type"]), event) for event in made), *found[end:]]


LIST = "[1]"
DETAILS = ("usage", "output_tokens_details", "reasoning_tokens")
NOTHING: dict[str, Any] = {"reason": "max_output_tokens"}
RESPONSE_MEMBERS_OF: dict[str, list[Row]] = {
    "responses/stream-text": [
        ("created as text", whole("created_at", "now"), "shape"),
        ("streamed created as text", every("created_at", "now"), "event-shapes"),
        ("no model", missing("model"), "shape"),
        ("no streamed model", chunk(0, without("response", "model"), STREAM), "event-shapes sound"),
        ("no usage", whole("usage", None), "usage"),
        ("no state of the streamed message", of_items(lambda item: item.pop("status")), "state event-shapes"),
        ("a role of its own", whole("output", 0, "role", "model"), "shape"),
        ("another id when done", of_item(0, lambda item: item.update(id="msg_x")), "nesting"),
        ("a second part alone", events(second_alone), "nesting sums"),
        (
            "a done item with another text",
            of_item(0, lambda item: item["content"][0].update(text="x")),
            "sums",
        ),
        ("a delta that is a number", of("response.output_text.delta", put("delta", 1)), "event-shapes"),
        ("the name of another event", events(other_name), "framing"),
    ],
    "responses/tool": [
        ("a response with calls that goes on", whole("status", "in_progress"), "completed state"),
        ("a reason to be incomplete", whole("incomplete_details", NOTHING), "state"),
        ("a streamed reason to be incomplete", last("incomplete_details", NOTHING), "state"),
        ("a streamed call that goes on", last("output", 0, "status", "in_progress"), "state sums"),
        ("an empty item id", whole("output", 0, "id", ""), "state"),
        (
            "an empty streamed item id",
            everywhere(
                lambda one: [
                    one.update({key: ""}) for key in ("id", "item_id") if str(one.get(key)).startswith("fc_")
                ]
            ),
            "state",
        ),
        ("no type of an item", missing("output", 0, "type"), "shape"),
        (
            "no type of a streamed item",
            of("response.output_item.added", without("item", "type")),
            "event-shapes added-empty",
        ),
        ("an item that stays open", without_kind("response.output_item.done"), "nesting sums call-events"),
        ("no call_id at first", of("response.output_item.added", put("item", "call_id", "")), "added-empty"),
        (
            "another call_id when done",
            of_item(0, lambda item: item.update(call_id="call_x")),
            "nesting added-empty",
        ),
        ("a part of a call", renumbered(part_of_call), "call-events"),
        (
            "arguments of another item",
            of("response.function_call_arguments.delta", put("item_id", "fc_x")),
            "nesting",
        ),
        (
            "another name at the end of the arguments",
            of("response.function_call_arguments.done", put("name", "look")),
            "done-arguments",
        ),
        ("a failed response in `response.completed`", last("status", "failed"), "snapshots state"),
        ("a call_id of 65 characters", whole("output", 0, "call_id", "x" * 65), "call-id"),
        (
            "a streamed call_id of 65 characters",
            of_items(lambda item: item.update(call_id="x" * 65)),
            "call-id",
        ),
        (
            "one streamed id for the item and the call",
            of_items(lambda item: item.update(call_id=item["id"])),
            "call-id",
        ),
    ],
    "responses/tools": [
        ("the first of two items incomplete", body(incomplete_first, WHOLE), "state"),
        (
            "the first of two streamed items incomplete",
            of_item(0, lambda item: item.update(status="incomplete")),
            "state",
        ),
        ("items that end in another order", renumbered(ended_late), "ended"),
        ("one call_id for both streamed calls", chunks(one_streamed_call_id, STREAM), "stream-ids"),
    ],
    "responses/tool-required": [
        ("numbers for arguments", whole("output", 0, "arguments", '{"city": 5}'), "arguments"),
    ],
    "responses/tool-none": [("a streamed call", renumbered(added_call), "no-calls")],
    "responses/tool-single": [("two streamed calls", renumbered(added_call), "one")],
    "responses/tool-custom": [
        ("input from the start", of("response.output_item.added", put("item", "input", "2")), "nesting"),
        ("another input when done", of_item(0, lambda item: item.update(input="2025")), "sums"),
        ("input as an object", whole("output", 0, "input", {}), "shape input"),
        (
            "streamed input as an object",
            of_item(0, lambda item: item.update(input={})),
            "event-shapes sums input",
        ),
        ("streamed input beside the grammar", chunks(input_of("year"), STREAM), "input"),
    ],
    "responses/limits": [
        ("a complete streamed item", of_item(0, lambda item: item.update(status="completed")), "last-item"),
        ("a cut response in `response.completed`", events(completed_name), "snapshots"),
        (
            "usage before the end",
            first(
                "usage",
                {
                    "input_tokens": 1,
                    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                    "output_tokens": 0,
                    "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": 1,
                },
            ),
            "snapshots",
        ),
        ("an early response that is completed", first("status", "completed"), "snapshots"),
        ("a time of completion at first", first("completed_at", 1_764_000_001), "snapshots"),
        ("no end of the part", without_kind("response.content_part.done"), "ended nesting"),
    ],
    "responses/reasoning": [
        ("more streamed thoughts than tokens", last(*DETAILS, 999), "snapshots"),
        ("streamed reasoning after the message", chunks(late_reasoning, STREAM), "first sums"),
        ("markers in the streamed text", chunks(sample("<think>"), STREAM), "not-in-text"),
    ],
    "responses/logprobs": [
        ("likelier than certain", whole_entries(likelier), "ranked"),
        ("one alternative twice", whole_entries(twice), "ranked"),
        ("likelier than certain, streamed", entries(likelier), "stream-ranked"),
        ("none in the stream", everywhere(no_logprobs), "given"),
        ("none before the end", chunks(bare_texts, STREAM), "deltas"),
    ],
    "responses/echoes": [
        ("another streamed temperature", every("temperature", 1.0), "state"),
        ("parallel calls on", whole("parallel_tool_calls", True), "state"),
        ("no tools at the end", last("tools", []), "state"),
        ("no instructions", whole("instructions", None), "state"),
        ("another truncation", whole("truncation", "auto"), "state"),
        ("stored all the same", whole("store", True), "state"),
        ("stored all the same, streamed", every("store", True), "state"),
    ],
    "responses/json-object": [
        ("a list", whole("output", 0, "content", 0, "text", LIST), "object"),
        ("a streamed list", chunks(sample(LIST), STREAM), "object"),
    ],
    "responses/json-schema": [
        ("no streamed echo of the format", every("text", {"format": {"type": "text"}}), "stream-echo state"),
    ],
    "responses/stored": [("another one deleted", body(put("id", "resp_x"), "delete"), "delete")],
    "responses/count": [("a count as text", body(put("input_tokens", "8"), "count"), "object same")],
}
"""By scenario: what the server does, the change, last segments of the checks that detect it."""
RESPONSE_MEMBERS: list[Mutant] = [
    (scenario, name, mutation, tuple(slugs.split()))
    for scenario, rows in RESPONSE_MEMBERS_OF.items()
    for name, mutation, slugs in rows
]

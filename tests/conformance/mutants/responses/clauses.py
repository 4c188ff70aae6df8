"""Mutants of clauses of the Responses API: streams, states, echoed parameters, ids and logprobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mutants.basic import drop_kind, put
from mutants.mutations import (
    Event,
    Mutant,
    Mutation,
    body,
    body_bytes,
    chunk,
    chunks,
    events,
)
from plumbline_conformance.checks.common import at
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["RESPONSE_CLAUSES"]

TEXT, LIMITS, LOGPROBS = "responses/stream-text", "responses/limits", "responses/logprobs"
TOOL, ECHOES, CUT = "responses/tool", "responses/echoes", "responses/json-cut"
Change = Callable[[Any], object]


def renumbered(change: Callable[[list[Event]], list[Event]]) -> Mutation:
    """Change the events of a stream and number them again."""

    def mutate(found: list[Event]) -> list[Event]:
        made = change(found)
        for number, (_, event) in enumerate(event for event in made if event[1] != "[DONE]"):
            event["sequence_number"] = number
        return made

    return events(mutate, STREAM)


def without_kind(kind: str) -> Mutation:
    return renumbered(drop_kind(kind))


def repeated(kind: str) -> Mutation:
    """Send the first event of a type twice."""

    def change(found: list[Event]) -> list[Event]:
        place = next(n for n, (name, _) in enumerate(found) if name == kind)
        name, event = found[place]
        return [*found[:place], (name, dict(event)), *found[place:]]

    return renumbered(change)


def late_delta(found: list[Event]) -> list[Event]:
    """Send the last delta of the text after its done event."""
    names = [name for name, _ in found]
    done = names.index("response.output_text.done")
    return [*found[: done - 1], found[done], found[done - 1], *found[done + 1 :]]


def of(kind: str, change: Change) -> Mutation:
    """Change the first event of a type in place."""
    return chunks(lambda found: change(next(event for event in found if event["type"] == kind)), STREAM)


def walk(value: Any, change: Change) -> None:
    """Apply a change to every object within a value."""
    if isinstance(value, dict):
        change(value)
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        walk(member, change)


def everywhere(change: Change) -> Mutation:
    """Change every object of every event in place."""
    return chunks(lambda found: walk(found, change), STREAM)


def entries(change: Change) -> Mutation:
    """Change every logprob entry of a stream in place."""
    return everywhere(lambda one: change(one) if "top_logprobs" in one and "token" in one else None)


def other_bytes(entry: Any) -> None:
    entry["bytes"] = [98]


def other_value(entry: Any) -> None:
    entry["logprob"] = -7.0


def worst_first(entry: Any) -> None:
    entry["top_logprobs"].reverse()


def alternatives(entry: Any) -> None:
    entry["top_logprobs"] *= 2


def rename(old: str, new: str) -> Change:
    def change(one: Any) -> None:
        if one.get("name") == old and "parameters" not in one:
            one["name"] = new

    return change


def spaced(found: list[Any]) -> None:
    for event in found:
        event["sequence_number"] *= 2


def completed_call(part: Any) -> None:
    """Complete an item that the limit cut, but not the response."""
    if "call_id" in part and part["status"] == "incomplete":
        part["status"] = "completed"


ENTRY = {"token": "G", "logprob": -0.5, "bytes": [71], "top_logprobs": []}
MARKUP = {
    "type": "message",
    "id": "msg_markup",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "<tool_call>{}", "annotations": [], "logprobs": []}],
}
_CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
CALL_AS_TEXT = {
    **MARKUP,
    "content": [{"type": "output_text", "text": _CALL, "annotations": [], "logprobs": []}],
}


def ended(answer: Any) -> None:
    """Call a cut response completed, in every member that shows it."""
    answer.update(status="completed", completed_at=answer["created_at"], incomplete_details=None)
    for item in answer["output"]:
        item["status"] = "completed"


def streamed_end(found: list[Event]) -> list[Event]:
    made = []
    for name, event in found:
        if name == "response.incomplete":
            name = event["type"] = "response.completed"
            ended(event["response"])
        if name == "response.output_item.done":
            event["item"]["status"] = "completed"
        made.append((name, event))
    return made


def one_name(seen: Transcript) -> Transcript:
    """Give the calls of both answers the same ids."""
    first = at(seen, WHOLE).json["output"][0]
    again = at(seen, STREAM).events[-2].json["response"]["output"][0]
    for key in ("id", "call_id"):
        old, new = (f'"{one[key]}"'.encode() for one in (again, first))
        seen = body_bytes(lambda content, old=old, new=new: content.replace(old, new), STREAM)(seen)  # type: ignore[misc]
    return seen


def no_arguments(found: list[Event]) -> list[Event]:
    """Send an empty string as arguments, and no delta."""
    kept = drop_kind("response.function_call_arguments.delta")(found)
    for _, event in kept[:-1]:
        walk(event, lambda one: one.update(arguments="") if "arguments" in one else None)
    return kept


def longer(answer: Any) -> None:
    answer["usage"]["input_tokens"] += 1
    answer["usage"]["total_tokens"] += 1


FINAL = (-1, "response")
ROWS: list[tuple[str, str, Mutation, str]] = [
    (
        "responses/call-cut",
        "half a call that is completed",
        body(put("output", -1, "status", "completed"), WHOLE),
        "incomplete",
    ),
    (
        "responses/call-cut",
        "half a streamed call that is completed",
        everywhere(completed_call),
        "stream-incomplete",
    ),
    (TEXT, "no in_progress", without_kind("response.in_progress"), "begun"),
    (TEXT, "gaps between numbers", chunks(spaced), "steps"),
    (TEXT, "another choice of tools by default", body(put("tool_choice", "required"), WHOLE), "state"),
    (
        TEXT,
        "another default in a snapshot",
        chunk(0, put("response", "parallel_tool_calls", False)),
        "state",
    ),
    (TEXT, "no end of the text", without_kind("response.output_text.done"), "nesting"),
    (TEXT, "two ends of the text", repeated("response.output_text.done"), "nesting"),
    (TEXT, "text after its end", renumbered(late_delta), "nesting sums"),
    (
        TEXT,
        "a part that begins with text",
        of("response.content_part.added", put("part", "text", "G")),
        "nesting",
    ),
    (
        TEXT,
        "a part that begins with logprobs",
        of("response.content_part.added", put("part", "logprobs", [ENTRY])),
        "nesting",
    ),
    (
        TEXT,
        "an item with content when added",
        of("response.output_item.added", put("item", "content", MARKUP["content"])),
        "nesting",
    ),
    (
        TEXT,
        "an item that ends in progress",
        of("response.output_item.done", put("item", "status", "in_progress")),
        "nesting sums",
    ),
    (TEXT, "no state of the message", body(lambda a: a["output"][0].pop("status"), WHOLE), "state shape"),
    (
        TEXT,
        "a streamed end with an error",
        chunk(-1, put("response", "error", {"code": "server_error", "message": "m"})),
        "state",
    ),
    (
        TEXT,
        "a streamed time of completion",
        chunk(-1, put("response", "completed_at", 1_764_000_001)),
        "state",
    ),
    (TEXT, "no streamed reason", chunk(-1, put("response", "incomplete_details", None)), "state"),
    (
        TEXT,
        "more than the limit, streamed",
        chunk(
            -1,
            put(
                "response",
                "usage",
                {
                    "input_tokens": 2,
                    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                    "output_tokens": 17,
                    "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": 19,
                },
            ),
        ),
        "state",
    ),
    (LOGPROBS, "other streamed bytes", entries(other_bytes), "stream-join"),
    (LOGPROBS, "a streamed value of its own", entries(other_value), "stream-sampled"),
    (LOGPROBS, "the worst first, streamed", entries(worst_first), "stream-ranked"),
    (LOGPROBS, "each alternative twice, streamed", entries(alternatives), "stream-ranked"),
    (
        LIMITS,
        "logprobs not asked for",
        body(put("output", 0, "content", 0, "logprobs", [ENTRY]), WHOLE),
        "no-logprobs",
    ),
    (
        LIMITS,
        "streamed logprobs not asked for",
        of(
            "response.output_text.delta",
            put("logprobs", [{"token": "G", "logprob": -0.5, "top_logprobs": []}]),
        ),
        "stream-no-logprobs",
    ),
    (
        LIMITS,
        "another prompt in the stream",
        chunk(-1, lambda event: longer(event["response"])),
        "same-usage",
    ),
    (TOOL, "another prompt in the stream", chunk(-1, lambda event: longer(event["response"])), "same-usage"),
    (TOOL, "the ids of an earlier response", one_name, "new-ids"),
    (
        TOOL,
        "the markup of a call in the text",
        body(lambda a: a["output"].append(MARKUP), WHOLE),
        "no-markup",
    ),
    (TOOL, "the call as text alone", body(lambda a: a.update(output=[CALL_AS_TEXT]), WHOLE), "no-markup"),
    (
        TOOL,
        "the markup of a call in the streamed text",
        chunk(-1, lambda e: e["response"]["output"].append(MARKUP)),
        "no-markup sums",
    ),
    (
        "responses/tool-required",
        "the markup of a required call in the text",
        body(lambda a: a["output"].append(MARKUP), WHOLE),
        "no-markup",
    ),
    (TOOL, "a streamed tool of its own", everywhere(rename("get_weather", "look")), "stream-known-name"),
    (
        "responses/tool-allowed",
        "a tool that is not allowed",
        body(put("output", 0, "name", "get_weather"), WHOLE),
        "called",
    ),
    (
        "responses/tool-allowed",
        "a streamed tool that is not allowed",
        everywhere(rename("get_time", "get_weather")),
        "stream-called state",
    ),
    ("responses/tool-empty", "no arguments", body(put("output", 0, "arguments", ""), WHOLE), "arguments"),
    ("responses/tool-empty", "no streamed arguments", renumbered(no_arguments), "stream-arguments"),
    (ECHOES, "another temperature", body(put("temperature", 1.0), WHOLE), "state"),
    (ECHOES, "no tools", body(put("tools", []), WHOLE), "state"),
    (ECHOES, "another top_p", body(put("top_p", 1.0), WHOLE), "state"),
    (ECHOES, "another choice of tools", body(put("tool_choice", "auto"), WHOLE), "state"),
    (ECHOES, "no instructions at first", chunk(0, put("response", "instructions", None)), "state"),
    (ECHOES, "other metadata at the end", chunk(-1, put("response", "metadata", {})), "state"),
    (ECHOES, "one label of two", body(put("safety_identifier", None), WHOLE), "labels"),
    (ECHOES, "one streamed label of two", chunk(-1, put("response", "prompt_cache_key", None)), "labels"),
    (CUT, "a cut document that is completed", body(ended, WHOLE), "incomplete"),
    (CUT, "a cut streamed document that is completed", events(streamed_end), "incomplete"),
]
"""(scenario, what the server does, the change, last segments of the checks that detect it)."""
RESPONSE_CLAUSES: list[Mutant] = [
    (scenario, name, mutation, tuple(slugs.split())) for scenario, name, mutation, slugs in ROWS
]

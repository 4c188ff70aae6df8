"""Mutants that refuse ordinary forms, name other alternatives, count too little, and answer out of order."""

from __future__ import annotations

from typing import Any

from mutants.basic import counted
from mutants.chat.features import logprobs, streamed_logprobs
from mutants.mutations import Mutant, Mutation, body, body_bytes, changed, chunks, each, status
from mutants.state import buffered
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.transcript.exchange import PIPE_SILENT, Exchange, Transcript

__all__ = ["ORDINARY"]

Row = tuple[str, str, Mutation, str]
OTHERS = [
    {"token": "q", "logprob": -4.0, "bytes": [113]},
    {"token": "z", "logprob": -5.0, "bytes": [122]},
]
"""Alternatives of another place, which have neither the token nor likelier ones."""


def refused_with(member: str, kind: type) -> Mutation:
    """Refuse the requests whose member is of a type."""

    def mutate(seen: Transcript) -> Transcript:
        found = [
            changed(one, status=400) if isinstance((one.request_json or {}).get(member), kind) else one
            for one in seen.exchanges
        ]
        return Transcript(scenario=seen.scenario, exchanges=found)

    return mutate


def other_place(entries: list[Any]) -> None:
    entries[1]["top_logprobs"] = OTHERS


def other_streamed_place(lists: list[Any]) -> None:
    lists[1][0]["top_logprobs"] = OTHERS


def other_entries(answer: Any) -> None:
    for item in answer["output"]:
        for part in item.get("content", ()):
            part["logprobs"][1]["top_logprobs"] = OTHERS


def other_streamed_entries(found: list[Any]) -> None:
    """Change all copies of the second entry, as one writer makes them all."""
    seen = 0
    for event in found:
        for entry in event.get("logprobs") or ():
            seen += 1
            if event["type"].endswith("delta") and seen == 2:
                entry["top_logprobs"] = OTHERS
        if event["type"].endswith("text.done"):
            event["logprobs"][1]["top_logprobs"] = OTHERS
        if event["type"].endswith("part.done"):
            event["part"]["logprobs"][1]["top_logprobs"] = OTHERS
        for holder in (event, event.get("response") or {}):
            other_entries({"output": [holder["item"]] if "item" in holder else holder.get("output", [])})


def uncounted(answer: Any) -> None:
    """Count five tokens less."""
    for name in ("output_tokens", "total_tokens"):
        answer["usage"][name] -= 5


def uncounted_at_end(found: list[Any]) -> None:
    uncounted(next(event["response"] for event in reversed(found) if "response" in event))


def a_completion(_: bytes) -> bytes:
    return b'{"id": "chatcmpl-1", "object": "chat.completion", "choices": []}'


def silent(exchange: Exchange) -> Exchange:
    return changed(exchange, status=0, headers=[], frames=[], error=f"{PIPE_SILENT} within 10 s")


ROWS: list[Row] = [
    ("chat/fields", "refuses parts of the system", status(400, "system parts"), "ordinary"),
    ("chat/fields", "refuses the format of text", status(400, "response_format text"), "ordinary"),
    ("responses/fields", "refuses names of users", status(400, "user"), "ordinary"),
    ("responses/fields", "refuses parts", status(400, "parts"), "ordinary"),
    ("responses/fields", "refuses the format of text", status(400, "text format"), "ordinary"),
    ("messages/fields", "refuses marks of the cache", status(400, "a cached part"), "ordinary"),
    ("messages/inputs", "refuses neighbours", status(400, "neighbours"), "ordinary"),
    ("messages/members", "refuses a system of blocks", refused_with("system", list), "ordinary"),
    ("messages/fields", "refuses results of blocks", status(400, "a result of blocks"), "ordinary"),
    ("messages/tool", "refuses to forbid calls", status(400, "none"), "ordinary"),
    ("completions/id-lists", "refuses token ids", status(400, "one_list"), "ordinary"),
    ("completions/limits", "refuses a limit of 0", status(400, "none"), "ordinary"),
    ("chat/completion-limit", "refuses the newer limit", status(400, WHOLE), "ordinary"),
    ("chat/logprobs-pair", "alternatives of another place", logprobs(other_place), "nearest"),
    (
        "chat/logprobs-pair",
        "streamed alternatives of another place",
        streamed_logprobs(other_streamed_place),
        "stream-nearest",
    ),
    ("responses/logprobs", "alternatives of another place", body(other_entries, WHOLE), "nearest"),
    (
        "responses/logprobs",
        "streamed alternatives of another place",
        chunks(other_streamed_entries, STREAM),
        "stream-nearest",
    ),
    ("completions/stream-long", "holds a stream back", buffered(2.0, 64), "incremental"),
    ("messages/stream-long", "holds a stream back", buffered(2.0, 64), "incremental sound"),
    *(
        row
        for slug in ("limits", "reasoning-cut")
        for row in (
            (f"responses/{slug}", "thoughts that are not counted", body(uncounted, WHOLE), "reached"),
            (
                f"responses/{slug}",
                "streamed thoughts that are not counted",
                chunks(uncounted_at_end, STREAM),
                "stream-reached",
            ),
        )
    ),
    ("chat/pipelined", "an answer to another request", body_bytes(a_completion, "answer"), "in-order"),
    ("chat/pipelined", "deaf after a refusal", each("refusal", silent), "in-order"),
    (
        "responses/conversation-changes",
        "remembers what was deleted",
        body(counted("input_tokens", 9000), "shorter"),
        "forgotten learnt",
    ),
    (
        "responses/conversation-changes",
        "overlooks what was added",
        body(counted("input_tokens", 2), "longer"),
        "learnt",
    ),
]
ORDINARY: list[Mutant] = [
    (scenario, name, mutation, tuple(slugs.split())) for scenario, name, mutation, slugs in ROWS
]

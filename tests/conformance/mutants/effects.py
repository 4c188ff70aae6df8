"""Mutants that ignore a field of the request, and those of several choices."""

from __future__ import annotations

from typing import Any

from mutants.basic import counted, put
from mutants.mutations import LAST, Mutant, Mutation, body, body_bytes, chunks, header, without
from mutants.responses.clauses import entries, walk
from plumbline_conformance.checks.common import at
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["EFFECTS"]

CHOICES, PAIR, USAGE = "chat/tool-choices", "chat/logprobs-pair", "chat/stream-usage"
JSON, SSE = "application/json", "text/event-stream"


def another_text(seen: Transcript) -> Transcript:
    """Answer every request with another text."""
    for one in seen.exchanges:
        seen = body(put("choices", 0, "message", "content", f"text of {one.name}"), one.name)(seen)
    return seen


def another_token(found: list[Any]) -> None:
    """Stream another token at the end of the text."""
    filled = [data for data in found if (data["choices"][0]["logprobs"] or {}).get("content")]
    filled[-1]["choices"][0]["logprobs"]["content"][-1].update(token="b", bytes=[98])


def fewer(entry: Any) -> None:
    if "top_logprobs" in entry and "token" in entry:
        entry["top_logprobs"] = entry["top_logprobs"][:1]


def of_usage(kind: str, number: int) -> Mutation:
    """Change a count in the usage of a stream, and the total with it."""

    def change(found: list[Any]) -> None:
        usage = found[-1]["usage"]
        usage["total_tokens"] += number - usage[kind]
        usage[kind] = number

    return chunks(change, STREAM)


def without_call(answer: Any) -> None:
    del answer["choices"][1]["message"]["tool_calls"]
    answer["choices"][1].update(finish_reason="stop")


def stopped(place: int) -> Mutation:
    """Finish the second choice like a text that a filter cut."""
    return body(put("choices", place, "finish_reason", "content_filter"), WHOLE)


def of_choice(found: list[Any], place: int) -> list[Any]:
    return [one for data in found for one in data["choices"] if one["index"] == place]


def no_streamed_call(found: list[Any]) -> None:
    for one in of_choice(found, 1):
        one["delta"].pop("tool_calls", None)
        one["finish_reason"] = one["finish_reason"] and "stop"


def streamed_filter(found: list[Any]) -> None:
    of_choice(found, 1)[-1]["finish_reason"] = "content_filter"


def counted_on(found: list[Any]) -> None:
    """Number the calls of the second choice after those of the first."""
    for one in of_choice(found, 1):
        for call in one["delta"].get("tool_calls", []):
            call["index"] += 1


def one_id(answer: Any) -> None:
    first, second = (one["message"]["tool_calls"][0] for one in answer["choices"])
    second["id"] = first["id"]


def one_streamed_id(found: list[Any]) -> None:
    for data in found:
        walk(data, lambda one: one.update(id="call_1") if str(one.get("id")).startswith("call_") else None)


def earlier_ids(seen: Transcript) -> Transcript:
    """Give the calls of the stream the ids of the answer without streaming."""
    [first] = at(seen, WHOLE).json["choices"][0]["message"]["tool_calls"]
    calls = [data["choices"][0]["delta"].get("tool_calls") for data in at(seen, STREAM).chunks]
    again = next(call[0]["id"] for call in calls if call)
    return body_bytes(lambda old: old.replace(again.encode(), first["id"].encode()), STREAM)(seen)


def all_first(found: list[Any]) -> None:
    """Stream the texts of all prompts as one choice."""
    for data in found:
        for one in data["choices"]:
            one["index"] = 0
            one["finish_reason"] = None
    found[-1]["choices"][0]["finish_reason"] = "stop"


def counted_unasked(found: list[Any]) -> None:
    found[-1]["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def swapped(answer: Any) -> None:
    """Give the first and the last choice the text of each other."""
    first, last = answer["choices"][0], answer["choices"][-1]
    first["text"], last["text"] = last["text"], first["text"]


def twice_finished(found: list[Any]) -> None:
    found[0]["choices"][0]["finish_reason"] = "stop"


def whole_entries(answer: Any) -> None:
    walk(answer, fewer)


def bytewise(answer: Any) -> None:
    """Count bytes instead of characters."""
    lists = answer["choices"][0]["logprobs"]
    ends = [0]
    for token in lists["tokens"]:
        ends.append(ends[-1] + len(token.encode()))
    lists["text_offset"] = [min(end, len(lists["tokens"])) for end in ends[:-1]]


def stuck(found: list[Any]) -> None:
    """Repeat the first offset of a chunk for all of its tokens."""
    for data in found:
        lists = data["choices"][0]["logprobs"]
        if lists is not None:
            lists["text_offset"] = [lists["text_offset"][0]] * len(lists["text_offset"])


ROWS: list[tuple[str, str, Mutation, str]] = [
    ("chat/seed", "no seed", another_text, "repeated"),
    (
        "chat/roles",
        "deaf to system messages",
        body(counted("prompt_tokens", 9), "long_system"),
        "system-read",
    ),
    (
        "chat/roles",
        "deaf to developer messages",
        body(counted("prompt_tokens", 9), "long_developer"),
        "developer-read",
    ),
    ("chat/bias", "ignores logit_bias in a stream", chunks(another_token, STREAM), "stream-forced"),
    (PAIR, "one alternative of two", body(whole_entries, WHOLE), "as-many"),
    (
        PAIR,
        "one streamed alternative of two",
        chunks(lambda found: walk(found, fewer), STREAM),
        "stream-as-many",
    ),
    ("responses/logprobs", "one alternative of two", body(whole_entries, WHOLE), "as-many"),
    ("responses/logprobs", "one streamed alternative of two", entries(fewer), "stream-as-many"),
    (USAGE, "more than the limit", of_usage("completion_tokens", 5), "length"),
    (USAGE, "`length` too soon", of_usage("completion_tokens", 2), "length"),
    (USAGE, "another prompt in the stream", of_usage("prompt_tokens", 7), "same-prompt"),
    (
        USAGE,
        "more cached than sent",
        chunks(lambda found: found[-1]["usage"].update(prompt_tokens_details={"cached_tokens": 99}), STREAM),
        "last",
    ),
    (CHOICES, "a call in the first choice alone", body(without_call, WHOLE), "called"),
    (CHOICES, "one choice of two", body(lambda a: a["choices"].pop(), WHOLE), "called shape"),
    (CHOICES, "a streamed call in the first choice alone", chunks(no_streamed_call, STREAM), "stream-called"),
    (CHOICES, "`content_filter` in the second choice", stopped(1), "finish"),
    (
        CHOICES,
        "`content_filter` in the second streamed choice",
        chunks(streamed_filter, STREAM),
        "stream-finish",
    ),
    (CHOICES, "calls counted over all choices", chunks(counted_on, STREAM), "index"),
    (CHOICES, "one id in both choices", body(one_id, WHOLE), "ids"),
    (CHOICES, "one id in both streamed choices", chunks(one_streamed_id, STREAM), "stream-ids"),
    ("chat/tool", "the ids of an earlier answer", earlier_ids, "new-ids"),
    ("completions/text", "text/html", header("content-type", "text/html"), "content-type"),
    ("completions/stream", "a stream as JSON", header("content-type", JSON), "content-type"),
    ("responses/stream-text", "an answer as a stream", header("content-type", SSE, WHOLE), "json"),
    ("completions/choices", "no kind", body(without("object"), WHOLE), "shape"),
    (
        "completions/choices",
        "two choices with one index",
        body(put("choices", 1, "index", 0), WHOLE),
        "indexes",
    ),
    ("completions/choices", "the prompt of another", body(swapped, WHOLE), "order"),
    ("completions/choices", "four streamed as one", chunks(all_first), "stream-indexes"),
    ("completions/choices", "a streamed choice that finishes twice", chunks(twice_finished), "stream-finish"),
    ("completions/stream", "two prompts in one choice", chunks(all_first), "indexes"),
    ("completions/stream", "usage not asked for", chunks(counted_unasked), "no-usage"),
    ("completions/stream", "a choice that finishes twice", chunks(twice_finished), "finish"),
    (
        "completions/stream",
        "another model at the end",
        chunks(lambda found: found[-1].update(model="m")),
        "shape",
    ),
    (
        "completions/bias",
        "ignores logit_bias",
        body(put("choices", 0, "logprobs", "tokens", 0, "b"), LAST),
        "forced sound",
    ),
    ("completions/logprobs", "offsets in bytes", body(bytewise, WHOLE), "offsets"),
    ("completions/logprobs", "one offset for each chunk", chunks(stuck, STREAM), "stream-offsets"),
]
EFFECTS: list[Mutant] = [
    (scenario, name, mutation, tuple(slugs.split())) for scenario, name, mutation, slugs in ROWS
]
"""(scenario, what the server does, the change, last segments of the checks that detect it)."""

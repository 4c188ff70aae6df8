"""Mutants that break one clause of a rule and keep its other clauses."""

from __future__ import annotations

from typing import Any

from mutants.basic import counted, put
from mutants.mutations import Mutant, Mutation, again, body, chunk, chunks, events, status, without
from plumbline_conformance.checks.common import at
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["CLAUSES"]


TEXT, LIMITS = "responses/stream-text", "responses/limits"
DETAILS = ("usage", "input_tokens_details")


def cached(details: str, count: int) -> Any:
    """Claim more cached tokens than the prompt has."""
    return lambda answer: answer["usage"].update({details: {"cached_tokens": count}})


def at_added(key: str, value: str) -> Any:
    """Add the item with another value."""

    def change(found: list[Any]) -> None:
        added = next(event for event in found if event["type"] == "response.output_item.added")
        added["item"][key] = value

    return change


def another_token(answer: Any) -> None:
    entries = answer["choices"][0]["logprobs"]["content"]
    entries[-1].update(token="b", bytes=[98])


def other_part(found: list[Any]) -> None:
    done = next(event for event in found if event["type"] == "response.content_part.done")
    done["part"]["text"] += "?"


def other_one(page: Any) -> Any:
    return {**page["data"][0], "id": "chatcmpl-other", "metadata": {"filter": "other"}}


def nameless(found: list[Any]) -> None:
    for data in found:
        del data["system_fingerprint"]


def templated(answer: Any) -> None:
    """Add a chat template to the prompt: counted, and echoed."""
    for choice in answer["choices"]:
        before, lists = "user: ", choice["logprobs"]
        choice["text"] = before + choice["text"]
        lists["tokens"][:0] = list(before)
        lists["token_logprobs"][:0] = [-0.5] * len(before)
        lists["top_logprobs"][:0] = [{char: -0.5} for char in before]
        lists["text_offset"] = list(range(len(lists["tokens"])))
        for kind in ("prompt", "total"):
            answer["usage"][f"{kind}_tokens"] += len(before)


def templated_count(answer: Any) -> None:
    """Add a chat template to the prompt: counted, but not echoed."""
    for kind in ("prompt", "total"):
        answer["usage"][f"{kind}_tokens"] += 12


def first_two(answer: Any) -> None:
    """Return the first candidates instead of the best, with their logprobs."""
    text = "".join(answer["choices"][0]["logprobs"]["tokens"])
    for choice, place, value in zip(answer["choices"], (1, 2), (-0.7, -0.8), strict=True):
        rotated = text[place:] + text[:place]
        whole = rotated[-3:] + rotated[:-3]
        choice["text"] = whole
        choice["logprobs"].update(tokens=list(whole), token_logprobs=[value] * len(whole))


def in_thought(answer: Any) -> None:
    message = answer["choices"][0]["message"]
    message["reasoning_content"], message["content"] = message["content"], None


def streamed_in_thought(found: list[Any]) -> None:
    for data in found:
        delta = data["choices"][0]["delta"]
        if delta.get("content"):
            delta["reasoning_content"] = delta.pop("content")


def in_one_piece(found: list[Any]) -> list[Any]:
    """Send all arguments in the first fragment of the call."""
    calls = [delta for _, data in found if data != "[DONE]" and (delta := _call(data))]
    whole = "".join(call["function"]["arguments"] for call in calls)
    calls[0]["function"]["arguments"] = whole
    return [event for event in found if event[1] == "[DONE]" or _call(event[1]) in (None, calls[0])]


def _call(data: Any) -> Any:
    calls = data["choices"][0]["delta"].get("tool_calls")
    return calls[0] if calls else None


def second(found: list[Any]) -> None:
    """Number the call by its tool in the request."""
    for data in found:
        if call := _call(data):
            call["index"] = 1


def unasked(page: Any) -> None:
    page["data"] = [item for item in page["data"] if item["role"] != "user"]


def unfiltered(seen: Transcript) -> Transcript:
    """List a completion with other metadata as well."""
    other = at(seen, "second").json
    return body(lambda page: page["data"].append(other), "list")(seen)


def turned(page: Any) -> None:
    """List the items in reverse."""
    page["data"].reverse()


def unlike(answer: Any) -> None:
    answer["choices"][0]["message"]["content"] = "other"


def one_effort(seen: Transcript) -> Transcript:
    """Answer as with the least effort."""
    least = seen.exchanges[0].json
    return body(lambda answer: answer.update(choices=least["choices"], usage=least["usage"]), "high")(seen)


def reversed_(page: Any) -> None:
    page["data"].reverse()


def twice(page: Any) -> None:
    page["data"] *= 2


REASON = ("choices", 0, "finish_reason")
ROWS: list[tuple[str, str, Mutation, str]] = [
    ("chat/metadata", "no metadata", body(without("metadata")), "echoed"),
    ("chat/metadata", "other metadata", body(put("metadata", "topic", "x")), "echoed"),
    ("chat/stream-text", "no fingerprint in the stream", chunks(nameless, STREAM), "fingerprint"),
    (
        "chat/stream-text",
        "no fingerprint but in the stream",
        body(without("system_fingerprint"), WHOLE),
        "fingerprint",
    ),
    (
        "chat/stream-text",
        "two fingerprints",
        chunk(1, put("system_fingerprint", "fp_2"), STREAM),
        "one-fingerprint",
    ),
    ("chat/function-role", "a crash at a function", status(500, "short"), "taken"),
    ("chat/function-role", "deaf to functions", body(counted("prompt_tokens", 9), "long"), "read"),
    ("chat/prefill", "an answer within a thought", body(in_thought, WHOLE), "content"),
    (
        "chat/prefill",
        "an answer within a streamed thought",
        chunks(streamed_in_thought, STREAM),
        "stream-content",
    ),
    ("chat/call-stream-long", "arguments in one piece", events(in_one_piece), "pieces"),
    ("chat/tool-named", "the place of the tool", chunks(second), "index"),
    (
        "chat/call-cut",
        "a whole call by its reason",
        again(body(put(*REASON, "tool_calls"), WHOLE)),
        "length same-as-whole",
    ),
    (
        "chat/call-cut",
        "a whole streamed call by its reason",
        again(chunk(-1, put(*REASON, "tool_calls"), STREAM)),
        "stream-length same-as-whole",
    ),
    ("responses/stored-call", "calls are not kept", status(400, "output"), "answered"),
    ("chat/stored", "kept as something else", body(unlike, "get"), "get"),
    ("chat/stored", "not found", status(404, "get"), "get envelope"),
    ("chat/stored", "unknown without a code", body(without("error", "code"), "get_unkept"), "envelope"),
    ("chat/stored", "no messages", body(put("data", []), "messages"), "messages"),
    (
        "chat/stored",
        "questions of the assistant",
        body(put("data", 0, "role", "assistant"), "messages"),
        "messages",
    ),
    ("chat/stored", "metadata for ever", body(put("metadata", "topic", "first"), "get_updated"), "updated"),
    ("chat/stored", "metadata and more", body(unlike, "update"), "updated"),
    ("chat/stored-filter", "everything listed", unfiltered, "matching"),
    (
        "chat/stored-filter",
        "another one listed",
        body(lambda page: page["data"].append(other_one(page)), "list"),
        "matching",
    ),
    ("chat/stored-filter", "nothing listed", body(put("data", []), "list"), "matching"),
    ("chat/stored-filter", "a list without its end", body(without("last_id"), "list"), "objects"),
    (
        "chat/stream-unpadded",
        "padding all the same",
        chunks(lambda found: [one.update(obfuscation="x") for one in found], STREAM),
        "absent",
    ),
    (LIMITS, "cut before the limit", body(counted("output_tokens", 1), WHOLE), "state reached"),
    ("responses/conversation-item", "an item that is not found", status(404, "item"), "get"),
    ("responses/conversation-item", "a list without its end", body(without("last_id"), "list"), "objects"),
    ("responses/conversation-item", "all items deleted", body(put("data", []), "left"), "deleted"),
    (
        "messages/tool-error",
        "a good result as an error",
        body(put("usage", "input_tokens", 999), "good"),
        "marked",
    ),
    ("chat/stored-stream", "a stream kept as something else", body(unlike, "get"), "get"),
    ("chat/stored-stream", "kept without its kind", body(without("object"), "get"), "objects"),
    ("chat/reasoning-effort", "one effort for all", one_effort, "effect"),
    ("chat/stored-pages", "newest first by default", body(reversed_, "oldest first"), "order"),
    ("chat/stored-pages", "one order", body(reversed_, "descending"), "order"),
    ("chat/stored-pages", "more than the limit", body(twice, "page"), "pages objects"),
    ("chat/stored-pages", "more after the last page", body(put("has_more", True), "end"), "pages"),
    ("chat/stored-pages", "a page without its end", body(without("last_id"), "page"), "objects"),
    ("chat/tool-default", "tools hidden", body(counted("prompt_tokens", 1), "default"), "shown"),
    ("responses/tool-default", "tools hidden", body(counted("input_tokens", 1), "default"), "shown"),
    ("chat/stored", "an empty list", body(put("data", []), "list"), "listed"),
    ("chat/stored", "everything is kept", status(200, "get_unkept"), "unkept objects"),
    ("chat/stored", "another one deleted", body(put("id", "chatcmpl-x"), "delete"), "deleted"),
    ("chat/stored", "still there", status(200, "get_deleted"), "gone objects"),
    ("completions/echo", "a chat template that is repeated", body(templated), "bare"),
    ("completions/echo", "a chat template that is counted", body(templated_count), "bare"),
    ("completions/best-of", "one for all", body(without("choices", slice(1, None)), "candidates"), "n sound"),
    ("completions/best-of", "one for two", body(without("choices", 1), "best"), "count sound"),
    ("completions/best-of", "the first candidates", body(first_two, "best"), "best"),
    (
        "completions/best-of",
        "the best alone counted",
        body(counted("completion_tokens", 16), "best"),
        "counted",
    ),
    ("responses/known-include", "nothing is included", status(400, "with_include"), "taken"),
    ("responses/item-forms", "no ids", status(400, "with_ids"), "with-ids"),
    (
        "responses/item-forms",
        "ids shown to the model",
        body(counted("input_tokens", 999), "with_ids"),
        "same-text",
    ),
    (
        "responses/item-forms",
        "messages with ids forgotten",
        body(counted("input_tokens", 9), "with_ids"),
        "same-text",
    ),
    ("responses/item-forms", "no phases", status(422, "with_phase"), "with-phase"),
    ("responses/item-forms", "no custom calls", status(400, "custom_call"), "custom-call"),
    (
        "responses/same-history",
        "the answer forgotten",
        body(counted("input_tokens", 8), "continued"),
        "same-prompt",
    ),
    ("responses/item-reference", "forgotten", body(counted("input_tokens", 6), "with_reference"), "resolved"),
    ("responses/conversation", "nameless", body(without("conversation"), "by_id"), "echo"),
    ("responses/conversation", "another one", body(put("conversation", "id", "conv_9"), "by_object"), "echo"),
    ("responses/conversation", "no memory", body(counted("input_tokens", 2), "by_object"), "prepended"),
    ("responses/conversation", "answers alone", body(unasked, "items"), "appended"),
    ("responses/conversation", "begun where it is used", status(200, "unknown"), "unknown sound"),
    ("responses/conversation", "a list without its end", body(without("last_id"), "items"), "objects"),
    (
        "responses/conversation",
        "unknown without a code",
        body(without("error", "code"), "unknown"),
        "envelope",
    ),
    (
        "responses/conversation-items",
        "metadata for ever",
        body(put("metadata", "topic", "first"), "get_updated"),
        "updated",
    ),
    ("responses/conversation-items", "begun at its update", body(put("created_at", 9), "update"), "updated"),
    ("responses/conversation-items", "oldest first in any case", body(turned, "newest_first"), "order"),
    (
        "responses/conversation-items",
        "a list without its end",
        body(without("last_id"), "newest_first"),
        "objects",
    ),
    ("responses/conversation-items", "no last page", body(put("has_more", True), "second_page"), "pages"),
    ("responses/background", "cancelled without its tools", body(without("tools"), "cancel"), "objects"),
    ("responses/phase", "a list without its end", body(without("last_id"), "items"), "objects"),
    ("responses/stored-stream", "stored without its tools", body(without("tools"), "get"), "get objects"),
    ("responses/unkept", "unknown without a code", body(without("error", "code"), "get"), "envelope"),
    (
        "responses/two-parents",
        "refused without a code",
        body(without("error", "code"), "two_parents"),
        "envelope",
    ),
    ("errors/rare-fields", "an answer without an object", body(without("object"), "prediction"), "sound"),
    ("chat/text", "more cached than sent", body(cached("prompt_tokens_details", 99)), "usage"),
    ("chat/bias", "ignores logit_bias", body(another_token, WHOLE), "forced"),
    ("chat/completion-limit", "ignores the newer name", body(counted("completion_tokens", 9)), "kept"),
    (LIMITS, "another temperature echoed", body(put("temperature", 1.0), WHOLE), "echo state"),
    (TEXT, "no cache writes", body(without(*DETAILS, "cache_write_tokens"), WHOLE), "cache-writes"),
    (TEXT, "more cached than sent", body(put(*DETAILS, "cached_tokens", 99), WHOLE), "usage"),
    (LIMITS, "more cached than sent", body(put(*DETAILS, "cached_tokens", 99), WHOLE), "usage"),
    (LIMITS, "an item done when added", chunks(at_added("status", "completed")), "nesting"),
    (LIMITS, "another type when done", chunks(at_added("type", "reasoning")), "nesting event-shapes"),
    (LIMITS, "a part that ends with another text", chunks(other_part), "sums"),
    (LIMITS, "a stream without usage", chunks(put(-1, "response", "usage", None)), "snapshots"),
    (
        LIMITS,
        "a streamed total of its own",
        chunks(put(-1, "response", "usage", "total_tokens", 7)),
        "snapshots",
    ),
    (
        LIMITS,
        "more cached than sent in a stream",
        chunks(put(-1, "response", *DETAILS, "cached_tokens", 99)),
        "snapshots",
    ),
]
"""(scenario, what the server does, the change, last segments of the checks that detect it)."""
CLAUSES: list[Mutant] = [
    (scenario, name, mutation, tuple(tripped.split())) for scenario, name, mutation, tripped in ROWS
]

"""Mutants of reasoning, structured output, logprobs and stop strings on chat completions."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from mutants.basic import counted, put
from mutants.chat.changes import STREAM, WHOLE, Change, message, reason, streamed, text
from mutants.chat.tools import TOOLS
from mutants.mutations import Event, Mutant, Mutation, body, chunks, events, header, status, without

__all__ = ["CHAT"]

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
    ("json-reasoning-off", "a list with reasoning off", text("[]"), "object"),
    ("json-reasoning-off", "a streamed list with reasoning off", text("[]", STREAM), "stream-object"),
    ("json-markup", "markup taken out", text('{"text": ""}'), "valid"),
    ("json-markup", "streamed markup taken out", text('{"text": ""}', STREAM), "stream-valid"),
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
    ("logprobs", "tokens of the vocabulary", logprobs(put(1, "token", "\u0120x")), "join"),
    (
        "logprobs-pair",
        "streamed tokens of the vocabulary",
        streamed_logprobs(put(0, 0, "token", "\u0120x")),
        "stream-join stream-same",
    ),
    (
        "logprobs-pair",
        "an alternative less at one place",
        logprobs(lambda found: found[1]["top_logprobs"].pop()),
        "as-many",
    ),
    ("logprobs-pair", "no streamed entries", streamed_logprobs(all_away), "stream-given"),
    (
        "logprobs-pair",
        "other tokens, streamed",
        streamed_logprobs(put(0, 0, "token", "?")),
        "stream-join stream-same",
    ),
    ("logprobs-pair", "other bytes, streamed", streamed_logprobs(put(0, 0, "bytes", [63])), "stream-join"),
    ("logprobs-pair", "a value of its own", logprobs(put(0, "logprob", -0.3)), "sampled"),
    (
        "logprobs-pair",
        "a streamed value of its own",
        streamed_logprobs(put(0, 0, "logprob", -0.3)),
        "stream-sampled",
    ),
    (
        "logprobs-pair",
        "a worse token",
        logprobs(put(0, "top_logprobs", 1, "logprob", -0.1)),
        "greedy count probable",
    ),
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
        body(put("choices", 0, "logprobs", {"content": [], "refusal": None}), WHOLE),
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


def early_thought(found: list[Any]) -> None:
    found[0]["choices"][0]["delta"] = {"role": "assistant", "reasoning_content": "Hm."}


def uncounted(answer: Any) -> None:
    answer["usage"]["completion_tokens_details"]["reasoning_tokens"] = 0


def ended_in_thought(answer: Any) -> None:
    found = answer["choices"][0]
    thought = found["message"].get("reasoning_content") or ""
    found["message"].update(content=None, reasoning_content=thought[:1])
    found["finish_reason"] = "stop"


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
    (
        "json-reasoning-off",
        "a thought before the object",
        message(lambda m: m.update(reasoning_content="Hm.")),
        "none",
    ),
    (
        "json-reasoning-off",
        "a streamed thought before the object",
        chunks(early_thought, STREAM),
        "stream-none",
    ),
    ("tools-stream-long", "tools turn streaming off", events(at_the_end), "pieces"),
    ("stop-thinking", "a turn that ends in its thinking", body(ended_in_thought, WHOLE), "goes-on"),
    ("reasoning", "thoughts that cost nothing", body(uncounted, WHOLE), "counted"),
    ("reasoning-tool", "markers in the content", text("<think>"), "apart"),
    ("reasoning-tool", "`stop` after a thought", reason("stop"), "finish"),
    (
        "reasoning-cut",
        "more than the limit",
        body(put("usage", "completion_tokens", 9), WHOLE),
        "length usage",
    ),
    ("reasoning-cut", "the thought as content", text("<think>Hm"), "not-in-content"),
    ("reasoning-round", "its own message refused", status(400, "sent_back"), "taken"),
    ("reasoning-round", "no more tokens", body(counted("prompt_tokens", 1), "sent_back"), "prompt"),
]
STOPPED: list[tuple[str, str, Mutation, str]] = [
    (
        "stop",
        "the stop string",
        message(lambda m: m.update(content=m["content"] + "e! 🌊"), WHOLE),
        "absent prefix",
    ),
    ("stop", "too little text", message(put("content", "G"), WHOLE), "prefix"),
    (
        "stop",
        "`tool_calls` for a stop string",
        body(put("choices", 0, "finish_reason", "tool_calls"), WHOLE),
        "reason shape",
    ),
    (
        "stop",
        "a streamed `tool_calls`",
        chunks(lambda f: put(-1, "choices", 0, "finish_reason", "tool_calls")(f), STREAM),
        "stream-reason chunks",
    ),
    ("stop", "no stop at the second", message(lambda m: m.update(content="Grüße! 🌊"), "several"), "any"),
    ("stop", "the streamed stop string", streamed("Grüße! 🌊", STREAM), "stream-absent stream-prefix"),
    ("stop", "the first half of the stop string, streamed", streamed("Grüße", STREAM), "stream-prefix"),
]


def lost_choice(found: list[Event]) -> list[Event]:
    return [e for e in found if e[1] == "[DONE]" or not e[1]["choices"] or e[1]["choices"][0]["index"] != 1]


def early_usage(found: list[Any]) -> None:
    found[0]["usage"] = deepcopy(found[-1]["usage"])


MANY: list[tuple[str, str, Mutation, str]] = [
    ("many", "two of three", body(lambda a: a["choices"].pop(), "three"), "indexes"),
    ("many", "two of three, streamed", events(lost_choice, "stream/1"), "stream-indexes"),
    ("many", "a prompt for each", body(counted("prompt_tokens", 6), "three"), "prompt-once"),
    (
        "many",
        "a prompt for each, streamed",
        chunks(lambda f: put(-1, "usage", "prompt_tokens", 6)(f), "stream/1"),
        "stream-prompt-once",
    ),
    ("many", "the tokens of one", body(counted("completion_tokens", 4), "three"), "sum"),
    (
        "many",
        "the tokens of one, streamed",
        chunks(lambda f: put(-1, "usage", "completion_tokens", 4)(f), "stream/1"),
        "stream-sum",
    ),
    ("many", "usage in the first chunk", chunks(early_usage, "stream/1"), "stream-usage"),
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
    (
        "errors/stream-refused",
        "a refusal as a stream",
        header("content-type", "text/event-stream"),
        ("json",),
    ),
    ("errors/hostile", "an answer to nothing", status(200, "empty"), ("refused", "sound")),
    ("errors/hostile", "a crash", status(500, "deep_messages"), ("refused",)),
    ("errors/hostile", "an error without a code", body(without("error", "code"), "list"), ("envelope",)),
    ("errors/hostile", "dead afterwards", status(500, "valid"), ("served",)),
    ("errors/key", "any key will do", status(200, "wrong_key"), ("refused",)),
]
CHAT += ERRORS

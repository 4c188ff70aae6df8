"""Mutants of the scenarios that look at many values of a field."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from mutants.basic import put
from mutants.mutations import Mutant, Mutation, body, changed, chunks, each, header, status
from plumbline_conformance.checks.laws import WHOLE
from plumbline_conformance.checks.sweeps.members import NOTED
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["SWEEPS"]

Row = tuple[str, str, Mutation, str]


def where(wanted: Any, change: Any) -> Mutation:
    """Change every exchange whose request has what is wanted."""

    def mutate(seen: Transcript) -> Transcript:
        found = [change(one) if wanted(one.request_json) else one for one in seen.exchanges]
        return Transcript(scenario=seen.scenario, exchanges=found)

    return mutate


def rewritten(change: Any) -> Any:
    """Return a change of the JSON of a whole answer, or of each event of a stream."""

    def apply(exchange: Exchange) -> Exchange:
        seen = Transcript(scenario="", exchanges=[exchange])
        stream = (exchange.request_json or {}).get("stream")
        mutation = chunks(lambda found: [change(one) for one in found]) if stream else body(change)
        return mutation(seen).exchanges[0]

    return apply


def _streams_two(asked: Any) -> bool:
    return bool(asked.get("stream") and asked.get("n") == 2)


def _streams_echo(asked: Any) -> bool:
    return bool(asked.get("stream") and asked.get("echo") and isinstance(asked.get("prompt"), str))


def _unechoed(found: Any) -> None:
    for choice in found.get("choices", ()):
        choice["text"] = choice["text"].replace("In Zürich", "").replace("世界", "")


def _no_object(found: Any) -> None:
    found["object"] = "chunk"


def _no_role(found: Any) -> None:
    del found["role"]


def _whole(asked: Any) -> bool:
    return not asked.get("stream")


def _whole_document(asked: Any) -> bool:
    output = asked.get("response_format") or asked.get("text", {}).get("format") or {}
    return _whole(asked) and output.get("type") == "json_schema"


def _required(asked: Any) -> bool:
    return _whole(asked) and asked.get("tool_choice") == "required"


def _nothing(found: Any) -> None:
    found["output"] = []


def half(found: Any) -> None:
    """Leave out the end of a document."""
    for choice in found.get("choices", ()):
        if choice["message"]["content"]:
            choice["message"]["content"] = '{"city":'


def content(value: str, name: str) -> Mutation:
    def change(found: Any) -> None:
        found["choices"][0]["message"]["content"] = value

    return body(change, name)


def arguments(value: str, name: str) -> Mutation:
    def change(found: Any) -> None:
        found["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = value

    return body(change, name)


def output_text(value: str, name: str) -> Mutation:
    def change(found: Any) -> None:
        found["output"][-1]["content"][0]["text"] = value

    return body(change, name)


def stopped_late(key: str) -> Mutation:
    """Let an answer end before its last character, as if another stop string had been given."""

    def mutate(seen: Transcript) -> Transcript:
        plain = seen.exchanges[0].json

        def change(found: Any) -> None:
            if key == "messages":
                found["content"] = [{**plain["content"][0], "text": plain["content"][0]["text"][:-1]}]
            elif key == "text":
                found["choices"][0]["text"] = plain["choices"][0]["text"][:-1]
            else:
                found["choices"][0]["message"]["content"] = plain["choices"][0]["message"]["content"][:-1]

        return body(change, "long")(seen)

    return mutate


def tokens(count: int, name: str) -> Mutation:
    return body(
        put("usage", {"prompt_tokens": count, "completion_tokens": 1, "total_tokens": count + 1}), name
    )


def without_truncation(found: Any) -> None:
    del found["truncation"]


def more(key: str, count: int = 20) -> Any:
    """Count more tokens of the prompt, or fewer."""

    def change(found: Any) -> None:
        usage = found["usage"]
        usage[key] += count
        if "total_tokens" in usage:
            usage["total_tokens"] += count

    return change


def answered(name: str) -> Mutation:
    """Answer a request that has to be refused as the one at the bound."""

    def mutate(seen: Transcript) -> Transcript:
        good = next(one for one in seen.exchanges if one.name == name.removesuffix(", beyond"))
        kept = {"status": 200, "frames": good.frames, "headers": good.headers}
        return each(name, lambda one: changed(one, **kept))(seen)

    return mutate


def _rewritten(change: Any, exchange: Exchange, _: Exchange) -> Exchange:
    changed_exchange: Exchange = rewritten(change)(exchange)
    return changed_exchange


def of_answers(change: Any, *places: int) -> Mutation:
    """Change the JSON of some of the repeated answers."""

    def mutate(seen: Transcript) -> Transcript:
        for place in places:
            exchange = seen.exchanges[place]
            seen = each(exchange.name, partial(_rewritten, change, exchange))(seen)
        return seen

    return mutate


def member(**members: Any) -> Any:
    def change(found: Any) -> None:
        for holder in (found, found.get("response")):
            if isinstance(holder, dict):
                holder.update({key: value for key, value in members.items() if key in holder})

    return change


def with_id(value: str) -> Any:
    def change(found: Any) -> None:
        holder = found.get("response") if isinstance(found.get("response"), dict) else found
        if holder.get("object") in ("response", "chat.completion", "chat.completion.chunk"):
            holder["id"] = value

    return change


def one_more(answer: Any) -> None:
    """Count one token of the answer more."""
    usage = answer["usage"]
    usage["output_tokens" if "output_tokens" in usage else "completion_tokens"] += 1
    if "total_tokens" in usage:
        usage["total_tokens"] += 1


def shifted(answer: Any) -> None:
    lists = answer["choices"][0]["logprobs"]
    lists["token_logprobs"] = [None if value is None else value - 3 for value in lists["token_logprobs"]]


def notes(api: str) -> list[tuple[str, str]]:
    """Return the pairs of requests without and with notes about a turn."""
    return [(plain, noted) for noted, plain in NOTED[f"{api}/members"].items()]


BLOCK = {"content": [{"type": "text", "text": "Hm"}]}
SENT = json.dumps({"value": "hello"})
ROWS: list[Row] = [
    ("responses/stream-text", "no truncation", body(without_truncation, WHOLE), "members"),
    *(
        row
        for api, count in (
            ("chat", "prompt_tokens"),
            ("completions", "prompt_tokens"),
            ("responses", "input_tokens"),
            ("messages", "input_tokens"),
        )
        for name in ("user_id" if api == "messages" else "user",)
        for row in (
            (f"{api}/fields", "a failure of a hint", status(500, name), "handled"),
            (f"{api}/fields", "a hint that the model sees", body(more(count), name), "same-prompt"),
        )
    ),
    *(
        row
        for api, count, turn in (
            ("chat", "prompt_tokens", "user"),
            ("responses", "input_tokens", "message"),
            ("messages", "input_tokens", "user"),
        )
        for plain, noted in [next(pair for pair in notes(api) if pair[0].startswith(turn))]
        for row in (
            (f"{api}/members", "a failure of a member", status(500, plain), "handled"),
            (f"{api}/members", "a note that the model sees", body(more(count), noted), "same-prompt"),
            (f"{api}/turns", "a turn that is dropped", body(more(count, -100), "of one role, long"), "read"),
        )
    ),
    (
        "responses/turns",
        "a turn joined with the next",
        body(more("input_tokens"), "ordinary, short"),
        "as-chat",
    ),
    *(
        row
        for api, reason, other, counted in (
            ("chat", ("choices", 0, "finish_reason"), "stop", "counted"),
            ("completions", ("choices", 0, "finish_reason"), "stop", "counted"),
            ("messages", ("stop_reason",), "end_turn", "counted sound"),
        )
        for row in (
            (f"{api}/one-token", "two tokens at a limit of one", body(one_more, "one"), counted),
            (f"{api}/one-token", "an end at the limit", body(put(*reason, other), "one"), "reason"),
        )
    ),
    ("completions/echo-again", "an echo that is a place off", body(shifted, "echoed"), "same"),
    *(
        (f"{api}/counts", f"{what} not counted", body(put("input_tokens", 2), f"{part}, counted"), "same")
        for api, part, what in (
            ("messages", "history", "results"),
            ("messages", "system", "a system"),
            ("responses", "tools", "tools"),
            ("responses", "instructions", "instructions"),
        )
    ),
    ("chat/empty", "a bias needs a member", status(400, "logit_bias"), "taken"),
    ("completions/empty", "a bias needs a member", status(400, "logit_bias"), "taken"),
    ("responses/empty", "a text needs a format", status(400, "text"), "taken"),
    ("messages/empty", "metadata need a member", status(400, "metadata"), "taken"),
    ("chat/pairs", "half a document", where(_whole_document, rewritten(half)), "content"),
    (
        "completions/pairs",
        "two choices of another object",
        where(_streams_two, rewritten(_no_object)),
        "laws",
    ),
    (
        "completions/pairs",
        "streams without their echo",
        where(_streams_echo, rewritten(_unechoed)),
        "laws",
    ),
    ("responses/pairs", "an object of another kind", where(_whole, rewritten(_no_object)), "laws"),
    ("responses/pairs", "no call where one is required", where(_required, rewritten(_nothing)), "content"),
    ("messages/pairs", "messages without a role", where(_whole, rewritten(_no_role)), "laws"),
    ("chat/stops", "the stop string that begins last", stopped_late("content"), "cut"),
    ("completions/stops", "the stop string that begins last", stopped_late("text"), "cut"),
    ("messages/stops", "the stop string that begins last", stopped_late("messages"), "cut"),
    (
        "chat/pairs",
        "streams of two choices of another object",
        where(_streams_two, rewritten(_no_object)),
        "laws",
    ),
    ("chat/json-keywords", "a value that the pattern does not allow", content(SENT, "pattern"), "valid"),
    ("chat/json-keywords", "a number beyond its bounds", content('{"value": 1000}', "bounds"), "valid"),
    ("chat/json-keywords", "a date that is none", content('{"value": "tomorrow"}', "format"), "valid"),
    ("chat/tool-keywords", "arguments that the pattern does not allow", arguments(SENT, "pattern"), "valid"),
    (
        "responses/json-keywords",
        "text that the pattern does not allow",
        output_text(SENT, "pattern"),
        "valid",
    ),
    ("chat/scripts", "no token for Han characters", tokens(8, "Han"), "read"),
    ("chat/scripts", "escapes that are read as their characters", tokens(400, "plain"), "same"),
    (
        "completions/echo-text",
        "an echo without what is not ASCII",
        body(put("choices", 0, "text", "Gre,")),
        "whole",
    ),
    ("chat/long-prompts", "a prompt that is cut at 400 tokens", tokens(400, "800 words"), "whole"),
    ("chat/long-prompts", "a history without its oldest messages", tokens(300, "32 turns"), "whole"),
    ("errors/methods", "an answer to PUT", status(200, "put"), "refused"),
    ("errors/methods", "status 405 alone", header("allow", None, "put"), "allowed"),
    ("errors/methods", "a failure of OPTIONS", status(500, "options"), "known"),
    ("errors/methods", "a refusal in plain text", header("content-type", None, "put"), "json"),
    ("chat/repeats", "one id for two answers", of_answers(with_id("chatcmpl-one"), 0, 2), "ids"),
    ("chat/repeats", "a time that goes back", of_answers(member(created=1_000_000_000), 4), "times"),
    ("chat/repeats", "another name of the model", of_answers(member(model="other"), 4), "model"),
    ("responses/repeats", "one id for two answers", of_answers(with_id("resp_one"), 0, 2), "ids"),
    ("responses/repeats", "a time that goes back", of_answers(member(created_at=1_000_000_000), 4), "times"),
    ("responses/repeats", "another name of the model", of_answers(member(model="other"), 4), "model"),
    *(
        row
        for api, field, slugs in (
            ("chat", "temperature most", "refused"),
            ("completions", "temperature most", "refused"),
            ("responses", "top_logprobs least", "refused sound"),
        )
        for row in (
            (f"{api}/bounds", "a value beyond its bound, taken", answered(f"{field}, beyond"), slugs),
            (f"{api}/bounds", "a value at its bound, refused", status(400, field), "taken"),
        )
    ),
    ("messages/bounds", "a value beyond its bound, taken", answered("top_k least, beyond"), "refused"),
    ("messages/bounds", "a value at its bound, refused", status(400, "top_k least"), "taken"),
]
SWEEPS: list[Mutant] = [
    (scenario, name, mutation, tuple(slugs.split())) for scenario, name, mutation, slugs in ROWS
]

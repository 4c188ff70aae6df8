"""Mutants that name another type of a body, read one form of a request only, and write answers that are complete."""

from __future__ import annotations

import json
from typing import Any

from example_servers.good_server import transcripts

from mutants.mutations import FIRST, Mutant, Mutation, body, changed, chunk, chunks, each, header, status
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["FORMS"]

Row = tuple[str, str, Mutation, str]
TEXT = "text/plain; charset=utf-8"
SHORT = {
    "chat": "chat/text",
    "completions": "completions/text",
    "responses": "responses/stream-text",
    "messages": "messages/text",
}
"""Scenarios whose first answer is whole."""


def _as_text(name: str) -> Mutation:
    return header("content-type", TEXT, name)


def _twice(answer: Any) -> None:
    answer["data"].append(answer["data"][0])


def _emptied(answer: Any) -> None:
    answer["data"] = []


def with_one_id(seen: Transcript) -> Transcript:
    """Give all messages one id."""
    found = body(lambda answer: answer.update(id="msg_1"), None)
    return found(seen)


def _reversed(answer: Any) -> None:
    answer["choices"].reverse()


def _without_usage(answer: Any) -> None:
    answer["usage"] = None


def _counted_again(found: list[Any]) -> None:
    for event in found:
        usage = (event.get("message") or event).get("usage")
        if isinstance(usage, dict) and "input_tokens" in usage:
            usage["input_tokens"] += 16
            usage["cache_read_input_tokens"] = 16


def _later(event: Any) -> None:
    event["created"] += 2


def without_first(exchange: Exchange) -> Exchange:
    """Drop the first word of what a stop string leaves."""
    answer = json.loads(exchange.body)
    message = answer["choices"][0]["message"]
    message["content"] = message["content"].partition(" ")[2]
    return changed(exchange, frames=[(0.0, json.dumps(answer).encode())])


def _spread(exchange: Exchange, seconds: float) -> Exchange:
    """Repeat an event within a stream, which is then long, and write all events from this second on."""
    pieces = [block + b"\n\n" for block in exchange.body.split(b"\n\n") if block]
    place = 2 if exchange.path.endswith("/chat/completions") else 1
    pieces[place:place] = [pieces[place]] * 64
    return changed(exchange, frames=[(seconds + 0.005 * n, piece) for n, piece in enumerate(pieces)])


def held_back(seen: Transcript) -> Transcript:
    """Send the first event at once, and many others at the end."""
    found = _spread(seen.exchanges[0], 2.0)
    frames = [(0.1, found.frames[0][1]), (2.0, b"".join(frame for _, frame in found.frames[1:]))]
    return Transcript(scenario=seen.scenario, exchanges=[changed(found, frames=frames)])


def complete_first(whole: str) -> Mutation:
    """Answer the least limit at once, by the answer of another scenario, and write a stream when it is complete."""

    def mutate(seen: Transcript) -> Transcript:
        short = next(one for one in transcripts()[whole].exchanges if one.status == 200)
        late = _spread(seen.exchanges[0], 2.0)
        exchanges = [late]
        for number in (2, 3):
            exchanges += [
                changed(short, name=f"short/{number}", frames=[(0.2, short.body)]),
                changed(late, name=f"{STREAM}/{number}"),
            ]
        return Transcript(scenario=seen.scenario, exchanges=exchanges)

    return mutate


def of_lengths(head: str, got: str) -> Mutation:
    """Write these lengths beside HEAD and GET."""
    first, second = header("content-length", head, "head"), header("content-length", got, "list")
    return lambda seen: second(first(seen))


ROWS: list[Row] = [
    ("models/list", "a list as text", _as_text("list"), "json"),
    ("messages/text", "a message as text", _as_text(WHOLE), "json"),
    ("responses/stored", "a deletion as text", _as_text("delete"), "json"),
    ("responses/count", "a count called text", _as_text("count"), "json"),
    ("responses/compact", "a compaction as text", _as_text("compacted"), "json"),
    ("responses/conversation-item", "an item as text", _as_text("item"), "json"),
    ("responses/background-cancel", "a cancelled response as text", _as_text("cancel"), "json"),
    ("messages/count", "a count as text", _as_text("counted"), "json"),
    ("errors/responses-types", "refusals as text", _as_text(FIRST), "json"),
    ("chat/stored", "a stored chat as text", _as_text("get"), "json"),
    ("errors/wrong-types", "refusals as text", _as_text(FIRST), "json"),
    ("messages/refused", "refusals as text", _as_text("no_limit"), "json"),
    ("errors/methods", "allows what it refuses", header("allow", "GET, PUT, POST", "put"), "allowed"),
    ("errors/methods", "a HEAD of no length", of_lengths("0", "227"), "head"),
    ("errors/methods", "a HEAD of another type", header("content-type", "text/html", "head"), "head"),
    ("models/list", "a model twice", body(_twice, "list"), "once"),
    ("chat/choices", "the last choice first", body(_reversed, WHOLE), "in-order"),
    ("messages/tool", "what is cached counted twice", chunks(_counted_again, STREAM), "same-prompt"),
    ("completions/stream", "a last chunk of another time", chunk(-1, _later, STREAM), "shape"),
    ("chat/stream-long", "holds all but the role back", held_back, "incremental"),
    *(
        (
            f"{api}/stream-long",
            "pieces of a complete answer",
            complete_first(whole),
            "first sound" if api == "responses" else "first",
        )
        for api, whole in SHORT.items()
    ),
    ("chat/stored", "kept without its usage", body(_without_usage, "get"), "get"),
    ("chat/stops", "loses the first word", each("long", without_first), "cut"),
    ("chat/fields", "refuses long names", status(400, "a name of 64 characters"), "ordinary"),
    ("chat/fields", "refuses the results of two calls", status(400, "two results"), "ordinary"),
    (
        "chat/fields",
        "refuses a call beside an empty text",
        status(400, "a call beside an empty text"),
        "ordinary",
    ),
    (
        "chat/stream-text",
        "a stream of another charset",
        header("content-type", "text/event-stream; charset=iso-8859-1", STREAM),
        "content-type",
    ),
    ("messages/inputs", "one id for all", with_one_id, "ids"),
    ("responses/conversation-changes", "nothing added", body(_emptied, "added"), "added"),
    ("chat/forms", "refuses a charset", status(400, "a charset"), "taken"),
    ("messages/forms", "refuses betas", status(400, "betas"), "taken"),
]
FORMS: list[Mutant] = [
    (scenario, name, mutation, tuple(slugs.split())) for scenario, name, mutation, slugs in ROWS
]

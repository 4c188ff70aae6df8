"""Check laws that apply to every chat completion, non-streaming and streaming.

Servers use different code for tool calls, reasoning, structured output and plain text, so each of these scenarios has
the laws.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from plumbline_conformance.checks.answers import choices, chunks, deltas
from plumbline_conformance.checks.common import content_type, done_last, framing, usage_adds_up, valid_body
from plumbline_conformance.checks.identity import at_no_time
from plumbline_conformance.checks.laws import STREAM, Precondition, stream, streams, whole
from plumbline_conformance.checks.request_reader import requested_choices
from plumbline_conformance.checks.sameness import same, whole_and_streamed
from plumbline_conformance.suite.field_rules import rules_of_shape
from plumbline_conformance.suite.scenario import Inconclusive, Law, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import REASONING_KEYS, Choice, objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = [
    "CHUNKS",
    "SHAPE",
    "UNNAMED",
    "finish_once",
    "laws_of_streams",
    "one_channel",
    "order_of_choices",
    "pair",
    "same_role",
    "shape",
    "shapes",
    "streamed_laws",
    "until_out_of_order",
    "usage",
    "wire",
]

SHAPE = (*rules_of_shape("CreateChatCompletionResponse"), "CHAT-05", "CHAT-02")
CHUNKS = (*rules_of_shape("CreateChatCompletionStreamResponse"), "CS-10", "CS-13")
UNNAMED = ("SSE-05", "SSE-01", "SSE-03")
STREAMS = 12
"""Streams of several choices. Servers that start a thread for each choice send them in the order in which the threads
run; so many streams show it in nearly every run."""
Body = Callable[[Target], dict[str, object]]


def pair(slug: str, title: str, body: Body, *, needs: tuple[str, ...] = ()) -> None:
    """Register a scenario that sends a request without and with `stream`, with the laws of both answers."""

    def steps(target: Target) -> Generator[Request, Exchange, None]:
        yield from whole_and_streamed("/chat/completions", body(target), choices, choices)

    scenario(slug, title, needs=needs)(steps)

    whole(f"{slug}/shape", "Answer as the contract requires", *SHAPE)(shape)
    whole(f"{slug}/usage", "Count tokens so that the total is the sum", "CHAT-08")(usage)
    streamed_laws(slug)

    @check(f"{slug}/same-as-whole", "Stream the same content as without streaming", "CHAT-19", "CS-05")
    def same_as_whole(seen: Transcript) -> Iterator[Problem]:
        yield from same(seen, choices, choices, _broken_rule)


def _broken_rule(whole: list[Choice], streamed: list[Choice]) -> str:
    """Return CS-05 if the text differs, CHAT-19 for calls, finish reasons and the number of choices."""
    alike = len(whole) == len(streamed) and all(
        a.content == b.content for a, b in zip(whole, streamed, strict=True)
    )
    return "CHAT-19" if alike or len(whole) != len(streamed) else "CS-05"


def streamed_laws(slug: str, before: Precondition | None = None) -> None:
    """Register the laws of the stream of a scenario; see `stream`."""
    for name, title, rules, law in _STREAMED:
        stream(f"{slug}/{name}", title, *rules, before=before)(law)


def laws_of_streams(slug: str) -> None:
    """Register the same laws for each stream of a scenario that repeats one; see `streams`."""
    for name, title, rules, law in _STREAMED:
        streams(f"{slug}/{name}", title, *rules)(law)


def shape(exchange: Exchange) -> Iterator[Problem]:
    """Check the schema of the answer; the wrong field determines the rule (CHAT-01, CHAT-03, CHAT-04, CHAT-21).

    Id and model are not empty, and `tool_calls` is the reason only of a choice with calls (CHAT-05).
    """
    yield from valid_body(exchange, "CreateChatCompletionResponse")
    answer = exchange.json if isinstance(exchange.json, dict) else {}
    yield from _named(answer, "", "CHAT-01", "CHAT-21")
    yield from at_no_time(answer, "", "CHAT-01")
    indexes = [as_json(one.get("index")) for one in objects_in(answer.get("choices"))]
    if sorted(indexes) != sorted(map(repr, range(requested_choices(exchange)))):
        wanted = f"indexes 0 to {requested_choices(exchange) - 1}"
        yield Problem(expected=wanted, actual=as_json(indexes)[:200], pointer="choices", rule="CHAT-02")
    for place, one in enumerate(objects_in(answer.get("choices"))):
        message = one.get("message")
        made = isinstance(message, dict) and bool(message.get("tool_calls"))
        reason = one.get("finish_reason")
        if reason == "function_call" and not (isinstance(message, dict) and message.get("function_call")):
            where = f"choices[{place}].finish_reason"
            yield Problem(
                expected="a function call, or another reason", actual="none", pointer=where, rule="CHAT-04"
            )
        if reason == "tool_calls" and not made:
            where = f"choices[{place}].finish_reason"
            yield Problem(expected="calls, or another reason", actual="none", pointer=where, rule="CHAT-05")


def _named(body: dict[str, Any], where: str, of_id: str, of_model: str) -> Iterator[Problem]:
    """Check that id and model are not empty: an empty id names no answer."""
    for key, rule in (("id", of_id), ("model", of_model)):
        if body.get(key) == "":
            yield Problem(expected=f"a {key}", actual="''", pointer=f"{where}{key}", rule=rule)


def wire(exchange: Exchange) -> Iterator[Problem]:
    """Check content type, framing and `[DONE]` (SSE-01, SSE-03, SSE-05, SSE-07, HTTP-02)."""
    yield from content_type(exchange, "text/event-stream")
    yield from framing(exchange, named=False)
    yield from done_last(exchange)


def usage(exchange: Exchange) -> Iterator[Problem]:
    """Check that the usage adds up, and that details are not larger than their totals (CHAT-08)."""
    answer = exchange.json
    if not isinstance(answer, dict):
        raise Inconclusive("the answer is not an object; another check reports this")
    found = answer.get("usage")
    yield from usage_adds_up(found, prompt="prompt_tokens", completion="completion_tokens")
    if not isinstance(found, dict):
        return
    for details, name, total in (
        ("prompt_tokens_details", "cached_tokens", "prompt_tokens"),
        ("completion_tokens_details", "reasoning_tokens", "completion_tokens"),
    ):
        parts = found.get(details)
        part = parts.get(name) if isinstance(parts, dict) else None
        limit = found.get(total)
        if isinstance(part, int) and isinstance(limit, int) and not 0 <= part <= limit:
            yield Problem(expected=f"{name} from 0 to {limit}", actual=str(part), pointer=f"usage.{details}")


def shapes(exchange: Exchange) -> Iterator[Problem]:
    """Check the schema of every chunk, and that id and model stay the same (CS-01, CS-03, CS-14, CS-20).

    The first fragment of each call has id and name (CS-10).
    """
    found = chunks(exchange)
    for number, chunk in enumerate(found):
        yield from violations("CreateChatCompletionStreamResponse", chunk, f"event {number}, ")
        yield from at_no_time(chunk, f"event {number}, ", "CS-01")
    for key in ("id", "model"):
        values = {as_json(chunk.get(key)) for chunk in found}
        if len(values) > 1:
            shown = ", ".join(sorted(values))[:200]
            yield Problem(expected=f"one {key}", actual=shown, pointer=key, rule="CS-01")
    for chunk in found[:1]:
        yield from _named(chunk, "event 0, ", "CS-01", "CS-01")
    yield from _heads(exchange)
    for number, one in enumerate(choices(exchange)):
        if one.finish_reason == "tool_calls" and not one.calls:
            where = f"choices[{number}].finish_reason"
            yield Problem(expected="calls, or another reason", actual="none", pointer=where, rule="CS-13")


def _heads(exchange: Exchange) -> Iterator[Problem]:
    met: set[tuple[str, str]] = set()
    for number, one, delta in deltas(exchange):
        for piece in objects_in(delta.get("tool_calls")):
            place = (as_json(one.get("index")), as_json(piece.get("index")))
            function = piece.get("function") or piece.get("custom")
            name = function.get("name") if isinstance(function, dict) else None
            if place not in met and not (piece.get("id") and name):
                where = f"event {number}, choices[{one.get('index')}].delta.tool_calls"
                shown = as_json(piece)[:200]
                yield Problem(expected="id and name first", actual=shown, pointer=where, rule="CS-10")
            met.add(place)


def same_role(exchange: Exchange) -> Iterator[Problem]:
    """Check that only the first delta of a choice has the role (CS-02)."""
    met: set[object] = set()
    for number, one, delta in deltas(exchange):
        place, role = as_json(one.get("index")), delta.get("role")
        if (role is None or role == "") if place in met else role == "assistant":
            met.add(place)
            continue
        wanted = "no role" if place in met else "role assistant"
        yield Problem(expected=wanted, actual=as_json(role), pointer=f"event {number}, delta.role")
        met.add(place)


def finish_once(exchange: Exchange) -> Iterator[Problem]:
    """Check that each choice finishes exactly once (CS-03)."""
    ended: set[str] = set()
    met: set[str] = set()
    for number, one, _ in deltas(exchange):
        place = as_json(one.get("index"))
        if place in ended:
            yield Problem(expected="nothing after the finish", actual="a chunk", pointer=f"event {number}")
        met.add(place)
        if one.get("finish_reason") is not None:
            ended.add(place)
    if ended != met or not met:
        yield Problem(expected=f"{sorted(met)} finished", actual=as_json(sorted(ended)), pointer="choices")


def one_channel(exchange: Exchange) -> Iterator[Problem]:
    """Check that a delta has only one of content, reasoning and tool calls (CS-19)."""
    for number, _, delta in deltas(exchange):
        filled = [key for key in ("content", "tool_calls") if delta.get(key)]
        filled += ["reasoning"] if any(delta.get(key) for key in REASONING_KEYS) else []
        if len(filled) > 1:
            yield Problem(expected="one of them", actual=" and ".join(filled), pointer=f"event {number}")


def until_out_of_order(body: dict[str, object]) -> Generator[Request, Exchange, None]:
    """Request several streamed choices until a stream starts them out of order, at most `STREAMS` times.

    The requests are `stream/1`, `stream/2` and so on.
    """
    for number in range(1, STREAMS + 1):
        exchange = yield Request(name=f"{STREAM}/{number}", path="/chat/completions", json=body)
        if exchange.status != 200 or exchange.error is not None or exchange.failure is not None:
            return
        order = order_of_choices(exchange)
        if order != sorted(order):
            return


def order_of_choices(exchange: Exchange) -> list[str]:
    """Return the indexes of the choices of a stream, in the order in which they begin."""
    return list(dict.fromkeys(as_json(one.get("index")) for _, one, _ in deltas(exchange)))


_STREAMED: tuple[tuple[str, str, tuple[str, ...], Law], ...] = (
    (
        "wire",
        "Frame one JSON object per event, and end with one [DONE]",
        (*UNNAMED, "SSE-07", "HTTP-02"),
        wire,
    ),
    ("chunks", "Send chunks as the contract requires, under one id", CHUNKS, shapes),
    ("role-once", "Give the role in the first delta of a choice and never again", ("CS-02",), same_role),
    (
        "finish-once",
        "Finish each choice exactly once, and send nothing of it after that",
        ("CS-03",),
        finish_once,
    ),
    ("one-channel", "Put text, reasoning and calls into separate deltas", ("CS-19",), one_channel),
)

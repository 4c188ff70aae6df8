"""Check logprobs of chat completions, non-streaming and streaming."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from plumbline_conformance.checks.answers import choice, deltas, is_stream, stream_of, token_texts, whole_of
from plumbline_conformance.checks.chat.shared_laws import pair
from plumbline_conformance.checks.common import accepted
from plumbline_conformance.checks.laws import STREAM, both, stream, whole
from plumbline_conformance.checks.request_reader import greedy, request_fields, requested_top_logprobs
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.suite.scenario import Inconclusive, NotRequested, Problem, Target, Unsteady, check
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = [
    "as_many",
    "entries_of_chat",
    "nearest",
    "probable",
    "ranked",
    "sampled_in",
    "unconstrained",
]

TOP = 2
TOLERANCE = 1e-3
"""Two passes over the same tokens may add numbers in a different order."""


FORCING = {"logit_bias", "response_format", "structured_outputs", "tools", "min_tokens", "stop", "ignore_eos"}
FORCING |= {"presence_penalty", "frequency_penalty", "repetition_penalty"}
"""Fields that can make a server select a token other than the most likely one."""


def _request(target: Target) -> dict[str, object]:
    return chat(target, max_tokens=8, temperature=0, seed=1, logprobs=True, top_logprobs=TOP)


pair("chat/logprobs-pair", "Logprobs without and with streaming", _request)


def entries_of_chat(exchange: Exchange) -> list[dict[str, Any]]:
    """Return the entries of the first choice, of an answer or all chunks."""
    if is_stream(exchange):
        lists = [one.get("logprobs") for _, one, _ in deltas(exchange) if one.get("index") == 0]
    else:
        lists = [
            one.get("logprobs") for one in accepted(exchange).json.get("choices") or [] if one["index"] == 0
        ]
    contents = [one.get("content") for one in lists if isinstance(one, dict)]
    return [entry for content in contents if isinstance(content, list) for entry in content if _whole(entry)]


def _whole(entry: Any) -> bool:
    """Return whether the entry has the required fields; the schema check reports others."""
    numbers = isinstance(entry, dict) and isinstance(entry.get("logprob"), int | float)
    return numbers and isinstance(entry.get("top_logprobs"), list) and isinstance(entry.get("token"), str)


def _entries(exchange: Exchange) -> list[dict[str, Any]]:
    found = entries_of_chat(exchange)
    if not found:
        raise Inconclusive("there are no entries; another check reports this")
    return found


@stream("chat/logprobs-pair/stream-given", "Stream entries for the tokens of the content", "CS-14")
def _given(exchange: Exchange) -> Iterator[Problem]:
    if not entries_of_chat(exchange) and choice(exchange).content:
        yield Problem(expected="entries", actual="none", pointer="choices[0].logprobs.content")


@check(
    "chat/logprobs-pair/stream-same",
    "Stream the same entries as without streaming",
    "CS-14",
    request=STREAM,
)
def pair_same(seen: Transcript) -> Iterator[Problem]:
    wanted, found = (
        [one["token"] for one in _entries(answer)] for answer in (whole_of(seen), stream_of(seen))
    )
    if choice(whole_of(seen)).content != choice(stream_of(seen)).content:
        raise Unsteady
    if wanted != found:
        yield Problem(expected=as_json(wanted)[:200], actual=as_json(found)[:200], pointer="token")


@stream("chat/logprobs-pair/stream-join", "Stream entries whose bytes join to the content", "LP-03")
def _joined(exchange: Exchange) -> Iterator[Problem]:
    found = _entries(exchange)
    answer = choice(exchange)
    if wrong := list(token_texts(found)):
        yield from wrong
        return
    if answer.reasoning or answer.calls or not all(isinstance(one.get("bytes"), list) for one in found):
        raise Inconclusive("the entries have no bytes, or cover more than the content")
    if answer.finish_reason == "stop" and request_fields(exchange).get("stop"):
        raise Inconclusive("tokens that a stop string cut have entries, too")
    parts = [bytes(byte % 256 for byte in one["bytes"] if isinstance(byte, int)) for one in found]
    ends = [parts] if answer.finish_reason == "length" else [parts, parts[:-1]]
    texts = [b"".join(end).decode("utf-8", "replace").rstrip("\ufffd") for end in ends]
    if answer.content.rstrip("\ufffd") not in texts:
        yield Problem(
            expected=as_json(answer.content), actual=as_json(texts[0]), pointer="choices[0].logprobs"
        )


@both(
    "chat/logprobs-pair/sampled",
    ("Give the sampled token the same logprob among the alternatives", "LP-04"),
    ("Stream the sampled token with the same logprob among the alternatives", "LP-04"),
)
def _sampled_listed(exchange: Exchange) -> Iterator[Problem]:
    yield from sampled_in(_entries(exchange))


@both(
    "chat/logprobs-pair/probable",
    ("Give probabilities that add up to 1 at most", "LP-02"),
    ("Stream probabilities that add up to 1 at most", "LP-02"),
)
def _probable(exchange: Exchange) -> Iterator[Problem]:
    yield from probable(_entries(exchange))


ROUNDING = 0.01
"""What a sum of probabilities may exceed 1 by, because they are computed in 16 bits and rounded."""


def probable(found: list[dict[str, Any]]) -> Iterator[Problem]:
    """Check that the alternatives of an entry are possible together, as those of one distribution are."""
    for number, entry in enumerate(found):
        listed = {str(one.get("token")): one.get("logprob") for one in objects_in(entry["top_logprobs"])}
        yield from added_up(listed, number)


def added_up(listed: dict[str, Any], number: int) -> Iterator[Problem]:
    """Check the sum of the probabilities of different tokens; other checks report values above 0."""
    values = [value for value in listed.values() if isinstance(value, int | float)]
    total = sum(math.exp(min(value, 0.0)) for value in values)
    if total > 1 + ROUNDING and max(values) <= 0:
        wanted, shown = "probabilities that add up to 1 at most", f"{total:.3f}"
        yield Problem(expected=wanted, actual=shown, pointer=f"entry {number}")


def sampled_in(found: list[dict[str, Any]]) -> Iterator[Problem]:
    """Check that the alternatives list a sampled token with its own logprob (LP-04).

    Tokens with equal text may differ in bytes, so the nearest value counts.
    """
    for number, one in enumerate(found):
        values = [other.get("logprob") for other in one["top_logprobs"] if _same(other, one)]
        numbers = [value for value in values if isinstance(value, int | float)]
        if numbers and min(abs(value - one["logprob"]) for value in numbers) > TOLERANCE:
            where = f"logprobs.content[{number}]"
            yield Problem(expected=as_json(one["logprob"]), actual=as_json(numbers), pointer=where)


def _same(other: Any, one: dict[str, Any]) -> bool:
    return isinstance(other, dict) and other.get("token") == one["token"]


@both(
    "chat/logprobs-pair/nearest",
    ("List no alternative that is less likely than a sampled token beside them", "LP-04"),
    ("Stream no alternative that is less likely than a sampled token beside them", "LP-04"),
)
def _nearest_listed(exchange: Exchange) -> Iterator[Problem]:
    yield from nearest(_entries(exchange))


def nearest(found: list[dict[str, Any]]) -> Iterator[Problem]:
    """Check that the alternatives are those of their own place (LP-04).

    The most likely tokens of another place (sglang#2088) neither have the sampled token nor are likelier than it.
    """
    for number, one in enumerate(found):
        listed = [other for other in one["top_logprobs"] if _number(other)]
        if not listed or not one["token"].strip("\ufffd") or any(_same_bytes(other, one) for other in listed):
            continue
        least = min(listed, key=lambda other: other["logprob"])
        if one["logprob"] > least["logprob"] + TOLERANCE:
            wanted = f"{as_json(one['token'])} among them, or alternatives of at least {one['logprob']}"
            where = f"logprobs.content[{number}].top_logprobs"
            yield Problem(expected=wanted, actual=as_json(least)[:200], pointer=where)


def _same_bytes(other: dict[str, Any], one: dict[str, Any]) -> bool:
    return _same(other, one) or (other.get("bytes") is not None and other["bytes"] == one.get("bytes"))


@whole("chat/logprobs-pair/greedy", "Select the most likely token at temperature 0", "LP-04")
def _greedy(exchange: Exchange) -> Iterator[Problem]:
    if not greedy(exchange) or set(request_fields(exchange)) & FORCING:
        raise NotRequested("the request allows other tokens than the most likely one")
    for number, one in enumerate(_entries(exchange)):
        best = max((other["logprob"] for other in one["top_logprobs"] if _number(other)), default=None)
        if best is not None and best > one["logprob"] + TOLERANCE:
            where = f"logprobs.content[{number}].logprob"
            yield Problem(expected=f"{best}, the best", actual=as_json(one["logprob"]), pointer=where)


def _number(other: Any) -> bool:
    return isinstance(other, dict) and isinstance(other.get("logprob"), int | float)


@both(
    "chat/logprobs-pair/count",
    ("Give as many alternatives as requested, each once, best first", "LP-02"),
    ("Stream at most as many alternatives, each once, best first", "LP-02"),
)
def _count(exchange: Exchange) -> Iterator[Problem]:
    yield from ranked(_entries(exchange), requested_top_logprobs(exchange))


def ranked(found: list[dict[str, Any]], top: int) -> Iterator[Problem]:
    """Check the number and order of alternatives (LP-02); a sampled token outside the best may follow them."""
    for number, one in enumerate(found):
        listed = [other for other in one["top_logprobs"] if _number(other)]
        values = [other["logprob"] for other in listed]
        keys = [(other.get("token"), as_json(other.get("bytes"))) for other in listed]
        where = f"logprobs.content[{number}].top_logprobs"
        if len(values) > top + 1 or values[:top] != sorted(values[:top], reverse=True):
            yield Problem(expected=f"{top}, best first", actual=as_json(values), pointer=where)
        if len(set(keys)) != len(keys):
            yield Problem(expected="each once", actual=as_json(keys)[:200], pointer=where)
        if any(value > 0 for value in [*values, one["logprob"]]):
            yield Problem(expected="at most 0", actual=as_json([one["logprob"], *values]), pointer=where)


@both(
    "chat/logprobs-pair/as-many",
    ("Give as many alternatives as `top_logprobs` requests", "LP-02"),
    ("Stream as many alternatives as `top_logprobs` requests", "LP-02"),
)
def _as_many(exchange: Exchange) -> Iterator[Problem]:
    yield from as_many(_entries(exchange), requested_top_logprobs(exchange), free=unconstrained(exchange))


def unconstrained(exchange: Exchange) -> bool:
    """Return whether every token of the vocabulary is an alternative at every place of an answer."""
    return not set(request_fields(exchange)) & (FORCING | {"text", "top_p", "top_k", "min_p"})


def as_many(found: list[dict[str, Any]], top: int, *, free: bool) -> Iterator[Problem]:
    """Check that each entry has the requested number of alternatives (LP-02).

    A constraint may leave fewer, so that without `free` it is enough if one entry has them. Alternatives with the same
    text are different tokens (sglang#32290).
    """
    counts = [len(one["top_logprobs"]) for one in found]
    most = (min if free else max)(counts, default=0)
    if top and most < top:
        where = "logprobs.content[].top_logprobs"
        shown = f"{most} at one place" if free else f"at most {most}"
        yield Problem(expected=f"{top} alternatives", actual=shown, pointer=where)


def _no_logprobs(target: Target) -> dict[str, object]:
    return chat(target, max_tokens=4, temperature=0, seed=1, logprobs=False)


pair("chat/logprobs-off", "An answer without logprobs", _no_logprobs)


@whole("chat/logprobs-off/none", "Give no logprobs unless requested", "LP-01")
def _none(exchange: Exchange) -> Iterator[Problem]:
    _without_logprobs(exchange)
    for one in exchange.json.get("choices") or []:
        if isinstance(one, dict) and one.get("logprobs") is not None:
            yield Problem(expected="null", actual="logprobs", pointer="choices[0].logprobs")


@stream("chat/logprobs-off/stream-none", "Stream no logprobs unless requested", "CS-14")
def _stream_none(exchange: Exchange) -> Iterator[Problem]:
    _without_logprobs(exchange)
    for number, one, _ in deltas(exchange):
        if one.get("logprobs") is not None:
            yield Problem(expected="null", actual="logprobs", pointer=f"event {number}, choices[0].logprobs")


def _without_logprobs(exchange: Exchange) -> None:
    if request_fields(exchange).get("logprobs"):
        raise NotRequested("the request asks for logprobs")

"""Check stop strings and several choices."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

from plumbline_conformance.checks.answers import WITHHELD, choice, choices, chunks, is_stream
from plumbline_conformance.checks.chat.shared_laws import (
    SHAPE,
    laws_of_streams,
    order_of_choices,
    shape,
    streamed_laws,
    until_out_of_order,
)
from plumbline_conformance.checks.common import accepted, at, group, usage_count
from plumbline_conformance.checks.laws import STREAM, WHOLE, both, streams, whole
from plumbline_conformance.checks.request_reader import (
    request_fields,
    requested_choices,
    requested_limit,
    requested_stops,
)
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.checks.stopped_text import same_answer, texts_of
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    Unsteady,
    about,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]


@scenario("chat/stop", "An answer, and the same with a stop string from its middle")
def stop(target: Target) -> Steps:
    body = chat(target, max_tokens=24, temperature=0, seed=1)
    plain = yield Request(name="plain", path="/chat/completions", json=body)
    word = _stop_of(plain)
    if not word:
        return
    yield Request(name=WHOLE, path="/chat/completions", json={**body, "stop": word})
    yield Request(name=STREAM, path="/chat/completions", json={**body, "stop": word, "stream": True})
    several = ["\u2603never", word]
    yield Request(name="several", path="/chat/completions", json={**body, "stop": several})


def _stop_of(exchange: Exchange) -> str:
    """Return a few characters of the answer, across a word boundary if possible, where tokens end."""
    try:
        text = exchange.json["choices"][0]["message"]["content"]
    except (LookupError, TypeError):
        return ""
    if not isinstance(text, str) or "\ufffd" in text:
        return ""
    text = text.strip()
    middle = text.find(" ", 2)
    return text[2:6] if middle < 0 else text[max(1, middle - 2) : middle + 2]


def _stopped(seen: Transcript, name: str) -> tuple[str, Exchange]:
    """Return the stop string and the answer to a request with it."""
    word = _stop_of(accepted(at(seen, "plain")))
    if not word:
        raise Inconclusive("the answer is too short for a stop string")
    return word, accepted(at(seen, name))


@check("chat/stop/shape", "Answer as the contract requires", *SHAPE)
def stop_shape(seen: Transcript) -> Iterator[Problem]:
    for name in ("plain", WHOLE, "several"):
        _, exchange = _stopped(seen, name)
        yield from about(exchange, shape(exchange))


streamed_laws("chat/stop", before=lambda seen: _stopped(seen, STREAM))


@check("chat/stop/counted", "Count no more tokens than without the stop string", "CHAT-08", request=WHOLE)
def stop_counted(seen: Transcript) -> Iterator[Problem]:
    """Compare with the same answer without it, of which this one is the beginning; thoughts may differ."""
    _, stopped = _stopped(seen, WHOLE)
    plain, found = (_spoken_tokens(one) for one in (at(seen, "plain"), stopped))
    content = choice(stopped).content
    if not choice(at(seen, "plain")).content.startswith(content):
        raise Unsteady
    if found > plain or (content and not found):
        wanted = f"1 to {plain}" if content else f"at most {plain}"
        yield Problem(expected=wanted, actual=str(found), pointer="usage.completion_tokens")


def _spoken_tokens(exchange: Exchange) -> int:
    """Return the tokens of an answer without those of its thinking."""
    total = usage_count(exchange, "completion_tokens")
    details = exchange.json["usage"].get("completion_tokens_details")
    thought = details.get("reasoning_tokens") if isinstance(details, dict) else None
    if isinstance(thought, int):
        return total - thought
    if choice(exchange).reasoning:
        raise Inconclusive("the usage does not say how many tokens are thinking")
    return total


@both(
    "chat/stop/absent",
    ("Leave the stop string out of the text", "CHAT-10"),
    ("Leave the stop string out of the streamed text", "CHAT-10"),
    before=lambda seen: _stopped(seen, WHOLE),
)
def _without_stop_string(exchange: Exchange) -> Iterator[Problem]:
    content = choice(exchange).content
    for word in requested_stops(exchange):
        if word in content:
            yield Problem(expected=f"no {as_json(word)}", actual=as_json(content)[:200], pointer="content")


whole(
    "chat/stop/any",
    "Stop at any of several stop strings",
    "CHAT-10",
    request="several",
    before=lambda seen: _stopped(seen, "several"),
)(_without_stop_string)


@check("chat/stop/prefix", "Keep exactly the text before the stop string", "CHAT-20")
def stop_prefix(seen: Transcript) -> Iterator[Problem]:
    yield from _text_before_stop(seen, WHOLE)


@check("chat/stop/stream-prefix", "Stream exactly the text before the stop string", "CS-15", "CHAT-20")
def stop_stream_prefix(seen: Transcript) -> Iterator[Problem]:
    yield from _text_before_stop(seen, STREAM)


def _text_before_stop(seen: Transcript, name: str) -> Iterator[Problem]:
    """Compare with the answer without a stop string, if the server gives equal answers to equal requests.

    Temperature 0 does not guarantee that.
    """
    word, exchange = _stopped(seen, name)
    plain = choice(at(seen, "plain")).content
    wanted = plain[: plain.find(word)]
    answer = choice(exchange)
    found = answer.content
    if found == wanted:
        return
    if answer.refusal:
        raise Inconclusive("the model refused to answer")
    rest = [one for one in seen.exchanges if one.name not in ("plain", name)]
    others = texts_of(partial(lambda one: choice(one).content, one) for one in rest)
    if not same_answer(plain, word, found, others):
        raise Unsteady
    # CS-15: the stream sent the start of the stop string too early. CHAT-20: the text ends at a wrong place.
    leaked = name == STREAM and found != wanted and word.startswith(found[len(wanted) :] or "\0")
    rule = "CS-15" if leaked else "CHAT-20"
    yield Problem(
        expected=as_json(wanted)[:200],
        actual=as_json(found)[:200],
        pointer="content",
        rule=rule,
        exchange=name,
    )


@both(
    "chat/stop/reason",
    ("Finish with `stop` if a stop string ended the answer", "CHAT-05"),
    ("Finish with `stop` if a stop string ended the stream", "CHAT-05"),
    before=lambda seen: _stopped(seen, WHOLE),
)
def _reason(exchange: Exchange) -> Iterator[Problem]:
    """Check that text without calls finishes with `stop` (CHAT-05)."""
    requested_stops(exchange)
    found = choice(exchange)
    if found.calls or found.finish_reason == "content_filter":
        raise Inconclusive("the answer ended with a call or a content filter")
    if found.finish_reason == "length":
        raise Inconclusive("the token limit cut the answer")
    if found.finish_reason != "stop":
        yield Problem(
            expected="stop", actual=as_json(found.finish_reason), pointer="choices[0].finish_reason"
        )


@scenario("chat/stop-limit", "A stop string that ends in the last token that the limit allows")
def stop_limit(target: Target) -> Steps:
    body = chat(target, max_tokens=8, temperature=0, seed=1)
    plain = yield Request(name="plain", path="/chat/completions", json=body)
    word = _end_of(plain)
    if not word:
        return
    yield Request(name=WHOLE, path="/chat/completions", json={**body, "stop": word})
    yield Request(name=STREAM, path="/chat/completions", json={**body, "stop": word, "stream": True})


def _end_of(exchange: Exchange) -> str:
    """Return the shortest end of a text cut by the limit that is nowhere else in it; empty if there is none."""
    try:
        found = exchange.json["choices"][0]
        text, reason = found["message"]["content"], found["finish_reason"]
    except (LookupError, TypeError):
        return ""
    if not isinstance(text, str) or "\ufffd" in text or reason != "length":
        return ""
    # With white space at its end, which may be a token of its own.
    ends = (text[-length:] for length in range(1, len(text)))
    return next((end for end in ends if end.strip() and text.find(end) == len(text) - len(end)), "")


@check(
    "chat/stop-limit/reason",
    "Finish with `stop` if a stop string ends in the last token of the limit",
    "CHAT-05",
    milder=True,
)
def stop_limit_reason(seen: Transcript) -> Iterator[Problem]:
    """Check both forms. A SHOULD, because both ends were met, and some servers look at the limit first."""
    plain = accepted(at(seen, "plain"))
    word = _end_of(plain)
    if not word:
        raise Inconclusive("the limit did not cut the answer, or it has no end of its own")
    before = choice(plain).content.removesuffix(word)
    for name in (WHOLE, STREAM):
        found = choice(accepted(at(seen, name)))
        if found.content.strip() != before.strip() or found.finish_reason in WITHHELD:
            raise Inconclusive("the stop string did not end the answer where the limit does")
        if found.finish_reason != "stop":
            yield Problem(
                expected="stop",
                actual=as_json(found.finish_reason),
                pointer="choices[0].finish_reason",
                exchange=name,
            )


COUNT = 3
"""Choices of a request."""
EACH = 4
"""The token limit of each choice."""
SHORT = 16
"""A token limit that fits into every context window."""


@scenario("chat/many", "One choice, three choices, and three streamed with usage, several times")
def many(target: Target) -> Steps:
    body = chat(target, max_tokens=EACH, temperature=1, seed=1)
    yield Request(name="one", path="/chat/completions", json=body)
    yield Request(name="three", path="/chat/completions", json={**body, "n": COUNT})
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    yield from until_out_of_order({**body, "n": COUNT, **streaming})


@check("chat/many/shape", "Answer as the contract requires", *SHAPE)
def many_shape(seen: Transcript) -> Iterator[Problem]:
    for name in ("one", "three"):
        exchange = accepted(at(seen, name))
        for problem in about(exchange, shape(exchange)):
            if (
                name == "one" or problem.rule != "CHAT-02"
            ):  # The next check counts the choices of the other one.
                yield problem


laws_of_streams("chat/many")


@whole("chat/many/indexes", "Give exactly n choices with indexes from 0", "CHAT-02", request="three")
def _indexes(exchange: Exchange) -> Iterator[Problem]:
    count = requested_choices(exchange)
    if not isinstance(exchange.json, dict):
        raise Inconclusive("the answer is not an object; another check reports this")
    found = exchange.json.get("choices")
    indexes = [one.get("index") for one in found] if isinstance(found, list) else []
    if sorted(map(repr, indexes)) != sorted(map(repr, range(count))):
        yield Problem(
            expected=as_json(list(range(count))), actual=as_json(indexes), pointer="choices[].index"
        )


@streams("chat/many/stream-indexes", "Stream exactly n choices, in the order of their index", "CS-04")
def _stream_indexes(exchange: Exchange) -> Iterator[Problem]:
    count = requested_choices(exchange)
    order = order_of_choices(exchange)
    if order != [str(place) for place in range(count)]:
        yield Problem(
            expected=as_json(list(range(count))), actual=", ".join(order), pointer="choices[].index"
        )


@check("chat/many/prompt-once", "Count the prompt once, not per choice", "CHAT-09", request="three")
def many_prompt(seen: Transcript) -> Iterator[Problem]:
    one = _usage(accepted(at(seen, "one")).json)
    yield from _same_prompt(one, _usage(accepted(at(seen, "three")).json))


@check("chat/many/stream-prompt-once", "Count the prompt once in the usage of a stream", "CHAT-09")
def many_stream_prompt(seen: Transcript) -> Iterator[Problem]:
    one = _usage(accepted(at(seen, "one")).json)
    for exchange in group(seen, STREAM):
        yield from about(exchange, _same_prompt(one, _last_usage(exchange)))


def _same_prompt(one: dict[str, Any], several: dict[str, Any]) -> Iterator[Problem]:
    if one.get("prompt_tokens") != several.get("prompt_tokens"):
        wanted, found = as_json(one.get("prompt_tokens")), as_json(several.get("prompt_tokens"))
        yield Problem(expected=wanted, actual=found, pointer="usage.prompt_tokens")


@whole("chat/many/sum", "Sum the tokens of all choices", "CHAT-09", request="three")
@streams("chat/many/stream-sum", "Sum the tokens of all choices in the usage of a stream", "CHAT-09")
def _summed(exchange: Exchange) -> Iterator[Problem]:
    """Check the sum: a choice that finished with `length` has as many tokens as the limit, others at most as many."""
    each, most = requested_limit(exchange), requested_choices(exchange)
    usage = _last_usage(exchange) if is_stream(exchange) else _usage(exchange.json)
    full = sum(found.finish_reason == "length" for found in choices(exchange))
    tokens = usage.get("completion_tokens")
    if isinstance(tokens, int) and tokens > each * most:
        yield Problem(
            expected=f"at most {each * most}", actual=str(tokens), pointer="usage.completion_tokens"
        )
    # A full context window is `length` as well, so only short limits give a lower bound.
    if isinstance(tokens, int) and each <= SHORT and tokens < each * full:
        yield Problem(
            expected=f"at least {each * full}", actual=str(tokens), pointer="usage.completion_tokens"
        )


@streams("chat/many/stream-usage", "Send the usage once, in the last chunk", "CS-06", "CS-08")
def _usage_once(exchange: Exchange) -> Iterator[Problem]:
    found = chunks(exchange)
    places = [number for number, chunk in enumerate(found) if chunk.get("usage") is not None]
    if request_fields(exchange).get("stream_options", {}).get("continuous_usage_stats"):
        raise NotRequested("the request asks for the usage in every chunk")
    if places != [len(found) - 1]:
        wanted = f"in chunk {len(found) - 1} alone"
        rule = "CS-08" if places and places[-1] != len(found) - 1 else "CS-06"
        yield Problem(expected=wanted, actual=as_json(places)[:200], pointer="usage", rule=rule)


def _usage(answer: Any) -> dict[str, Any]:
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        raise Inconclusive("there is no usage; another check reports this")
    return usage


def _last_usage(exchange: Exchange) -> dict[str, Any]:
    found = [chunk for chunk in chunks(accepted(exchange)) if chunk.get("usage") is not None]
    return _usage(found[-1] if found else None)

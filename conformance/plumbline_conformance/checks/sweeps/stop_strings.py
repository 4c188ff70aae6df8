"""Check stop strings of every kind: of one character and of several tokens, white space, at the start, overlapping."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from plumbline_conformance.checks.answers import WITHHELD, choice
from plumbline_conformance.checks.common import accepted, at
from plumbline_conformance.checks.messages.fold import blocks_of, message_of
from plumbline_conformance.checks.messages.texts import message
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import fold
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Fields = dict[str, Any]
Steps = Generator[Request, Exchange, None]
LENGTH = 32
"""Tokens of the answer that is stopped."""
SHORTEST = 12
"""Characters that it needs."""
QUESTION = "Tell me about the sea in a few sentences."
BEGUN = "1, 2, 3,"
"""A prompt that every model continues."""


def stops_of(text: str) -> dict[str, list[str]]:
    """Return stop strings of every kind that a text contains, by their kind.

    >>> stops_of("In the blue sea live fish.")["overlapping"]
    ['blue sea', 'ue']
    """
    middle = max(2, len(text) // 3)
    gap = text.find(" ", 1)
    found = {
        "first": [text[:1]],
        "character": [text[middle : middle + 1]],
        "long": [text[middle : middle + 10]],
        "overlapping": [text[middle - 1 : middle + 7], text[middle + 1 : middle + 3]],
        "last of four": ["\u2603a", "\u2603b", "\u2603c", text[middle : middle + 4]],
    }
    if gap > 0:
        found["space"] = [" "]
        found["around a space"] = [text[gap - 1 : gap + 2]]
    wide = next((place for place, one in enumerate(text) if ord(one) > 127), None)
    if wide is not None:
        found["not ASCII"] = [text[wide : wide + 2]]
    return {kind: stops for kind, stops in found.items() if all(stops)}


def stopped(text: str, stops: list[str]) -> set[str]:
    """Return the texts that a server may leave: up to the stop string that ends first, or to the one that begins first.

    Where several are in one token, either may have been found (CHAT-10 says the earliest match).
    """
    ends = {stop: text.find(stop) for stop in stops if stop in text}
    first = min(place + len(stop) for stop, place in ends.items())
    return {
        text[:place]
        for stop, place in ends.items()
        if place + len(stop) == first or place == min(ends.values())
    }


def _steps(
    path: str, field: str, body: Callable[[Target], Fields], read: Callable[[Exchange], str]
) -> Callable[[Target], Steps]:
    def steps(target: Target) -> Steps:
        asked = body(target)
        plain = yield Request(name="plain", path=path, json=asked)
        try:
            text = read(plain)
        except Exception:
            return
        if len(text.strip()) < SHORTEST or "\ufffd" in text:
            return
        for kind, stops in stops_of(text).items():
            yield Request(name=kind, path=path, json={**asked, field: stops})
            yield Request(name=f"{kind}, streamed", path=path, json={**asked, field: stops, "stream": True})

    return steps


def _cut(
    field: str, read: Callable[[Exchange], str], reason: Callable[[Exchange], Any], wanted: str
) -> Callable[[Transcript], Iterator[Problem]]:
    def judge(seen: Transcript) -> Iterator[Problem]:
        """Compare with the whole answer; a server that answers otherwise each time shows nothing."""
        plain = read(accepted(at(seen, "plain")))
        if len(seen.exchanges) == 1:
            raise Inconclusive("the answer is too short for stop strings")
        refused: list[Exception] = []
        for exchange in seen.exchanges[1:]:
            stops = exchange.request_json[field]
            try:
                found = read(accepted(exchange))
            except (Inconclusive, Rejected) as failure:
                refused.append(failure)  # Anthropic takes no stop string of white space alone.
                continue
            if reason(exchange) in WITHHELD:
                continue
            where = {"pointer": "content", "exchange": exchange.name}
            inside = [stop for stop in stops if stop in found]
            if inside:
                yield Problem(
                    expected=f"a text without {as_json(inside[0])}", actual=as_json(found)[:200], **where
                )
            elif _lost(plain, found, stops):
                shown = f"{as_json(found)[:200]}, without its beginning"
                yield Problem(expected=as_json(plain)[:200], actual=shown, **where)
            elif not plain.startswith(found) or (not found and all(map(str.isspace, stops))):
                continue  # Another answer than the plain one, or white space at its start that is trimmed.
            elif not any(stop in plain for stop in stops):
                continue  # The request was made from another spelling of the plain answer.
            elif found not in stopped(plain, stops) and not _trimmed(found, stopped(plain, stops)):
                expected = " or ".join(sorted(map(as_json, stopped(plain, stops))))
                yield Problem(expected=expected[:200], actual=as_json(found)[:200], **where)
            elif (shown := reason(exchange)) != wanted:
                yield Problem(
                    expected=as_json(wanted), actual=as_json(shown), pointer="reason", exchange=exchange.name
                )
        if len(refused) == len(seen.exchanges) - 1:
            raise refused[0]

    return judge


def _lost(plain: str, found: str, stops: list[str]) -> bool:
    """Return whether an answer is the plain one up to a stop string, but for its first characters.

    A server that searches stop strings holds pieces back, and may drop the first ones (SwiftLM#133).
    """
    if len(found.strip()) < SHORTEST or not any(stop in plain for stop in stops):
        return False
    return any(
        text.endswith(found) and len(text) > len(found) for text in map(str.strip, stopped(plain, stops))
    )


def _trimmed(found: str, wanted: set[str]) -> bool:
    """Return whether only white space at the ends differs, which some templates trim."""
    return found.strip() in {text.strip() for text in wanted}


def _chat_text(exchange: Exchange) -> str:
    found = choice(exchange)
    if found.reasoning:
        raise Inconclusive("the answer has thinking, whose length may differ")
    return found.content


def _completion_text(exchange: Exchange) -> str:
    found = fold("completions", accepted(exchange)).choices
    if not found:
        raise Inconclusive("the answer has no choice; another check reports that")
    return found[0].content


def _message_text(exchange: Exchange) -> str:
    if blocks_of(accepted(exchange), "thinking") or blocks_of(exchange, "redacted_thinking"):
        raise Inconclusive("the answer has thinking, whose length may differ")
    return "".join(str(block.get("text", "")) for block in blocks_of(exchange, "text"))


def _chat(target: Target) -> Fields:
    return chat(target, messages=user(QUESTION), max_tokens=LENGTH, temperature=0, seed=1)


def _completion(target: Target) -> Fields:
    return {"model": target.model, "prompt": BEGUN, "max_tokens": LENGTH, "temperature": 0, "seed": 1}


def _message(target: Target) -> Fields:
    return message(target, messages=user(QUESTION), max_tokens=LENGTH, temperature=0)


def _chat_reason(exchange: Exchange) -> Any:
    found = choice(exchange)
    return "refusal" if found.refusal else found.finish_reason


def _completion_reason(exchange: Exchange) -> Any:
    return fold("completions", exchange).choices[0].finish_reason


def _message_reason(exchange: Exchange) -> Any:
    return message_of(exchange).get("stop_reason")


TITLE = "An answer, and the same with stop strings of every kind from it"
scenario("chat/stops", TITLE)(_steps("/chat/completions", "stop", _chat, _chat_text))
scenario("completions/stops", TITLE, needs=("completions",))(
    _steps("/completions", "stop", _completion, _completion_text)
)
scenario("messages/stops", TITLE, needs=("messages",))(
    _steps("/messages", "stop_sequences", _message, _message_text)
)
CUT = "End before every kind of stop string, and say that it was one"
check("chat/stops/cut", CUT, "CHAT-10")(_cut("stop", _chat_text, _chat_reason, "stop"))
check("completions/stops/cut", CUT, "CHAT-10")(_cut("stop", _completion_text, _completion_reason, "stop"))
check("messages/stops/cut", CUT, "MSG-09")(
    _cut("stop_sequences", _message_text, _message_reason, "stop_sequence")
)

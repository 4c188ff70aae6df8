"""Select the laws that apply to an exchange of any client.

A law applies to an exchange if the exchange has all features of the request that the law's scenario sends. The laws
are all checks that are registered as laws.
"""

from __future__ import annotations

import re
from functools import cache

import msgspec

from plumbline_conformance.checks.request_reader import features
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS, Check, Law, Target
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["features_of", "laws_of", "watched"]

_MESSAGES = re.compile(r"/v1/messages(/count_tokens)?$")
_PLACEHOLDER = Target(base_url="http://127.0.0.1/v1", model="m")


class _WantedLaw(msgspec.Struct, frozen=True):
    """A law, and the request features that it needs."""

    check: Check
    law: Law
    wanted: frozenset[str]


def features_of(exchange: Exchange) -> frozenset[str]:
    """Return the features of an exchange's request."""
    return features(exchange.method, exchange.url, exchange.request_json)


def laws_of(exchange: Exchange) -> list[tuple[Check, Law]]:
    """Return the laws for an exchange, each once.

    If several checks have the same law, the check whose scenario has most features of the exchange reports it.
    Refusals of Messages have laws of their own, because their error object is another (MSG-11).
    """
    if exchange.status >= 400:
        return _laws_of_refusals(bool(_MESSAGES.search(exchange.path)))
    if exchange.status == 101 or exchange.status == 0:
        return []
    return _laws_of_answers(features_of(exchange))


def watched() -> list[str]:
    """Return the ids of the checks that apply to live traffic."""
    return [entry.check.id for entry in (*_answers(), *_refusals())]


@cache
def _laws_of_answers(found: frozenset[str]) -> list[tuple[Check, Law]]:
    best: dict[Law, _WantedLaw] = {}
    for entry in _answers():
        known = best.get(entry.law)
        if entry.wanted <= found and (known is None or len(known.wanted) < len(entry.wanted)):
            best[entry.law] = entry
    chosen = {entry.check.id for entry in best.values()}
    return [
        (entry.check, entry.law) for entry in _answers() if entry.check.id in chosen
    ]  # In the suite's order.


@cache
def _laws_of_refusals(of_messages: bool) -> list[tuple[Check, Law]]:
    first: dict[Law, _WantedLaw] = {}
    for entry in _refusals():
        if entry.check.id.startswith("messages/") is of_messages:
            first.setdefault(entry.law, entry)
    return [(entry.check, entry.law) for entry in first.values()]


@cache
def _refusals() -> list[_WantedLaw]:
    return [
        _WantedLaw(found, found.law, frozenset())
        for found in CHECKS.values()
        if found.law and found.of == "refusal"
    ]


@cache
def _answers() -> list[_WantedLaw]:
    features_by_scenario: dict[str, dict[str, frozenset[str]]] = {}
    entries = []
    for found in CHECKS.values():
        if found.law is None or found.of == "refusal":
            continue
        name = found.id.rsplit("/", 1)[0]
        if name not in features_by_scenario:
            features_by_scenario[name] = _requests(name)
        requests = features_by_scenario[name]
        # If a request depends on an answer, the features of the last known request apply; the law checks the rest.
        last = [*requests.values()][-1]
        # `of` states whether the law is about whole or streamed answers.
        wanted = requests.get(found.request or "", last) - {"whole", "stream"}
        entries.append(_WantedLaw(found, found.law, wanted | ({found.of} - {"either"})))
    return entries


def _requests(name: str) -> dict[str, frozenset[str]]:
    """Return the features of each request, by name, that a scenario sends if every answer is empty.

    A group of requests (`poll/1`, `poll/2`) has one entry, with the features of its first request.
    """
    steps = SCENARIOS[name].steps(_PLACEHOLDER)
    found: dict[str, frozenset[str]] = {}
    try:
        request = next(steps)
        while True:
            url = _PLACEHOLDER.base_url + request.path
            body = request.json if request.content is None and isinstance(request.json, dict) else None
            found.setdefault(request.name.partition("/")[0], features(request.method, url, body))
            request = steps.send(
                Exchange(method=request.method, url=url, request_headers={}, request_body=b"")
            )
    except StopIteration:
        return found

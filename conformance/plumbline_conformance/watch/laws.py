"""Which laws hold of an exchange that somebody else asked for.

A check says of itself whether it is a law of one exchange, and its scenario's own request says what has to be asked
for: the law holds of whatever asks for as much. Nothing is listed here; what is added to the suite as a law is watched.
"""

from __future__ import annotations

from functools import cache

import msgspec

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.checks.request_reader import features
from plumbline_conformance.suite.model import CHECKS, SCENARIOS, Check, Law, Target
from plumbline_conformance.transcript.model import Exchange

__all__ = ["features_of", "laws_of", "watched"]

_NOBODY = Target(base_url="http://127.0.0.1/v1", model="m")


class _WantedLaw(msgspec.Struct, frozen=True):
    """A law, and what has to be asked for."""

    check: Check
    law: Law
    wanted: frozenset[str]


def features_of(exchange: Exchange) -> frozenset[str]:
    """What an exchange asked for."""
    return features(exchange.method, exchange.url, exchange.request_json)


def laws_of(exchange: Exchange) -> list[tuple[Check, Law]]:
    """The laws of an exchange, each once: under the scenario that asks for most of what was asked for."""
    if exchange.status >= 400:
        return _of_refusals()
    if exchange.status == 101 or exchange.status == 0:
        return []
    return _of(features_of(exchange))


def watched() -> list[str]:
    """The ids of the checks that live traffic can be held to."""
    return [held.check.id for held in (*_answers(), *_refusals())]


@cache
def _of(found: frozenset[str]) -> list[tuple[Check, Law]]:
    best: dict[Law, _WantedLaw] = {}
    for held in _answers():
        known = best.get(held.law)
        if held.wanted <= found and (known is None or len(known.wanted) < len(held.wanted)):
            best[held.law] = held
    names = {held.check.id for held in best.values()}
    return [(held.check, held.law) for held in _answers() if held.check.id in names]


@cache
def _of_refusals() -> list[tuple[Check, Law]]:
    first: dict[Law, _WantedLaw] = {}
    for held in _refusals():
        first.setdefault(held.law, held)
    return [(held.check, held.law) for held in first.values()]


@cache
def _refusals() -> list[_WantedLaw]:
    return [
        _WantedLaw(found, found.law, frozenset())
        for found in CHECKS.values()
        if found.law and found.of == "refusal"
    ]


@cache
def _answers() -> list[_WantedLaw]:
    asked_for: dict[str, list[frozenset[str]]] = {}
    held = []
    for found in CHECKS.values():
        if found.law is None or found.of == "refusal":
            continue
        name = found.id.rsplit("/", 1)[0]
        requests = asked_for.setdefault(name, _requests(name))
        # Where a request depends on an answer, its operation and form are all that is known: the law looks for itself.
        wanted = requests[min(found.place, len(requests) - 1)] - {"whole", "stream"}
        held.append(_WantedLaw(found, found.law, wanted | ({found.of} - {"either"})))
    return held


def _requests(name: str) -> list[frozenset[str]]:
    """The features of the requests that a scenario sends when nobody answers."""
    steps = SCENARIOS[name].steps(_NOBODY)
    found: list[frozenset[str]] = []
    try:
        request = next(steps)
        while True:
            url = _NOBODY.base_url + request.path
            body = request.json if request.content is None and isinstance(request.json, dict) else None
            found.append(features(request.method, url, body))
            request = steps.send(
                Exchange(method=request.method, url=url, request_headers={}, request_body=b"")
            )
    except StopIteration:
        return found

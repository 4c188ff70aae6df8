"""The list of models."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any
from urllib.parse import quote

from plumbline_conformance.checks.common import accepted, answered, at, error_of, refused, valid_body
from plumbline_conformance.checks.laws import whole
from plumbline_conformance.suite.model import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.transcript.model import Exchange, Transcript


@scenario("models/list", "The list, one of its models, and one that is not in it", core=True)
def models_list(target: Target) -> Generator[Request, Exchange, None]:
    listed = yield Request(path="/models", method="GET")
    names = [model.get("id") for model in _listed(listed)]
    # Requests may use an alias, which does not have to be listed (MOD-04).
    name = target.model if target.model in names or not names else str(names[0])
    yield Request(path="/models/no-such-model-0f3a", method="GET")
    yield Request(path=_encoded(name), method="GET")
    for path in _others(listed, name):
        yield Request(path=path, method="GET")


MOST = 4
"""Gateways list hundreds of models: so many others are looked at."""


def _encoded(name: str) -> str:
    return f"/models/{quote(name, safe='', errors='replace')}"


def _others(listed: Exchange, first: str) -> list[str]:
    """The paths of further models, and of all of these as they are where an id has a slash."""
    names = dict.fromkeys(model["id"] for model in _listed(listed) if isinstance(model.get("id"), str))
    others = [name for name in names if name != first][:MOST]
    raw = [f"/models/{quote(name, errors='replace')}" for name in (first, *others) if "/" in name]
    return [*map(_encoded, others), *raw]


def _listed(exchange: Exchange) -> list[dict[str, Any]]:
    data = exchange.json.get("data") if isinstance(exchange.json, dict) else None
    return [model for model in data if isinstance(model, dict)] if isinstance(data, list) else []


@whole("models/list/shape", "List models as the contract says", "MOD-01")
def shape(exchange: Exchange) -> Iterator[Problem]:
    """MOD-01."""
    yield from valid_body(exchange, "ListModelsResponse")


@check("models/list/retrievable", "Give the same object by id as in the list", "MOD-02")
def models_list_retrievable(seen: Transcript) -> Iterator[Problem]:
    listed = [_identity(model) for model in _listed(accepted(at(seen, 0)))]
    if not listed:
        raise Inconclusive("no model is listed")
    yield from _found(answered(at(seen, 2)), listed)


def _found(exchange: Exchange, listed: list[tuple[Any, ...]]) -> Iterator[Problem]:
    if exchange.status != 200:
        yield Problem(
            expected="a listed model", actual=f"status {exchange.status}", pointer="GET /models/{id}"
        )
    elif not isinstance(exchange.json, dict) or _identity(exchange.json) not in listed:
        yield Problem(
            expected=repr(listed)[:200], actual=repr(exchange.json)[:200], pointer="GET /models/{id}"
        )


@check(
    "models/list/every", "Give every listed model, by an id with a slash in both ways to write it", "MOD-02"
)
def models_list_every(seen: Transcript) -> Iterator[Problem]:
    """Of a list of one model without a slash, `retrievable` has seen all that there is."""
    listed = {quote(str(model.get("id")), errors="replace"): _identity(model) for model in _models(seen)}
    if not listed:
        raise Inconclusive("no model is listed")
    if answered(at(seen, 2)).status != 200:
        raise Inconclusive("not even the first one is given; another check says so")
    for place in range(3, len(seen.exchanges)):
        exchange = answered(at(seen, place))
        name = exchange.url.partition("?")[0].partition("/models/")[2].replace("%2F", "/")
        yield from _found(exchange, [listed[name]] if name in listed else [])


def _models(seen: Transcript) -> list[dict[str, Any]]:
    return _listed(accepted(at(seen, 0)))


def _bare(exchange: Exchange) -> bool:
    """Nobody serves the path, or else there would be an error object."""
    return error_of(exchange) is None


def _identity(model: dict[str, Any]) -> tuple[Any, ...]:
    """What is compared; some servers make `created` up for each answer, which is another matter."""
    return model.get("id"), model.get("object"), model.get("owned_by")


@check("models/list/unknown", "Answer an unknown id with 404 `model_not_found`", "MOD-03")
def models_list_unknown(seen: Transcript) -> Iterator[Problem]:
    if all(answered(at(seen, place)).status in (404, 405) and _bare(at(seen, place)) for place in (1, 2)):
        raise Inconclusive("there is no GET /models/{id} at all; another check says so")
    yield from refused(at(seen, 1), 404)
    error = error_of(at(seen, 1))
    if at(seen, 1).status == 404 and (error is None or error.get("code") != "model_not_found"):
        yield Problem(expected="an error with code model_not_found", actual=repr(error), pointer="error.code")

"""Check the list of models."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any
from urllib.parse import quote

from plumbline_conformance.checks.common import (
    accepted,
    answered,
    at,
    error_of,
    group,
    refused,
    valid_body,
)
from plumbline_conformance.checks.laws import whole
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript


@scenario("models/list", "The list, a listed model, and an unknown one", core=True)
def models_list(target: Target) -> Generator[Request, Exchange, None]:
    listed = yield Request(name="list", path="/models", method="GET")
    names = [model.get("id") for model in _listed(listed)]
    # The requested model may be an alias, which need not be listed (MOD-04).
    name = target.model if target.model in names or not names else str(names[0])
    yield Request(name="unknown", path="/models/no-such-model-0f3a", method="GET")
    yield Request(name="listed", path=_encoded(name), method="GET")
    for number, path in enumerate(_others(listed, name), 1):
        yield Request(name=f"other/{number}", path=path, method="GET")


MOST = 4
"""Number of further models to request; gateways list hundreds."""


def _encoded(name: str) -> str:
    return f"/models/{quote(name, safe='', errors='replace')}"


def _others(listed: Exchange, first: str) -> list[str]:
    """Return the paths of further models, and unescaped paths for ids with a slash."""
    names = dict.fromkeys(model["id"] for model in _listed(listed) if isinstance(model.get("id"), str))
    others = [name for name in names if name != first][:MOST]
    raw = [f"/models/{quote(name, errors='replace')}" for name in (first, *others) if "/" in name]
    return [*map(_encoded, others), *raw]


def _listed(exchange: Exchange) -> list[dict[str, Any]]:
    data = exchange.json.get("data") if isinstance(exchange.json, dict) else None
    return [model for model in data if isinstance(model, dict)] if isinstance(data, list) else []


@whole("models/list/shape", "List models as the contract requires", "MOD-01", request="list")
def shape(exchange: Exchange) -> Iterator[Problem]:
    """Check the schema of the list (MOD-01)."""
    yield from valid_body(exchange, "ListModelsResponse")


@whole("models/list/once", "List each model once", "MOD-01", request="list", milder=True)
def listed_once(exchange: Exchange) -> Iterator[Problem]:
    """Check that an id names one model: a client that chooses by it, or counts, meets two."""
    names = [as_json(model.get("id")) for model in _listed(exchange)]
    for name in sorted({one for one in names if names.count(one) > 1}):
        yield Problem(expected=f"{name} once"[:200], actual=f"{names.count(name)} times", pointer="data[].id")


@check("models/list/retrievable", "Return the same object by id as in the list", "MOD-02")
def models_list_retrievable(seen: Transcript) -> Iterator[Problem]:
    listed = [_identity(model) for model in _listed(accepted(at(seen, "list")))]
    if not listed:
        raise Inconclusive("no model is listed")
    yield from _same_model(answered(at(seen, "listed")), listed)


def _same_model(exchange: Exchange, listed: list[tuple[Any, ...]]) -> Iterator[Problem]:
    wanted, shown = as_json(listed)[:200], as_json(exchange.json)[:200]
    if exchange.status != 200:
        wanted, shown = "a listed model", f"status {exchange.status}"
    elif isinstance(exchange.json, dict) and _identity(exchange.json) in listed:
        return
    yield Problem(expected=wanted, actual=shown, pointer="GET /models/{id}", exchange=exchange.name)


@check("models/list/every", "Return every listed model by id, with an escaped or plain slash", "MOD-02")
def models_list_every(seen: Transcript) -> Iterator[Problem]:
    """Check all requested models after the first, which `retrievable` checks."""
    listed = {quote(str(model.get("id")), errors="replace"): _identity(model) for model in _models(seen)}
    if not listed:
        raise Inconclusive("no model is listed")
    if answered(at(seen, "listed")).status != 200:
        raise Inconclusive("the first one is not returned; another check reports this")
    for exchange in map(answered, group(seen, "other", needed=False)):
        name = exchange.url.partition("?")[0].partition("/models/")[2].replace("%2F", "/")
        yield from _same_model(exchange, [listed[name]] if name in listed else [])


def _models(seen: Transcript) -> list[dict[str, Any]]:
    return _listed(accepted(at(seen, "list")))


def _bare(exchange: Exchange) -> bool:
    """Return whether there is no error object, so that no handler serves the path."""
    return error_of(exchange) is None


def _identity(model: dict[str, Any]) -> tuple[Any, ...]:
    """Return the fields to compare; without `created`, which some servers set anew in each answer."""
    return model.get("id"), model.get("object"), model.get("owned_by")


@check("models/list/unknown", "Answer an unknown id with 404 `model_not_found`", "MOD-03", request="unknown")
def models_list_unknown(seen: Transcript) -> Iterator[Problem]:
    asked = at(seen, "unknown"), at(seen, "listed")
    if all(answered(one).status in (404, 405) and _bare(one) for one in asked):
        raise Inconclusive("there is no GET /models/{id} at all; another check reports this")
    unknown, _ = asked
    yield from refused(unknown, 404)
    error = error_of(unknown)
    # The document lets every code be null; the service's answers alone have this one.
    if unknown.status == 404 and (error is None or error.get("code") not in ("model_not_found", None)):
        yield Problem(
            expected="an error with code model_not_found or none", actual=as_json(error), pointer="error.code"
        )

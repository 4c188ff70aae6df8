"""The list of models."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any
from urllib.parse import quote

from plumbline_conformance.case import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.checks.common import accepted, answered, at, error_of, refused, valid_body
from plumbline_conformance.checks.forms import whole
from plumbline_conformance.transcript import Exchange, Transcript


@scenario("models/list", "The list, one of its models, and one that is not in it", core=True)
def models_list(target: Target) -> Generator[Request, Exchange, None]:
    listed = yield Request(path="/models", method="GET")
    names = [model.get("id") for model in _listed(listed)]
    # Requests may use an alias, which does not have to be listed (MOD-04).
    name = target.model if target.model in names or not names else str(names[0])
    yield Request(path="/models/no-such-model-0f3a", method="GET")
    yield Request(path=f"/models/{quote(name, safe='', errors='replace')}", method="GET")


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
    found = answered(at(seen, 2))
    if found.status != 200:
        yield Problem(expected="a listed model", actual=f"status {found.status}", pointer="GET /models/{id}")
    elif not isinstance(found.json, dict) or _identity(found.json) not in listed:
        yield Problem(expected=repr(listed)[:200], actual=repr(found.json)[:200], pointer="GET /models/{id}")


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

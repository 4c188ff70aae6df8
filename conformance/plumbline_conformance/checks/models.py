"""The list of models."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from urllib.parse import quote

from plumbline_conformance.case import Problem, Request, Target, check, scenario
from plumbline_conformance.checks.common import accepted, envelope
from plumbline_conformance.schema import violations
from plumbline_conformance.transcript import Exchange, Transcript


@scenario("models/list", "The list, one of its models, and one that is not in it")
def models_list(target: Target) -> Generator[Request, Exchange, None]:
    yield Request(path="/models", method="GET")
    yield Request(path=f"/models/{quote(target.model, safe='')}", method="GET")
    yield Request(path="/models/no-such-model-0f3a", method="GET")


@check("models/list/shape", "List models as the contract says", "MOD-01")
def models_list_shape(seen: Transcript) -> Iterator[Problem]:
    yield from violations("ListModelsResponse", accepted(seen.exchanges[0]).json)


@check("models/list/retrievable", "Give the same object by id as in the list", "MOD-02")
def models_list_retrievable(seen: Transcript) -> Iterator[Problem]:
    listed = accepted(seen.exchanges[0]).json
    if seen.exchanges[1].status != 200 or seen.exchanges[1].json not in listed["data"]:
        yield Problem(
            expected="an object of the list",
            actual=f"status {seen.exchanges[1].status}",
            pointer="GET /models/{id}",
        )


@check("models/list/unknown", "Answer an unknown id with 404 `model_not_found`", "MOD-03")
def models_list_unknown(seen: Transcript) -> Iterator[Problem]:
    yield from envelope(seen.exchanges[2], 404)

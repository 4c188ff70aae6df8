"""Three independent readers of the contract agree: the judge's, the server's and openapi-core.

The corpus is recorded here: every scenario of the suite, sent to the reference and to our own server, and every answer
that a mutant changes. openapi-core has no integration for Litestar, and those that it has read a stream to its end, so
its place is in tests: `RecordedRequest` and `Answered` are the adapter. It knows no server-sent events, so each event
is shown to it as the answer of an operation whose answers are events. They disagree about nothing.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from example_servers.good_server import MODEL, app, serving, transcripts
from mutants import MUTANTS
from openapi_core import OpenAPI
from openapi_core.datatypes import RequestParameters
from openapi_core.exceptions import OpenAPIError
from support.contract_types import TYPES
from werkzeug.datastructures import Headers, ImmutableMultiDict

from plumbline.contract.wire.decode import decode
from plumbline.contract.wire.errors import ApiError
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.contract import document
from plumbline_conformance.suite.scenario import SCENARIOS, Target
from plumbline_conformance.suite.schema_validation import NOT_NEEDED, violations
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.transcript.sse import load_json

EVENTS = "/events"
"""Before the path of an operation: the same, whose answer is one event."""
Said = tuple[str, str]
"""What is held against what: a place in the contract, and the JSON."""


class RecordedRequest:
    """An exchange's request, as openapi-core reads one."""

    content_type = "application/json"
    path_pattern = None

    def __init__(self, exchange: Exchange, prefix: str = "") -> None:
        parts = urlsplit(exchange.url)
        self.host_url = f"{parts.scheme}://{parts.netloc}"
        self.path = prefix + parts.path
        self.method = exchange.method.lower()
        self.body = exchange.request_body or None
        self.parameters = RequestParameters(
            query=ImmutableMultiDict(parse_qsl(parts.query)),
            header=Headers({"authorization": "Bearer key", **exchange.request_headers}),
            cookie=ImmutableMultiDict(),
        )


class Answered:
    """Its answer, or one event of it."""

    content_type = "application/json"

    def __init__(self, exchange: Exchange, data: bytes) -> None:
        self.data = data
        self.status_code = exchange.status
        self.headers = Headers(exchange.headers)


def operation(exchange: Exchange) -> dict[str, Any]:
    """Return what the contract requires of it, or None if it has no such operation."""
    path = document()["paths"].get(urlsplit(exchange.url).path, {})
    found: dict[str, Any] = path.get(exchange.method.lower(), {})
    return found


def schema_of(content: dict[str, Any], alternative: int = 0) -> str:
    """Return the name of a schema; models are listed in OpenAI's form or, as an alternative, in Anthropic's."""
    schema = content["application/json"]["schema"]
    return str(schema.get("$ref") or schema["anyOf"][alternative]["$ref"]).rpartition("/")[2]


def event_of(exchange: Exchange) -> str:
    """The schema of one event of a stream."""
    held = operation(exchange)["responses"]["200"]["content"]["text/event-stream"]["schema"]
    data = held["properties"]["data"]
    # Streams of OpenAI's API also have the data `[DONE]`; loading a model has events alone.
    [event] = [one for one in data.get("oneOf", [data]) if "contentSchema" in one]
    schema = event["contentSchema"]
    return str(schema.get("$ref") or schema["anyOf"][0]["$ref"]).rpartition("/")[2]


@cache
def openapi_core() -> OpenAPI:
    """With an operation more for each that streams."""
    found = copy.deepcopy(document())
    for name, members in NOT_NEEDED.items():
        required = found["components"]["schemas"][name]["required"]
        required[:] = [member for member in required if member not in members]
    found["servers"] = [{"url": "/"}]
    for path, methods in document()["paths"].items():
        content = methods.get("post", {}).get("responses", {}).get("200", {}).get("content", {})
        if "text/event-stream" in content:
            url = f"http://h{path}"
            exchange = Exchange(method="POST", url=url, request_headers={}, request_body=b"")
            schema = {"$ref": f"#/components/schemas/{event_of(exchange)}"}
            answer = {"description": "An event.", "content": {"application/json": {"schema": schema}}}
            found["paths"][EVENTS + path] = {"post": {"responses": {"200": answer}}}
    return OpenAPI.from_dict(found)


@cache
def corpus() -> list[Exchange]:
    """Return the exchanges of the reference and of our server."""
    with serving(app()) as base_url:
        ours = asyncio.run(record(list(SCENARIOS.values()), Target(base_url=base_url, model=MODEL)))
    found = [exchange for seen in (*transcripts().values(), *ours) for exchange in seen.exchanges]
    return [exchange for exchange in found if operation(exchange)]


def mutated() -> Iterator[Exchange]:
    """What mutants changed."""
    for scenario, _, mutation, _ in MUTANTS:
        good = transcripts()[scenario].exchanges
        yield from (
            one for one in mutation(transcripts()[scenario]).exchanges if one not in good and operation(one)
        )


def documents(exchange: Exchange) -> Iterator[tuple[str, bytes, str]]:
    """Every document of an answer: the schema, the bytes, and the prefix of the operation that answers so."""
    held = operation(exchange)["responses"].get(str(exchange.status), {})
    if "$ref" in held:
        held = document()["components"]["responses"][held["$ref"].rpartition("/")[2]]
    content = held.get("content", {})
    if exchange.status == 200 and "event-stream" in (exchange.header("content-type") or ""):
        for chunk in exchange.chunks:
            yield event_of(exchange), json.dumps(chunk).encode(), EVENTS
    elif "application/json" in content:
        asks_as_anthropic = exchange.status == 200 and "anthropic-version" in exchange.request_headers
        yield schema_of(content, int(asks_as_anthropic)), exchange.body, ""


def accepts(wanted: Any, *said: Any) -> bool:
    try:
        wanted(*said)
    except (OpenAPIError, ApiError, RecursionError):
        return False
    return True


def of_answers(exchanges: Iterable[Exchange]) -> dict[Said, tuple[bool, bool]]:
    """Return the results of the judge and of openapi-core for each document."""
    found: dict[Said, tuple[bool, bool]] = {}
    for exchange in exchanges:
        for schema, data, prefix in documents(exchange):
            key = (f"{exchange.status} {schema}", data.decode("utf-8", "replace"))
            if key in found:
                continue
            ours = next(violations(schema, load_json(data)), None) is None
            theirs = accepts(
                openapi_core().validate_response, RecordedRequest(exchange, prefix), Answered(exchange, data)
            )
            found[key] = (ours, theirs)
    return found


def of_requests(exchanges: Iterable[Exchange]) -> dict[Said, tuple[bool, bool, bool]]:
    """Return the results of the judge, the server and openapi-core for each request with a body."""
    found: dict[Said, tuple[bool, bool, bool]] = {}
    for exchange in exchanges:
        body = operation(exchange).get("requestBody")
        if body is None:
            continue
        schema = schema_of(body["content"])
        key = (schema, exchange.request_body.decode("utf-8", "replace"))
        if key not in found:
            ours = (
                exchange.request_json is not None
                and next(violations(schema, exchange.request_json), None) is None
            )
            served = accepts(decode, TYPES[schema], exchange.request_body)
            theirs = accepts(openapi_core().validate_request, RecordedRequest(exchange))
            found[key] = (ours, served, theirs)
    return found


@pytest.mark.long
def test_both_judge_every_recorded_answer_alike() -> None:
    found = of_answers(corpus())

    assert {said: both for said, both in found.items() if both != (True, True)} == {}
    assert len(found) > 500
    assert {said[0].partition(" ")[0] for said in found} >= {"200", "400", "404"}


@pytest.mark.long
def test_all_three_judge_every_recorded_request_alike() -> None:
    found = of_requests(corpus())

    assert {said: every for said, every in found.items() if len(set(every)) > 1} == {}
    assert sum(every == (True, True, True) for every in found.values()) > 80
    assert sum(every == (False, False, False) for every in found.values()) > 40


@pytest.mark.long
def test_both_judge_every_mutant_alike() -> None:
    found = of_answers(mutated())

    assert {said: both for said, both in found.items() if len(set(both)) > 1} == {}
    assert sum(both == (False, False) for both in found.values()) > 80

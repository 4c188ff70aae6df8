"""Test that an operation which does not exist is rejected or skipped alike everywhere, and never a failure.

A server without a route answers 404 or 405 with the body of its framework, or with the body that it has for every
unknown path. Only the APIs that every server needs are exempt.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from example_servers.good_server import MODEL, serving, transcripts
from example_servers.odd_servers import answering
from example_servers.reference.names import KEY
from mutants.mutations import changed
from support.about import about

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.scenario import SCENARIOS, Target
from plumbline_conformance.transcript.exchange import Exchange, Transcript

NEEDED = {"POST /chat/completions", "GET /models"}
ABSENT = [(404, b'{"detail":"Not Found"}'), (405, b'{"detail":"Method Not Allowed"}'), (404, b""), (501, b"")]
MISSING = {"errors/unknown-route", "errors/unknown-response", "websocket/upgrade"}
"""Scenarios about paths and resources that do not exist."""


def operation(exchange: Exchange) -> str:
    """Return the method and the path with names replaced."""
    path = urlsplit(exchange.url).path.partition("/v1")[2]
    parts = [
        "{}" if re.fullmatch(r"[a-z]+_.*\d.*|chatcmpl.*|no-such.*|org.*|.*%2F.*", part) else part
        for part in path.split("/")
    ]
    return f"{exchange.method} {'/'.join(parts)}"


def test_a_missing_operation_is_no_failure() -> None:
    operations = {
        (name, op)
        for name, seen in transcripts().items()
        for op in map(operation, seen.exchanges)
        if not op.startswith("WEBSOCKET") and op not in NEEDED and name not in MISSING
    }
    for scenario, absent in sorted(operations):
        with about((scenario, absent)):
            for status, content in ABSENT:
                exchanges = [
                    changed(one, status=status, frames=[(0.0, content)], error=None)
                    if operation(one) == absent
                    else one
                    for one in transcripts()[scenario].exchanges
                ]

                found = judge(Transcript(scenario=scenario, exchanges=exchanges))

                accused = {
                    f.check: f.problems for f in found if f.verdict in ("fail", "warn", "untestable", "error")
                }
                assert accused == {}, (status, content)


@pytest.mark.parametrize("envelope", [True, False])
def test_responses_without_an_operation_to_get_them_are_skipped(envelope: bool) -> None:
    message = {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404, "param": None}}

    def change(path: str, body: Any) -> tuple[int, dict[str, str], Any] | None:
        if path not in ("/responses", "/chat/completions", "/models"):
            return 404, {}, message if envelope else {"detail": "Not Found"}
        return None

    names = [name for name, found in SCENARIOS.items() if "stored" in found.needs]
    with serving(answering(change)) as base_url:
        target = Target(base_url=base_url, model=MODEL, api_key=KEY)
        seen = asyncio.run(record([SCENARIOS[name] for name in names], target))

    assert {one.skipped for one in seen if "responses" in one.scenario} == {
        "there is no GET /responses/{id}: status 404"
    }

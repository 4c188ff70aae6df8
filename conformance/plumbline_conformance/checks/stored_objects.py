"""Judge the answers of operations on stored objects: each is the object that the contract describes.

Scenarios compare these objects with the stored answer; without the check `objects`, a list could lack its ends
and a deletion its object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

from plumbline_conformance.checks.common import accepted, valid_body
from plumbline_conformance.checks.responses import shared_laws as responses
from plumbline_conformance.suite.contract import document
from plumbline_conformance.suite.scenario import Inconclusive, Problem, about, breaking, check
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["OBJECTS"]

RULES = {"DeleteResponseResult": "ST-02", "ResponseItemList": "ST-08"}
"""The rule of each schema, where it is not the rule of the scenario."""
STORED = (*responses.SHAPE, "R-10", "ST-02", "ST-08")
OBJECTS: dict[str, tuple[str, ...]] = {
    "chat/stored": ("CHAT-16",),
    "chat/stored-filter": ("CHAT-16",),
    "chat/stored-pages": ("CHAT-16",),
    "chat/stored-stream": ("CHAT-16",),
    "responses/conversation": ("ST-09",),
    "responses/conversation-item": ("ST-09",),
    "responses/conversation-items": ("ST-09",),
    **dict.fromkeys(
        (
            "responses/background",
            "responses/background-cancel",
            "responses/phase",
            "responses/stored",
            "responses/stored-stream",
        ),
        STORED,
    ),
}
"""The scenarios with such operations, and the rules of their check."""
ALONE = {"responses/background": "POST"}
"""The method of the operations to judge, if other checks of the scenario look at the rest."""


@cache
def _schemas() -> list[tuple[str, re.Pattern[str], str]]:
    """Return the method, the path and the schema of the answer of each operation on stored objects."""
    found: list[tuple[str, re.Pattern[str], str]] = []
    for template, operations in document()["paths"].items():
        path = re.compile(".*" + re.sub(r"\{[^}]*\}", "[^/]+", template.removeprefix("/v1")))
        for method in ("get", "post", "delete"):
            content = operations.get(method, {}).get("responses", {}).get("200", {}).get("content", {})
            answers = content.get("application/json", {}).get("schema", {})
            if "text/event-stream" not in content or method == "get":
                found.append((method.upper(), path, answers.get("$ref", "").rpartition("/")[2]))
    return [row for row in found if row[2]]


def _schema_of(exchange: Exchange) -> str | None:
    found = (
        name for method, at, name in _schemas() if method == exchange.method and at.fullmatch(exchange.path)
    )
    return next(found, None)


def _objects(slug: str, rules: tuple[str, ...]) -> Callable[[Transcript], Iterator[Problem]]:
    def judge(seen: Transcript) -> Iterator[Problem]:
        met = False
        for exchange in seen.exchanges:
            schema = _schema_of(exchange) if exchange.method in ALONE.get(slug, exchange.method) else None
            if (
                schema is None
                or exchange.status != 200
                or exchange.error is not None
                or b"data: " in exchange.body
            ):
                continue
            met = True
            yield from about(exchange, _flaws(exchange, schema, rules))
            yield from about(exchange, breaking(rules[0], _beyond_limit(exchange)))
        if not met:
            for exchange in seen.exchanges:
                accepted(exchange)  # It was refused, it failed, or the connection broke.
            raise Inconclusive("nothing stored was answered")

    return judge


def _beyond_limit(exchange: Exchange) -> Iterator[Problem]:
    """Check that a page has no more objects than the query allows."""
    limit = re.search(r"[?&]limit=(\d+)", exchange.url)
    data = exchange.json.get("data") if isinstance(exchange.json, dict) else None
    if limit and isinstance(data, list) and len(data) > int(limit[1]):
        yield Problem(expected=f"at most {limit[1]}", actual=str(len(data)), pointer="data")


def _flaws(exchange: Exchange, schema: str, rules: tuple[str, ...]) -> Iterator[Problem]:
    if schema == "Response" and rules == STORED:
        flawed = False
        for problem in responses.shape(exchange):
            flawed = True
            yield problem
        if not flawed and exchange.json["status"] in ("completed", "incomplete"):
            yield from breaking("R-10", responses.usage(exchange))
        return
    rule = RULES.get(schema, "")
    yield from breaking(rule if rule in rules else rules[0], valid_body(exchange, schema))


for _slug, _rules in OBJECTS.items():
    check(f"{_slug}/objects", "Answer operations on what is stored with the contract's objects", *_rules)(
        _objects(_slug, _rules)
    )

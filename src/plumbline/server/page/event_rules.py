"""Find the rules that speak about each event of a stream, from the clauses of the contract.

A clause names the members that it is about. A rule speaks about an event that has one of them; the fewer events of the
stream it speaks about, the more it says about this one: the rule of the role belongs to the first chunk only, the rule
of the id to all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from plumbline_conformance.suite.clauses import clauses
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.transcript.sse import Event

__all__ = ["rules_of_events"]

_MOST_RULES = 6
"""Of one event."""
_MOST_ITEMS = 4
"""Items of a list in an event that are looked at; the others have the same members."""
_OPERATIONS = {
    "chat/completions": "createChatCompletion",
    "completions": "createCompletion",
    "responses": "createResponse",
    "messages": "createMessage",
}
_OF_STREAMS = ("CMP-", "CS-", "LP-", "MSG-", "RS-", "SSE-")
"""Rules about streams; the others are named after them."""
_NAMED = re.compile(r"`([a-z]+[._][a-z_.]+|\[DONE\])`")
"""The name of an event in a sentence."""


_Shape = tuple[str, frozenset[str]]


class _About(NamedTuple):
    """What a clause is about."""

    clause: str
    rule: str
    members: frozenset[str]
    events: frozenset[str]
    """The events that its sentence names."""


def rules_of_events(exchange: Exchange) -> list[list[str]]:
    """Return the rules about each event, the most particular one first."""
    operation = _OPERATIONS.get(exchange.path.removeprefix("/v1/"), "")
    known: dict[_Shape, list[_About]] = {}  # Most events of a stream have the same members.
    found = []
    for event in exchange.events:
        shape = _shape(event)
        if shape not in known:
            known[shape] = list(_clauses_about(shape, operation))
        found.append(known[shape])
    counts = Counter(clause for about in found for clause in about)

    def particular(clause: _About) -> tuple[bool, int]:
        return not clause.rule.startswith(_OF_STREAMS), counts[clause]

    ordered = [dict.fromkeys(clause.rule for clause in sorted(about, key=particular)) for about in found]
    return [list(names)[:_MOST_RULES] for names in ordered]


def _shape(event: Event) -> _Shape:
    """Return the type of an event and the paths of its members."""
    if not isinstance(event.json, dict):
        return "[DONE]" if event.data == "[DONE]" else "", frozenset()
    return str(event.json.get("type") or ""), frozenset(_paths(event.json))


def _clauses_about(shape: _Shape, operation: str) -> Iterator[_About]:
    kind, paths = shape
    for clause in _clauses(operation):
        # A sentence that names events is about these, whatever members they share with others.
        if kind in clause.events if clause.events else bool(clause.members & paths) or kind in clause.members:
            yield clause


@cache
def _clauses(operation: str) -> tuple[_About, ...]:
    """Return the clauses about the streams of an operation."""
    return tuple(
        _About(
            clause.id,
            clause.rule,
            frozenset(clause.members),
            frozenset(_NAMED.findall(clause.clause)),
        )
        for clause in clauses()
        if "stream" in clause.places
        and operation in (rules()[clause.rule]["operations"] or _OPERATIONS.values())
    )


def _paths(value: Any, path: str = "") -> Iterable[str]:
    """Yield the paths of all members that are not null, such as `choices.*.delta.role`."""
    if isinstance(value, dict):
        for key, member in value.items():
            if member is not None:
                yield from _paths(member, f"{path}.{key}" if path else key)
                yield f"{path}.{key}" if path else key
    elif isinstance(value, list):
        for item in value[:_MOST_ITEMS]:
            yield from _paths(item, f"{path}.*")

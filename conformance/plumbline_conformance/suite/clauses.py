"""List the clauses of the rules: the check that detects a violation and its mutant, or why no check does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from plumbline_conformance.suite.contract import rules

__all__ = ["PLACES", "Clause", "ClauseEvidence", "clauses", "clauses_of"]

PLACES = ("whole", "stream", "refusal")
"""The kinds of answers that a clause may be about."""


class ClauseEvidence(msgspec.Struct, frozen=True):
    """A check and the mutant that it detects."""

    check: str
    mutant: str
    """The name of the mutant in `tests/conformance/mutants`."""


class Clause(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a rule requires."""

    id: str
    """The id of the rule and a letter, such as `CHAT-01a`."""
    rule: str
    clause: str
    members: list[str]
    """The fields of requests and answers that it is about."""
    evidence: dict[str, list[ClauseEvidence]]
    """By kind of answer."""
    unchecked: dict[str, str]
    """By kind of answer without evidence, the reason."""
    alike: str = ""
    """Why the evidence covers all APIs of the rule, if it comes from some of them."""

    @property
    def places(self) -> list[str]:
        """The kinds of answers that the clause is about."""
        return [place for place in PLACES if place in self.evidence or place in self.unchecked]


@cache
def clauses() -> tuple[Clause, ...]:
    """Return the clauses of all rules, in their order."""
    return tuple(_read(rule, part) for rule, found in rules().items() for part in found.get("clauses", ()))


def clauses_of(rule: str) -> Iterator[Clause]:
    """Yield the clauses of a rule."""
    return (clause for clause in clauses() if clause.rule == rule)


def _read(rule: str, part: dict[str, Any]) -> Clause:
    given = {place: part[place] for place in PLACES if place in part}
    return Clause(
        id=part["id"],
        rule=rule,
        clause=part["clause"],
        members=part["members"],
        evidence={
            place: [ClauseEvidence(*text.split(": ", 1)) for text in found]
            for place, found in given.items()
            if isinstance(found, list)
        },
        unchecked={place: found["unchecked"] for place, found in given.items() if isinstance(found, dict)},
        alike=part.get("alike", ""),
    )

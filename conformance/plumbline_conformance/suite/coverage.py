"""List which checks observe each rule, or the reason why no check does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files

from plumbline_conformance.suite.aliases import current
from plumbline_conformance.suite.clauses import clauses
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.scenario import CHECKS

__all__ = ["REVISION", "UNCHECKED", "as_markdown", "as_published", "manifest", "published", "revisions"]

REVISION = "2026-12"
"""The dated set of checks that this release publishes.

It grows until its month ends; a check with other verdicts gets another id.
"""

UNCHECKED: Mapping[str, str] = {
    name: rule["unchecked"] for name, rule in rules().items() if "unchecked" in rule
}
"""Why a rule has no check, by rule id."""


def manifest() -> dict[str, list[str] | str]:
    """Return for every rule the ids of its checks, or the reason why it has no check."""
    observed: dict[str, list[str]] = {}
    for check in CHECKS.values():
        for rule in dict.fromkeys(check.rules):
            observed.setdefault(rule, []).append(check.id)
    return {rule: observed.get(rule) or UNCHECKED.get(rule, "") for rule in rules()}


def as_markdown() -> str:
    """Return the text of the page of `list --rules --markdown`."""
    lines = [
        "# Rules and their checks",
        "",
        f"Revision {REVISION}: {len(CHECKS)} checks. Written by `plumbline checks --rules --markdown`.",
        "",
        "| rule | level | checks, or why there is none |",
        "|---|---|---|",
    ]
    for rule, observed in manifest().items():
        level = rules()[rule]["level"]
        cell = ", ".join(f"`{name}`" for name in observed) if isinstance(observed, list) else f"*{observed}*"
        lines.append(f"| {rule} | {level} | {cell} |")
    return "\n".join([*lines, *_clause_rows()]) + "\n"


def _clause_rows() -> Iterator[str]:
    """Yield the table of clauses."""
    yield from ("", "## Clauses", "", _CLAUSES_NOTE, "")
    yield from (
        "| clause | requires | answer | checks, each with a mutant that it detects |",
        "|---|---|---|---|",
    )
    for clause in clauses():
        for number, place in enumerate(clause.places):
            found = [f"`{one.check}` ({one.mutant})" for one in clause.evidence.get(place, ())]
            cell = ", ".join(found) or f"*{clause.unchecked[place]}*"
            head = f"{clause.id} | {clause.clause}" if number == 0 else " | "
            yield f"| {head} | {place} | {cell} |".replace("|  | |", "| | |")


_CLAUSES_NOTE = (
    "A rule often requires several things. Each row is one of them, for whole answers, streams or refusals: the check"
    "\nthat detects a server without it, and in brackets a mutant that it detects (`nox -s mutants`)."
)


def published(revision: str = REVISION) -> list[str]:
    """Return the current ids of the checks of a revision."""
    return [current(name) for name in as_published(revision)]


def as_published(revision: str) -> list[str]:
    """Return the ids of the checks of a revision as they were published."""
    text = files("plumbline_conformance.suite.requirements").joinpath(f"{revision}.txt").read_text("utf-8")
    return text.split()


def revisions() -> list[str]:
    """Return the published revisions, oldest first."""
    found = (entry.name for entry in files("plumbline_conformance.suite.requirements").iterdir())
    return sorted(name.removesuffix(".txt") for name in found if name.endswith(".txt"))

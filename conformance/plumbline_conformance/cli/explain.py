"""Explain a check or a rule (`plumbline explain`)."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from typing import Annotated

from rich.console import Console
from rich.markup import escape

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.client.http import exchange_of
from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import Describe, Texts, UnusableInput
from plumbline_conformance.reports.curl import curl
from plumbline_conformance.suite.aliases import current, notes
from plumbline_conformance.suite.clauses import Clause, clauses_of
from plumbline_conformance.suite.client_claims import CLAIMS
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.coverage import UNCHECKED
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS, Check, CheckSummary, Scenario, Target
from plumbline_conformance.suite.selection import named
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["ExplainCommand", "clause_lines", "explain"]

_IDS = re.compile(r"(?:(?:, | to | and )?[A-Z]+-\d+)+\.?")
_MOST_REQUESTS = 6
_EXAMPLE = Target(base_url="http://127.0.0.1:8000/v1", model="NAME")


class ExplainCommand(Command, frozen=True, kw_only=True):
    """Explain checks, scenarios and rules."""

    example = "plumbline explain CHAT-08"

    ids: Annotated[
        Texts,
        Describe("ids", "the id of a check, scenario or rule, a prefix or a pattern", "ID", positional=True),
    ]

    def run(self, out: Console) -> int:
        """Print what is known of each id."""
        for name in self.ids:
            lines = explain(name)
            if lines is None:
                raise UnusableInput(
                    f"there is no check, scenario or rule {name}: `plumbline checks` lists them"
                )
            for line in lines:
                out.print(escape(line))
            if name != self.ids[-1]:
                out.print()
        return 0


def explain(name: str) -> list[str] | None:
    """Return the lines about a check, a scenario or a rule; None if the name is unknown.

    A former id is explained under its current id, with a note. A prefix or pattern selects checks as in
    `plumbline check`: they are listed, or explained if there is only one.
    """
    if former := list(notes([name])):
        return [*former, "", *(explain(current(name)) or [])]
    if name in CHECKS:
        return list(_check(CHECKS[name]))
    if name in SCENARIOS:
        return list(_scenario(SCENARIOS[name]))
    if name in CLAIMS:
        return list(_claim(CLAIMS[name]))
    if name.upper() in rules():
        return list(_rule(name.upper(), full=True))
    match named(name):
        case []:
            return None
        case [found]:
            return list(_check(found))
        case several:
            heading = f"{name} matches {len(several)} checks. Explain one with `plumbline explain ID`:"
            return [heading, *(f"    {found.id}  {found.title}" for found in several)]


def _check(found: Check) -> Iterator[str]:
    yield f"{found.id}  ({found.level})"
    yield f"{found.title}."
    yield ""
    for rule in found.rules:
        yield from _rule(rule, full=False)
    if len(found.rules) > 1:
        yield "Each problem names the rule that it breaks."
    if rules()[found.rules[0]]["level"].removesuffix(" NOT") != found.level:
        yield "The check requires less than its rule, because major servers disagree about the rule."
    if found.sampled:
        yield "It judges sampled output: another answer may keep the rule, so the scenario is repeated if it fails."
    doc = inspect.getdoc(found.law or found.judge)
    # A problem that only repeats the name of the rule adds nothing.
    if doc and not _IDS.fullmatch(doc):
        yield from ("", "How it looks:", *(f"    {line}" for line in doc.splitlines()))
    yield ""
    yield from _scenario(SCENARIOS[found.id.rsplit("/", 1)[0]])
    yield f"Run it: plumbline check URL {shlex.quote(found.id)}"


def _claim(found: CheckSummary) -> Iterator[str]:
    client = found.id.split("/")[1]
    yield f"{found.id}  ({found.level})"
    yield f"{found.title}."
    yield ""
    for rule in found.rules:
        yield from _rule(rule, full=False)
    yield ""
    yield f"The client {client} reads all recorded answers again from this machine."
    yield f"Run it: plumbline check URL --sdk {client}"


def _rule(name: str, *, full: bool) -> Iterator[str]:
    rule = rules()[name]
    yield f"{name} {rule['level']}: {rule['sentence']}"
    yield f"    source: {rule['source']}{_meaning(rule['source'])}"
    if rule.get("why"):
        yield f"    why: {rule['why']}"
    if not full:
        return
    yield f"    operations: {', '.join(rule['operations']) or 'all'}"
    for clause in clauses_of(name):
        yield from (f"    {line}" for line in clause_lines(clause))
    observers = [found for found in (*CHECKS.values(), *CLAIMS.values()) if name in found.rules]
    yield "Observed by:" if observers else f"No check observes it by itself: {UNCHECKED[name]}."
    for found in observers:
        yield f"    {found.id}  {found.title}"


def clause_lines(found: Clause) -> Iterator[str]:
    """Yield the lines about a clause: its requirement, and for each kind of answer its checks or the reason."""
    yield f"{found.id}  {found.clause}"
    for place in found.places:
        shown = [f"{one.check} (detects: {one.mutant})" for one in found.evidence.get(place, ())]
        yield f"{place}: {', '.join(shown) or 'not checked: ' + found.unchecked[place]}"


def _meaning(source: str) -> str:
    """Explain where a rule comes from, if its source names no document."""
    return next((f" ({meaning})" for begin, meaning in SOURCES.items() if source.startswith(begin)), "")


SOURCES = {
    "OpenAI API document": "the published OpenAPI description of the API; followed by the schema or field",
    "implied by": "not stated in the document, but its members make sense in no other way",
    "Open Responses": "the open specification of the Responses API, and its test suite",
    "public bug reports": "clients of several servers broke without it",
    "recorded traffic": "observed in answers of the service itself",
    "reported": "the issues of the servers named",
    "seen in the field": "the issues of the servers named",
    "OpenAI Python SDK": "the official client fails or misreads the answer otherwise",
    "project policy": "a decision of this project",
}
"""The meaning of each source, by how its text begins."""


def _scenario(found: Scenario) -> Iterator[str]:
    core = ", which no server may refuse" if found.core else ""
    yield f"Scenario {found.id}: {found.title}{core}."
    steps = found.steps(_EXAMPLE)
    # Without a server, requests that depend on an answer may be missing.
    silence = Exchange(method="", url="", request_headers={}, request_body=b"", error="explained, not sent")
    request = next(steps, None)
    for _ in range(_MOST_REQUESTS):
        if request is None:
            return
        label = request.name or "request"
        yield f"    {label}: {curl(exchange_of(_EXAMPLE, request))}"
        try:
            request = steps.send(silence)
        except StopIteration:
            return
    yield "    and so on"

"""Define the report of a run, the value that JSON and all other formats are written from."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.recording.file import RecordingHeader
from plumbline_conformance.recording.redaction import concealed, redacted
from plumbline_conformance.reports.baseline import VIOLATIONS, Baseline
from plumbline_conformance.reports.curl import curl
from plumbline_conformance.reports.timeline import Moment, moments
from plumbline_conformance.suite.client_claims import claim_of, title_of
from plumbline_conformance.suite.contract import page_of, rules
from plumbline_conformance.suite.scenario import Problem, broken_rules
from plumbline_conformance.suite.selection import PROFILES
from plumbline_conformance.transcript.defects import traceback_of
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = [
    "FORMAT",
    "SCORED",
    "VERDICTS",
    "WORST_FIRST",
    "Evidence",
    "Report",
    "Result",
    "Rule",
    "UnreadableReport",
    "event_of",
    "read_report",
    "report_of",
    "with_defects",
]

FORMAT = 2
"""Increases when older readers would misunderstand a report. New fields do not increase it."""
VERDICTS = ("pass", "fail", "warn", "flaky", "untestable", "rejected", "inconclusive", "skipped", "error")
"""All verdicts, in the order of the printed counts."""
WORST_FIRST = ("error", "fail", "untestable", "flaky", "warn", "pass", "rejected", "inconclusive", "skipped")
"""The order in which a rule gets its verdict from the verdicts of its checks: a pass outweighs missing verdicts."""
SCORED = frozenset({"pass", *VIOLATIONS})
"""Verdicts that decide about the rule."""
_EVENT = re.compile(r"\b(?:event|frame) (\d+)\b")
_LONGEST_REQUEST = 4000


class UnreadableReport(UnusableInput):
    """The file is not a report, or of a later format."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule as in the suite of the run."""

    id: str
    level: str
    sentence: str
    source: str = ""
    url: str = ""
    """The address of its page, relative to the root of the site."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    check: str
    title: str
    level: str
    rules: list[str]
    verdict: str
    problems: list[Problem] = msgspec.field(default_factory=list)
    reason: str | None = None
    expected: str | None = None
    """The reason why a baseline accepts this violation."""
    sampled: bool = False
    """Whether the check depends on the content that the model wrote (behaviour) or not (protocol)."""
    traceback: str = ""
    """Where the judge itself failed, for the verdict `error`."""
    cause: str | None = None
    """The check that shows the same cause; reports describe that one alone."""

    @property
    def rules_to_show(self) -> list[str]:
        """The rules to report: those that the problems name, or all rules of the check."""
        return broken_rules(self.problems) or self.rules

    @property
    def scenario(self) -> str:
        """The id of the scenario."""
        return self.check.rsplit("/", 1)[0]

    @property
    def surface(self) -> str:
        """The first segment of the id, the part of the API."""
        return self.check.partition("/")[0]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange, shortened; the recording has all of it."""

    name: str = ""
    """The name by which problems refer to it; unique within its scenario."""
    method: str
    url: str
    request_headers: dict[str, str]
    request: str
    command: str
    status: int
    headers: list[tuple[str, str]]
    error: str | None
    moments: list[Moment]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a run."""

    run: RecordingHeader
    results: list[Result]
    rules: dict[str, Rule]
    """The rules of checks that do not pass."""
    scenarios: dict[str, str]
    """Titles of the scenarios of the results."""
    evidence: dict[str, list[Evidence]]
    """Exchanges by scenario, of scenarios that do not pass, or of all."""
    stale: list[str] = msgspec.field(default_factory=list)
    """Stale entries of the baseline."""
    profile: str = "full"
    """The profile of the run."""
    lacking: dict[str, str] = msgspec.field(default_factory=dict)
    """Capabilities that the profile requires and the server lacks, with the evidence."""
    seconds: float | None = None
    format: int = FORMAT

    @property
    def counts(self) -> Counter[str]:
        """The number of checks by verdict."""
        return Counter(result.verdict for result in self.results)

    def kept(self, *, sampled: bool) -> tuple[int, int]:
        """Return how many behaviour or protocol checks pass, and how many have a verdict."""
        scored = [r.verdict for r in self.results if r.verdict in SCORED and r.sampled == sampled]
        return scored.count("pass"), len(scored)

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps({**msgspec.to_builtins(self), "counts": dict(self.counts)}, indent=1) + "\n"


def report_of(
    run: RecordingHeader,
    transcripts: Sequence[Transcript],
    findings: Sequence[Finding],
    *,
    baseline: Baseline | None = None,
    seconds: float | None = None,
    secrets: Sequence[str] = (),
    everything: bool = False,
    profile: str = "full",
) -> Report:
    """Return the report of a run, with credentials redacted.

    With `everything` it includes the exchanges of scenarios that pass.
    """
    known = baseline or Baseline()
    results = [_result(finding, known) for finding in findings]
    marks = _marks(results, everything=everything)
    evidence: dict[str, list[Evidence]] = {}
    defects: dict[str, str] = {}
    for seen in transcripts:
        if seen.scenario not in marks:
            continue
        try:
            evidence[seen.scenario] = [
                _evidence(exchange, frozenset(marks[seen.scenario]), key=run.key is not None)
                for exchange in redacted(seen, secrets).everything
            ]
        except Exception as error:
            defects[seen.scenario] = concealed(traceback_of(error), secrets)
    lacking = _lacking(transcripts, {result.scenario for result in results}, profile)
    report = Report(
        run=run,
        results=results,
        rules={name: _rule(name) for name in sorted(_rules_of(results))},
        scenarios={name: title_of(name) for name in dict.fromkeys(r.scenario for r in results)},
        evidence=evidence,
        stale=known.stale(findings),
        profile=profile,
        lacking={name: concealed(why, secrets) for name, why in lacking.items()},
        seconds=None if seconds is None else round(seconds, 2),
    )
    return _without_halves(with_defects(report, defects))


def _marks(results: Sequence[Result], *, everything: bool) -> dict[str, set[int]]:
    """Return the scenarios whose exchanges are shown, each with the numbers of the events that problems point at."""
    marks: dict[str, set[int]] = {
        result.scenario: set() for result in results if everything or result.verdict != "pass"
    }
    for result in results:
        for problem in result.problems:
            events = marks.setdefault(problem.scenario or result.scenario, set())
            if (number := event_of(problem)) is not None:
                events.add(number)
    return marks


def _rules_of(results: Sequence[Result]) -> set[str]:
    """Return the rules of the checks that do not pass."""
    wrong = [result for result in results if result.verdict != "pass"]
    return {rule for result in wrong for rule in (*result.rules, *result.rules_to_show)}


def _lacking(transcripts: Sequence[Transcript], chosen: Collection[str], profile: str) -> dict[str, str]:
    """Return the capabilities that the profile requires and these scenarios showed to be missing, with the reason."""
    required = PROFILES[profile].requires
    return {
        seen.lacks: seen.skipped or ""
        for seen in transcripts
        if seen.lacks in required and seen.scenario in chosen
    }


def with_defects(report: Report, defects: Mapping[str, str]) -> Report:
    """Return the report with the verdict `error` for scenarios that the judge cannot show.

    Args:
        report: the report.
        defects: the traceback for each such scenario.
    """
    if not defects:
        return report
    results = [
        result if (traceback := defects.get(result.scenario)) is None else _as_error(result, traceback)
        for result in report.results
    ]
    evidence = {name: seen for name, seen in report.evidence.items() if name not in defects}
    named = {name: _rule(name) for result in results if result.verdict == "error" for name in result.rules}
    return msgspec.structs.replace(
        report, results=results, evidence=evidence, rules={**report.rules, **named}
    )


def _as_error(result: Result, traceback: str) -> Result:
    reason = f"the judge cannot show the verdict `{result.verdict}`: {traceback.rpartition(chr(10))[2]}"
    return msgspec.structs.replace(
        result, verdict="error", problems=[], reason=reason, expected=None, traceback=traceback
    )


def read_report(path: Path) -> Report:
    """Read a JSON report.

    Raises:
        UnreadableReport: the file is not a report, or of a later format.
        OSError: the file cannot be read.
    """
    try:
        value = json.loads(path.read_bytes())
        if isinstance(value, dict) and value.get("format") != FORMAT:
            raise UnreadableReport(
                f"{path.name} has format {value.get('format')!r}; this version reads {FORMAT}. "
                "Write it again from its recording."
            )
        return msgspec.convert(value, Report)
    except (ValueError, RecursionError) as error:
        raise UnreadableReport(f"{path.name} is not a report: {error}") from error


def event_of(problem: Problem) -> int | None:
    """Return the number of the event that a problem points at."""
    found = _EVENT.search(problem.pointer)
    return int(found[1]) if found and len(found[1]) < 9 else None


def _result(finding: Finding, known: Baseline) -> Result:
    found = claim_of(finding.check)
    assert found is not None
    return Result(
        check=finding.check,
        title=found.title,
        sampled=found.sampled,
        level=found.level,
        rules=list(found.rules),
        verdict=finding.verdict,
        problems=finding.problems,
        reason=finding.reason,
        traceback=finding.traceback,
        expected=known.expected[finding.check].why if known.covers(finding) else None,
    )


def _rule(name: str) -> Rule:
    found: dict[str, Any] = rules()[name]
    return Rule(
        id=name, level=found["level"], sentence=found["sentence"], source=found["source"], url=page_of(name)
    )


def _evidence(exchange: Exchange, marked: frozenset[int], *, key: bool) -> Evidence:
    request = exchange.request_body[:_LONGEST_REQUEST].decode("utf-8", "replace")
    if len(exchange.request_body) > _LONGEST_REQUEST:
        request += f" … ({len(exchange.request_body)} bytes)"
    return Evidence(
        name=exchange.name,
        method=exchange.method,
        url=exchange.url,
        request_headers=exchange.request_headers,
        request=request,
        command=curl(exchange, key=key),
        status=exchange.status,
        headers=exchange.headers,
        error=exchange.error,
        moments=moments(exchange, marked),
    )


def _without_halves(report: Report) -> Report:
    """Replace halves of surrogate pairs, which servers do send and UTF-8 cannot encode, by escapes."""
    return msgspec.convert(_whole(msgspec.to_builtins(report)), Report)


def _whole(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_whole(key): _whole(member) for key, member in value.items()}
        case list() | tuple():
            return [_whole(member) for member in value]
    return value

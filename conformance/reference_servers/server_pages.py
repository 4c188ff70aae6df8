"""Make the page of a foreign server from its recording and explanations: its strengths and its defects.

The explanations next to a recording are written by hand, one for each cause. Each becomes an entry with the checks
that the cause breaks and a request that shows it.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from inspect import cleandoc

from history import Past, history_lines, past_of
from patches import PATCHES
from repetitions import Repetitions
from servers import PeerServer

from plumbline_conformance.reports.baseline import VIOLATIONS
from plumbline_conformance.reports.matrix.explained import Explanation
from plumbline_conformance.reports.matrix.table import Column
from plumbline_conformance.reports.report import Report, Result

__all__ = ["server_page"]

_FATAL = frozenset({"HTTP-16", "HTTP-17"})
"""Rules about a server that stays alive and does not fail on requests."""
_SHOWN = 6
"""Checks of an entry that are named."""
_STORED = re.compile(r"/(?:resp|conv|chatcmpl)[_-]")
_LONGEST = 700
"""Characters of a command; a longer one is found in the report."""


def server_page(
    name: str, peer: PeerServer, column: Column, repeated: Repetitions | None, earlier: Sequence[Past] = ()
) -> str:
    """Return the page in Markdown.

    Args:
        name: the name of the recording.
        peer: how it was started.
        column: its recording's report, with the explanations.
        repeated: the results of further runs, if any.
        earlier: the results of earlier recordings.
    """
    report = column.report
    results = {result.check: result for result in report.results}
    entries = sorted(
        column.explanations.explanation,
        key=lambda entry: _harm(entry, results),
        reverse=True,
    )
    lines = [
        f"# {report.run.server}",
        "",
        f"Judged on {report.run.started[:10]} with the pocket model and the full profile"
        + (", in front of our own server, which has no failure of its own." if peer.upstream else "."),
        f"`nox -s peers -- {name}` installs and judges it again. It was started with:",
        "",
        f"    {_command(peer)}",
        *_patched(name),
        "",
        f"Verdicts: {_counts(report)}. "
        f"[The recording](../../../conformance/recordings/{name}.jsonl.gz) has every byte.",
        *(["", repeated.sentence] if repeated else []),
        "",
        "## Strengths",
        "",
        *_well(report),
        "",
        "## Defects, most harmful first",
        "",
        "Defects that make the server fail come first, then defects that break the most MUST checks. Each has its",
        "cause, as an issue would name it, and a request that shows it; `$BASE` is the server's address.",
        "",
    ]
    for number, entry in enumerate(entries, start=1):
        lines += _entry(number, entry, report, results)
    if not entries:
        lines += ["None.", ""]
    lines += ["## History", "", *history_lines([*earlier, past_of(report)])]
    return "\n".join(lines).rstrip() + "\n"


def _harm(entry: Explanation, results: dict[str, Result]) -> tuple[bool, int, int]:
    found = [results[check] for check in entry.checks if check in results]
    fatal = any(not _FATAL.isdisjoint(result.rules_to_show) for result in found)
    return fatal, sum(result.level == "MUST" for result in found), len(found)


def _command(peer: PeerServer) -> str:
    names = {
        "port": "8000",
        "spare_port": "8001",
        "mcp": "127.0.0.1:8003",
        "model": "plumbline-pocket",
        "upstream": "http://127.0.0.1:8002",
        "packages": "PACKAGES",
        "data": "DATA",
    }
    given = [f"{name}={shlex.quote(value.format(**names))}" for name, value in peer.variables.items()]
    return " ".join([*given, *(shlex.quote(part.format(**names)) for part in peer.command)])


def _patched(name: str) -> Sequence[str]:
    """Return the changes to the installed server, from the docstring of its patch."""
    if name not in PATCHES:
        return []
    return [
        "",
        "It was changed to start on a machine without a GPU:",
        "",
        *cleandoc(PATCHES[name].__doc__ or "").splitlines()[2:],
    ]


def _counts(report: Report) -> str:
    order = ("pass", "fail", "warn", "flaky", "untestable", "rejected", "inconclusive", "skipped", "error")
    return ", ".join(f"{report.counts[verdict]} {verdict}" for verdict in order if report.counts[verdict])


def _well(report: Report) -> Sequence[str]:
    """Return a list of the parts of the API with the share of checks that pass."""
    passed: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    for result in report.results:
        if result.verdict in ("pass", *VIOLATIONS):
            judged[result.surface] += 1
            passed[result.surface] += result.verdict == "pass"
    shares = sorted(judged, key=lambda part: (-passed[part] / judged[part], part))
    return [
        f"- `{part}`: {passed[part]} of {judged[part]} checks pass"
        for part in shares
        if passed[part] * 2 > judged[part]
    ] or ["No part of the API passes more than half of its checks."]


def _entry(number: int, entry: Explanation, report: Report, results: dict[str, Result]) -> list[str]:
    found = [results[check] for check in entry.checks if check in results]
    rules = sorted({rule for result in found for rule in result.rules_to_show})
    shown = ", ".join(f"`{check}`" for check in entry.checks[:_SHOWN])
    more = len(entry.checks) - _SHOWN
    return [
        f"{number}. {entry.why}",
        "",
        f"   {', '.join(rules)}: {shown}{f' and {more} more' if more > 0 else ''}",
        "",
        f"       {_request(report, found[0])}",
        "",
    ]


def _request(report: Report, result: Result) -> str:
    """Return a command that shows a violation: the exchange that the problem names, or the check alone."""
    problem = next(iter(result.problems), None)
    scenario = (problem.scenario if problem else "") or result.scenario
    exchanges = report.evidence.get(scenario, [])
    named = [one for one in exchanges if problem is None or one.name == problem.exchange]
    alone = f"plumbline check $BASE/v1 {result.check}"
    if not named or _STORED.search(named[0].url):
        return alone  # Objects that were stored in that run no longer exist.
    root = report.run.base_url.removesuffix("/v1")
    command = re.sub(f"'{re.escape(root)}([^']*)'", r'"$BASE\1"', named[0].command)
    command = command.replace(root, "$BASE")
    return command if len(command) <= _LONGEST and "\n" not in command else alone

"""Write reports even if a scenario cannot be shown: it becomes the verdict `error`, with its traceback.

The other scenarios keep their results, and the exit status reports a defect of the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from plumbline_conformance.reports.report import Report, with_defects
from plumbline_conformance.transcript.defects import traceback_of

__all__ = ["render_all"]

Render = Callable[[Report], str]


def render_all(report: Report, renderers: Sequence[Render]) -> tuple[Report, list[str]]:
    """Return the text of each renderer, and the report that they show.

    If a renderer fails, the scenarios that make it fail alone become errors. If it also fails without them, all
    scenarios do. A renderer that cannot even show these errors gives its traceback.
    """
    for find in (_culprits, _everything):
        texts, failures = _rendered(report, renderers)
        if not failures:
            return report, texts
        defects = {
            name: text for render, error in failures for name, text in find(report, render, error).items()
        }
        report = with_defects(report, defects)
    return report, _rendered(report, renderers)[0]


def _rendered(
    report: Report, renderers: Sequence[Render]
) -> tuple[list[str], list[tuple[Render, Exception]]]:
    texts: list[str] = []
    failures: list[tuple[Render, Exception]] = []
    for render in renderers:
        try:
            texts.append(render(report))
        except Exception as error:
            failures.append((render, error))
            texts.append(
                f"This report cannot be written, because of a defect of the judge.\n{traceback_of(error)}\n"
            )
    return texts, failures


def _culprits(report: Report, render: Render, _: Exception) -> dict[str, str]:
    """Return the scenarios that cannot be rendered alone, with the tracebacks."""
    found: dict[str, str] = {}
    for name in report.scenarios:
        try:
            render(_only(report, name))
        except Exception as error:
            found[name] = traceback_of(error)
    return found


def _everything(report: Report, _: Render, error: Exception) -> dict[str, str]:
    return dict.fromkeys(report.scenarios, traceback_of(error))


def _only(report: Report, scenario: str) -> Report:
    """Return the report of one scenario, with the exchanges that its problems name."""
    results = [result for result in report.results if result.scenario == scenario]
    shown = {scenario, *(problem.scenario for result in results for problem in result.problems)}
    evidence = {name: seen for name, seen in report.evidence.items() if name in shown}
    scenarios = {scenario: report.scenarios[scenario]}
    return msgspec.structs.replace(
        report, results=results, evidence=evidence, scenarios=scenarios, stale=[], lacking={}
    )

"""Examine every template of some folders.

    python -m real_templates FOLDER…     fails if a template is not read as it writes and no exception says why
    python -m real_templates --all FOLDER…     shows every difference in full

The folders are not fetched. `exceptions.json` lists the differences that are no fault of ours, with the reason; it also
fails if an exception no longer applies.
"""

from __future__ import annotations

import sys
from pathlib import Path

from real_templates.exceptions import EXCEPTIONS, unexplained, unused
from real_templates.report import Report
from real_templates.round_trip import examine

_SHOWN = 2
"""Differences of a template that are shown in full without `--all`."""


def main(arguments: list[str]) -> int:
    """Print a report for each template, then a summary; returns 1 if it fails."""
    folders = [argument for argument in arguments if argument != "--all"]
    if not folders:
        print("Give folders of templates: nox -s templates -- FOLDER...")
        return 2
    paths = sorted(path for folder in folders for path in Path(folder).rglob("*.jinja"))
    reports = [examine(f"{path.parent.name}/{path.name}", path.read_text("utf-8")) for path in paths]
    for report in reports:
        _print(report, all_of_them="--all" in arguments)
    stale = unused(reports, EXCEPTIONS)
    for exception in stale:
        print(f"No longer needed: {exception.template}: {', '.join(exception.probes)} ({exception.reason})")
    with_tools = [report for report in reports if report.has_tools]
    good = [report for report in with_tools if not unexplained(report, EXCEPTIONS)]
    clean = sum(not report.differences for report in with_tools)
    failed = [report.name for report in reports if unexplained(report, EXCEPTIONS)]
    print(
        f"{len(reports)} templates, {len(with_tools)} with tools: {clean} are read as they write, "
        f"{len(good) - clean} but for exceptions; {len(failed)} of all are not; "
        f"{len(stale)} exceptions are no longer needed."
    )
    return 1 if failed or stale or not reports else 0


def _print(report: Report, *, all_of_them: bool) -> None:
    print(f"{report.name}\n    tools {report.tool}, reasoning {report.reasoning}; thinking {report.thinking}")
    if report.dropped:
        print(f"    does not write: {', '.join(report.dropped)}")
    new = unexplained(report, EXCEPTIONS)
    print(f"    {report.passed} probes read back{'' if report.has_tools else ', no tool section'}")
    shown = new if all_of_them else new[:_SHOWN]
    for difference in shown:
        print(f"    DIFFERS {difference.probe}: {difference.found}")
    if more := new[len(shown) :]:
        print(f"    DIFFERS also: {', '.join(difference.probe for difference in more)}")
    if excepted := [difference.probe for difference in report.differences if difference not in new]:
        print(f"    excepted: {', '.join(excepted)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

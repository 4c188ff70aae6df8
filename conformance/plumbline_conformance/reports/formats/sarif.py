"""Write SARIF 2.1.0, which code scanning of CI systems shows: a broken rule is a rule, a check a result.

The place of a result is the path of the request below the server's address, because a server has no source file here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from plumbline_conformance.reports.formats.text import failure_lines, printable, requests_of
from plumbline_conformance.reports.report import Report, Result
from plumbline_conformance.reports.standing import UNJUDGED, blamed, lacking, whole

__all__ = ["sarif"]

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"MUST": "error", "SHOULD": "warning", "MAY": "note"}


def sarif(report: Report, *, strict: bool = False) -> str:
    """Return the document. What makes the exit status non-zero is an error; what a baseline accepts is suppressed.

    An interrupted run is no successful execution: a reader would take its missing results for repaired defects.
    """
    blame = blamed(report, strict=strict)
    shown = [result for result in report.results if result.problems or result.check in blame]
    driver = {
        "name": "plumbline",
        "version": report.run.suite.get("version", "unknown"),
        "rules": [
            {
                "id": rule.id,
                "shortDescription": {"text": rule.sentence},
                "defaultConfiguration": {"level": _LEVELS.get(rule.level, "error")},
            }
            for rule in report.rules.values()
        ],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [
            {
                "executionSuccessful": 3 not in blame.values() and whole(report),
                "toolExecutionNotifications": [
                    {"level": "error", "message": {"text": text}} for text in _notes(report, strict)
                ],
            }
        ],
        "results": [_result(report, result, blamed=result.check in blame) for result in shown],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _notes(report: Report, strict: bool) -> Iterator[str]:
    """Yield what makes the exit status non-zero and is the result of no check."""
    yield from (f"{name} no longer occurs as listed in the baseline" for name in report.stale if strict)
    yield from lacking(report)
    if not whole(report):
        yield UNJUDGED


def _result(report: Report, result: Result, *, blamed: bool) -> dict[str, Any]:
    broken = result.rules_to_show
    found: dict[str, Any] = {
        "ruleId": broken[0] if broken else result.check,
        "level": "error" if blamed else _LEVELS.get(result.level, "warning"),
        "message": {"text": "\n".join([result.title, *failure_lines(report, result)])},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": _path(report, result)}},
                "logicalLocations": [{"fullyQualifiedName": result.check, "kind": "module"}],
            }
        ],
        "partialFingerprints": {"check/v1": result.check},
    }
    if result.expected is not None:
        found["suppressions"] = [{"kind": "external", "justification": printable(result.expected)}]
    return found


def _path(report: Report, result: Result) -> str:
    """Return the path of the first request, without the server's address; the check if none was kept."""
    for evidence in requests_of(report, result)[:1]:
        below = evidence.url.removeprefix(report.run.base_url.rstrip("/"))
        path = below.partition("://")[2].partition("/")[2] if "://" in below else below
        return quote(path.partition("?")[0].strip("/"), errors="replace") or result.check
    return result.check

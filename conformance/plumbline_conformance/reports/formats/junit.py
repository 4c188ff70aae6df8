"""Write JUnit XML: a scenario is a test suite, a check is a test case."""

from __future__ import annotations

from itertools import groupby
from xml.etree import ElementTree

from plumbline_conformance.reports.formats.text import failure_lines
from plumbline_conformance.reports.report import Report, Result
from plumbline_conformance.reports.standing import UNJUDGED, blamed, lacking, whole

__all__ = ["junit"]


def junit(report: Report, *, strict: bool = False) -> str:
    """Return the document. Warnings are failures only with `strict`; checks without a verdict are skipped.

    Everything that makes the exit status non-zero is a failure, or an error if it is not the server's fault.
    """
    blame = blamed(report, strict=strict)
    root = ElementTree.Element("testsuites", name="plumbline")
    for scenario, results in groupby(report.results, lambda result: result.scenario):
        suite = ElementTree.SubElement(root, "testsuite", name=scenario)
        tally = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
        for result in results:
            case = ElementTree.SubElement(
                suite, "testcase", classname=scenario.replace("/", "."), name=result.check.rsplit("/", 1)[1]
            )
            kind = _kind(result, blame.get(result.check))
            tally["tests"] += 1
            if kind is None:
                continue
            tally[{"failure": "failures", "error": "errors"}.get(kind, kind)] += 1
            message = result.expected or result.reason or result.title
            node = ElementTree.SubElement(case, kind, message=_legal(f"{result.verdict}: {message}"))
            if kind != "skipped":
                node.set("type", result.verdict)
                node.text = _legal("\n".join(failure_lines(report, result)))
        for name, count in tally.items():
            suite.set(name, str(count))
    for name in report.stale if strict else ():
        reason = f"{name} no longer occurs as listed"
        _alone(root, "baseline", name, "failure", "stale", reason, "Remove or correct the entry.")
    for name, sentence in zip(report.lacking, lacking(report), strict=True):
        _alone(root, "profile", name, "failure", "lacking", sentence)
    if not whole(report):
        _alone(root, "run", "whole", "error", "inconclusive", UNJUDGED)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _kind(result: Result, blame: int | None) -> str | None:
    if blame is not None:
        return "failure" if blame == 1 else "error"
    return None if result.verdict == "pass" else "skipped"


def _alone(
    root: ElementTree.Element, suite: str, name: str, kind: str, kept: str, message: str, text: str = ""
) -> None:
    """Return a suite of one case that is not a check."""
    counts = {"tests": "1", "failures": "0", "errors": "0", f"{kind}s": "1"}
    parent = ElementTree.SubElement(root, "testsuite", counts, name=suite)
    case = ElementTree.SubElement(parent, "testcase", classname=suite, name=_legal(name))
    node = ElementTree.SubElement(case, kind, type=kept, message=_legal(message))
    node.text = text


def _legal(text: str) -> str:
    """Replace control characters, which XML cannot represent."""
    return "".join(char if _is_legal(ord(char)) else ascii(char)[1:-1] for char in text)


def _is_legal(code: int) -> bool:
    if code < 0x20:
        return code in (0x09, 0x0A, 0x0D)
    return not (0x7F <= code < 0xA0 or 0xD800 <= code <= 0xDFFF or code in (0xFFFE, 0xFFFF))

"""A crash is one fault: it is said once, and not of every rule that an answer would have shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from plumbline_conformance.suite.model import CHECKS

if TYPE_CHECKING:
    from plumbline_conformance.verdicts import Finding

__all__ = ["said_once"]


def said_once(findings: Sequence[Finding]) -> list[Finding]:
    """Leave a crash with the first MUST that it kept from being seen; what else it hid came to no verdict."""
    tellers: dict[tuple[int | None, str, str], str] = {}
    for level in ("MUST", "SHOULD", "MAY"):
        for finding in findings:
            if finding.crash and CHECKS[finding.check].level == level:
                tellers.setdefault(_crash(finding), finding.check)
    return [
        finding
        if not finding.crash or tellers[_crash(finding)] == finding.check
        else msgspec.structs.replace(
            finding,
            verdict="inconclusive",
            problems=[],
            reason=f"{finding.problems[0].actual}; {tellers[_crash(finding)]} says so",
        )
        for finding in findings
    ]


def _crash(finding: Finding) -> tuple[int | None, str, str]:
    [problem] = finding.problems
    return problem.exchange, problem.actual, problem.pointer

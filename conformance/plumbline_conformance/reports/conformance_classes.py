"""Sum up a report by conformance class, so that a server is seen by what it offers.

A check belongs to one class, by what its scenario needs and its rule is about: state before tools, tools before
structured output, and that before streaming. What is left is the core. A class that the server refuses or lacks is "not
offered" and accuses it of nothing.
"""

from __future__ import annotations

from functools import cache

import msgspec

from plumbline_conformance.reports.baseline import VIOLATIONS
from plumbline_conformance.reports.report import SCORED, Report
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS

__all__ = ["CLASSES", "ClassScore", "class_of", "classes_line", "scores_by_class"]

CLASSES = ("core", "streaming", "structured", "tools", "stateful")
"""From the simplest to the one that needs most of a server."""
_STATE = frozenset({"stored", "stored-chat", "background", "conversations", "compact", "websocket"})
_TOOLS = frozenset({"tools", "shell", "local-shell", "tool-search", "mcp", "apply-patch"})
_BY_RULE = {
    "ST": "stateful",
    "WS": "stateful",
    "TOOL": "tools",
    "SO": "structured",
    "CS": "streaming",
    "RS": "streaming",
    "SSE": "streaming",
}


class ClassScore(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of one conformance class."""

    name: str
    passed: int
    judged: int
    """Checks with a verdict."""
    broken: int
    """Checks that break a MUST, and that no baseline accepts."""

    @property
    def verdict(self) -> str:
        """`pass`, `fail` or `not offered`."""
        return "fail" if self.broken else "pass" if self.judged else "not offered"


@cache
def class_of(check: str) -> str:
    """Return the conformance class of a check; one that the suite does not know belongs to the core."""
    found, scenario = CHECKS.get(check), SCENARIOS.get(check.rpartition("/")[0])
    needs = scenario.needs if scenario is not None else ()
    if not _STATE.isdisjoint(needs):
        return "stateful"
    areas = {rule.partition("-")[0] for rule in (found.rules if found is not None else ())}
    wanted = {_BY_RULE[area] for area in areas & _BY_RULE.keys()}
    if not _TOOLS.isdisjoint(needs):
        wanted.add("tools")
    if "structured" in needs:
        wanted.add("structured")
    return next((name for name in ("stateful", "tools", "structured", "streaming") if name in wanted), "core")


def scores_by_class(report: Report) -> list[ClassScore]:
    """Return the score of every conformance class, in the order of `CLASSES`."""
    found: dict[str, list[tuple[str, bool]]] = {name: [] for name in CLASSES}
    for result in report.results:
        # A check of a MUST rule warns where the rule leaves room.
        breaks = result.level == "MUST" and result.verdict in VIOLATIONS - {"warn"}
        counts = breaks and result.expected is None
        found[class_of(result.check)].append((result.verdict, counts))
    return [
        ClassScore(
            name=name,
            passed=sum(verdict == "pass" for verdict, _ in verdicts),
            judged=sum(verdict in SCORED for verdict, _ in verdicts),
            broken=sum(counts for _, counts in verdicts),
        )
        for name, verdicts in found.items()
    ]


def classes_line(report: Report) -> str:
    """Return one line: `core: pass (812 of 812), streaming: fail (3 of 230 break a MUST), tools: not offered`."""
    return ", ".join(f"{score.name}: {score.verdict}{_amount(score)}" for score in scores_by_class(report))


def _amount(score: ClassScore) -> str:
    if not score.judged:
        return ""
    if score.broken:
        return f" ({score.broken} of {score.judged} break a MUST)"
    return f" ({score.passed} of {score.judged})"

"""Sum up the verdicts of servers by area of the contract, for a table that fits one screen."""

from __future__ import annotations

import re

import msgspec

from plumbline_conformance.reports.matrix.table import ServerMatrix, worst
from plumbline_conformance.reports.report import SCORED, Result

__all__ = ["AREAS", "AREAS_NOTE", "AreaScore", "area_of", "scores_of"]

AREAS = {
    "CHAT": "Chat",
    "CS": "Chat streams",
    "CMP": "Completions",
    "TOOL": "Tools",
    "SO": "Structured output",
    "LP": "Log probs",
    "R": "Responses",
    "RS": "Responses streams",
    "ST": "Stored state",
    "WS": "WebSocket",
    "ERR": "Errors",
    "HTTP": "HTTP",
    "SSE": "SSE",
    "MOD": "Models",
    "MSG": "Messages",
    "SDK": "Clients",
}
"""The areas of the rules, by the letters of their ids, in the order of the columns."""
AREAS_NOTE = (
    "A cell shows how many of the area's checks with a verdict pass, in percent, and after it how many MUST rules are "
    "broken (⚠️: how many SHOULD rules, if no MUST). An empty cell has no verdict: the server does not offer this, "
    "or its recording is older than the checks."
)


class AreaScore(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of one server in one area."""

    area: str
    passed: int
    judged: int
    """Checks with a verdict."""
    broken: list[str]
    """MUST rules that the server breaks."""
    lacking: list[str]
    """SHOULD rules that the server breaks."""
    check: str
    """The first check that breaks a rule of this area, a MUST before a SHOULD; empty if none does."""

    @property
    def share(self) -> int | None:
        """The checks that pass in percent, rounded down; None without verdicts."""
        return 100 * self.passed // self.judged if self.judged else None

    @property
    def verdict(self) -> str:
        """The verdict of the area: `fail`, `warn` or `pass`."""
        return "fail" if self.broken else "warn" if self.lacking else "pass"

    @property
    def short(self) -> str:
        """The text of a cell of the summary."""
        if self.share is None:
            return ""
        mark = f" ❌{len(self.broken)}" if self.broken else f" ⚠️{len(self.lacking)}" if self.lacking else ""
        return f"{self.share}{mark}"


def area_of(rule: str) -> str:
    """Return the title of the area of a rule."""
    letters = re.match(r"[A-Z]*", rule)[0]  # type: ignore[index]
    return AREAS.get(letters, letters)


def scores_of(matrix: ServerMatrix) -> dict[str, list[AreaScore]]:
    """Return, for each area with a verdict on any server, the score of every server."""
    rows: dict[str, list[tuple[str, list[list[Result]]]]] = {title: [] for title in AREAS.values()}
    for rule, found in matrix.rules:
        rows.setdefault(area_of(rule), []).append((rule, found))
    scores = {
        area: [
            _score(area, [(rule, found[place]) for rule, found in rules])
            for place in range(len(matrix.columns))
        ]
        for area, rules in rows.items()
    }
    return {area: found for area, found in scores.items() if any(score.judged for score in found)}


def _score(area: str, rules: list[tuple[str, list[Result]]]) -> AreaScore:
    checks: dict[str, list[Result]] = {}
    broken: dict[str, list[tuple[str, Result]]] = {"MUST": [], "SHOULD": []}
    for rule, results in rules:
        for result in results:
            checks.setdefault(result.check, []).append(result)
        first = next((result for result in results if result.verdict == worst(results)), None)
        if first is not None and first.verdict in SCORED - {"pass"}:
            # A check of a MUST rule may be a SHOULD, where the rule leaves room: it warns.
            must = first.level == "MUST" and first.verdict != "warn"
            broken["MUST" if must else "SHOULD"].append((rule, first))
    verdicts = [worst(results) for results in checks.values()]
    every = [*broken["MUST"], *broken["SHOULD"]]
    return AreaScore(
        area=area,
        passed=verdicts.count("pass"),
        judged=sum(verdict in SCORED for verdict in verdicts),
        broken=sorted(rule for rule, _ in broken["MUST"]),
        lacking=sorted(rule for rule, _ in broken["SHOULD"]),
        check=every[0][1].check if every else "",
    )

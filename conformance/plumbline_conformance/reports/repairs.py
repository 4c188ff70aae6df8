"""Summarise failures: how many causes they have, what is not in the baseline, and which repairs help most."""

from __future__ import annotations

from collections import Counter

import msgspec

from plumbline_conformance.reports.baseline import VIOLATIONS
from plumbline_conformance.reports.report import Report

__all__ = ["Repair", "new_lines", "repair_lines", "repairs"]

_BROKEN = ("fail", "flaky")
_FEWEST = 4
"""Failing checks that a report must have before it says where to begin."""


class Repair(msgspec.Struct, frozen=True):
    """A rule to keep."""

    rule: str
    sentence: str
    checks: list[str]
    """The checks that pass once this rule is kept and those of the repairs before it."""


def repairs(report: Report, most: int = 3) -> list[Repair]:
    """Return the repairs in their order: each time the rule that turns most of the remaining checks green.

    A check turns green when every rule that its problems name is kept. Where no single rule turns any green, the one
    that most of them break comes next.
    """
    left = {
        result.check: set(result.rules_to_show)
        for result in report.results
        if result.verdict in _BROKEN and result.expected is None
    }
    sentences = {rule: known.sentence for rule, known in report.rules.items()}
    found: list[Repair] = []
    while left and len(found) < most:
        alone = Counter(next(iter(rules)) for rules in left.values() if len(rules) == 1)
        counts = alone or Counter(rule for rules in left.values() for rule in rules)
        if not counts:
            break
        rule = min(counts, key=lambda name: (-counts[name], name))
        for rules in left.values():
            rules.discard(rule)
        green = [check for check, rules in left.items() if not rules]
        for check in green:
            del left[check]
        found.append(Repair(rule, sentences.get(rule, ""), green))
    return found


def repair_lines(report: Report) -> list[str]:
    """Return how many causes there are and what to repair first; nothing where only a few checks fail."""
    failing = [result for result in report.results if result.verdict in _BROKEN and result.expected is None]
    broken, described = len(failing), sum(result.cause is None for result in failing)
    if broken < _FEWEST:
        return []
    causes = "1 cause" if described == 1 else f"{described} causes, each described once"
    return [f"{broken} failing checks have {causes}."] + [
        f"{f'Then repair {one.rule}' if number else f'Repair {one.rule} first'}, and {len(one.checks)} "
        f"{'more' if number else f'of {broken} failing checks'} will pass: {one.sentence}"
        for number, one in enumerate(repairs(report))
    ]


def new_lines(report: Report) -> list[str]:
    """Return one line with the violations that a baseline does not accept; nothing if it accepts none or all."""
    broken = [result for result in report.results if result.verdict in VIOLATIONS]
    new = [result.check for result in broken if result.expected is None]
    if not new or len(new) == len(broken):
        return []
    return [f"{len(new)} of {len(broken)} violations are not in the baseline: {', '.join(new)}"]

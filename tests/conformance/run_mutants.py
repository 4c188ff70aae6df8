"""`nox -s mutants`: every broken server and the checks that caught it, the kill rate, and the reference twenty times.

Then the faults that are derived from the recorded answers and the schemas (`derived/`) are judged offline. `-- --all`
prints a line for each mutant; otherwise there is one for each rule. `-- --zoo` leaves out the derived faults.
`-- source --seed N --count N` judges our own server with faults in its source instead (`source_mutants/`).
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, defaultdict

from derived.survivors import LISTED, judged
from example_servers.good_server import serving, target_at, transcripts
from example_servers.reference import application
from mutants import MUTANTS
from mutants.named_rules import named
from source_mutants.run import main as source_mutants

from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS

REPETITIONS = 20
LEAST = 0.98
"""The share of illegal derived faults that checks have to detect."""
ACCUSING = ("fail", "warn", "untestable")


def main(arguments: list[str]) -> int:
    """Print the matrix; 0 if every mutant was caught by its checks and its rule alone, and the reference never."""
    if arguments[:1] == ["source"]:
        return source_mutants(arguments[1:])
    killed: dict[str, list[bool]] = defaultdict(list)
    survivors: list[str] = []
    for scenario, name, mutation, tripped in MUTANTS:
        found = judge(mutation(transcripts()[scenario]))
        caught = {finding.check.rsplit("/", 1)[1] for finding in found if finding.verdict in ACCUSING}
        dead = caught == set(tripped) and all(_named(finding, scenario, name) for finding in found)
        killed[rule_of(scenario, name, tripped[0])].append(dead)
        if not dead:
            survivors.append(f"{scenario}: {name}: {sorted(tripped)} should, {sorted(caught)} did")
        if "--all" in arguments:
            print(f"{'killed' if dead else 'ALIVE':7} {scenario:30} {name:48} {', '.join(sorted(caught))}")
    for rule in rules():
        if killed[rule]:
            print(f"{rule:9} {rules()[rule]['level']:9} {sum(killed[rule]):4} of {len(killed[rule])}")
    wrong = _unbroken()
    for line in [*survivors, *wrong]:
        print(line)
    count = len(MUTANTS) - len(survivors)
    print(
        f"{len(CHECKS)} checks; {count} of {len(MUTANTS)} mutants killed: {100 * count / len(MUTANTS):.1f} %"
    )
    print(f"the unbroken reference: {len(wrong)} false accusations in {REPETITIONS} repetitions")
    alive = [] if "--zoo" in arguments else _derived()
    return 1 if survivors or wrong or alive else 0


def _derived() -> list[str]:
    """Judge the derived faults; return the survivors without a reason, the judge's defects and stale patterns."""
    outcome = judged(transcripts().values())
    stale = [pattern for row in LISTED for pattern in row.faults if pattern not in outcome.used]
    lines = [f"no check detects, and no reason lists: {name}" for name in outcome.unlisted]
    lines += [f"the judge fails at: {name}" for name in outcome.errors]
    lines += [f"no survivor matches any more: {pattern}" for pattern in stale]
    if outcome.share < LEAST:
        lines.append(f"less than {LEAST:.0%} of the illegal faults are detected")
    for line in lines:
        print(line)
    legal = outcome.listed - outcome.missed
    print(
        f"{outcome.total} derived faults: {outcome.detected} detected, {legal} survive and are legal, "
        f"{outcome.missed} survive and are not (tests/conformance/derived/survivors.toml), "
        f"{len(outcome.unlisted)} survive without a reason: {outcome.share:.1%} of the illegal ones are detected"
    )
    return lines


def _named(finding: Finding, scenario: str, name: str) -> bool:
    """Whether the problems of a check that observes several rules name the one that this mutant breaks."""
    slug = finding.check.rsplit("/", 1)[1]
    if len(CHECKS[finding.check].rules) < 2 or not finding.problems:
        return True
    first, *others = named(scenario, slug, name)
    return first in finding.broken and set(finding.broken) <= {first, *others}


def rule_of(scenario: str, name: str, slug: str) -> str:
    """The rule that a mutant breaks, as its first check sees it: a check of one rule sees no other."""
    first, *others = CHECKS[f"{scenario}/{slug}"].rules
    return next(iter(named(scenario, slug, name)), first) if others else first


def _unbroken() -> list[str]:
    wrong: Counter[str] = Counter()
    with serving(application()) as base_url:
        target = target_at(base_url)
        for _ in range(REPETITIONS):
            for seen in asyncio.run(record(list(SCENARIOS.values()), target)):
                wrong.update(finding.check for finding in judge(seen) if finding.verdict != "pass")
    return [f"{name}: {count} of {REPETITIONS} times no pass" for name, count in wrong.items()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

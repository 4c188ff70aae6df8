"""Judge our server with drawn faults in its source, one at a time: `nox -s mutants -- source --seed N --count N`.

The unchanged server answers each session of the wide set and each scenario of the judge, and notes which lines run in
it. Faults are drawn from lines that the wide set runs. A fault counts if the server starts with it and answers a
request of the wide set in another way; only the sessions that run its line are sent. The judge then sends the scenarios
that run the line, the quick ones first, and the others, and ends at the first accusation. A survivor is a fault that no
check accuses: `survivors.toml` has the reason of each.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import multiprocessing
import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import msgspec
from support.source_faults import Fault, faults_of

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.runner.preflight import apis_of, discovered
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.scenario import CAPABILITIES, SCENARIOS, Scenario, Target
from plumbline_conformance.transcript.exchange import Transcript
from source_mutants.answers import UNSTEADY, Answers, answers, first_change, steady
from source_mutants.outcomes import MutantOutcome, append_outcome, conclude, read_outcomes, survivors
from source_mutants.server import (
    DidNotStart,
    LineNotes,
    Lines,
    import_all,
    lines_of_imports,
    served,
)
from source_mutants.swap import Change
from source_mutants.wide import SESSIONS

__all__ = ["FIRST", "LEFT_OUT", "PACKAGE", "PACKAGES", "UNCHANGED", "main", "parts"]

PACKAGE = Path(__file__).parents[3] / "src" / "plumbline"
PACKAGES = ("answer", "server")
LEFT_OUT = ("server/page", "answer/dialects/families", "server/store/sql/postgres")
"""What the requests of an API cannot reach."""
UNCHANGED = "answer/turn.py"
"""A module that the unchanged server imports as a changed one is."""
PATIENCE = 6.0
"""Seconds for one request: the slowest of the unchanged server takes one."""
NOTING = 120.0
"""Seconds for one request of the server that notes its lines."""
FIRST = 4
"""Scenarios of the first run of the judge; each further one has twice as many."""
JUDGING = 300.0
"""Seconds for all scenarios, ten times as long as the unchanged server takes; a fault that takes longer survives."""
ACCUSING = ("fail", "warn", "untestable")
"""Without further attempts a check is never flaky, and one broken attempt of several accuses as well."""
_DECLARED = dict.fromkeys(CAPABILITIES, True)


class Reference(msgspec.Struct, kw_only=True):
    """What the unchanged server answers, and which lines run meanwhile."""

    good: Answers = {}
    imports: Lines = {}
    """The lines that run while modules are imported: functions cannot be swapped afterwards."""
    start: Lines = {}
    """The lines that run before the first request: a fault there may show anywhere."""
    sessions: dict[str, Lines] = {}
    """By session of the wide set, its lines."""
    scenarios: dict[str, Lines] = {}
    """By scenario of the judge, its lines; the quickest scenario first."""

    def reached(self, fault: Fault) -> bool:
        """Whether the start or the wide set runs the line of a fault."""
        return any(_runs(lines, fault) for lines in (self.start, *self.sessions.values()))

    def near(self, fault: Fault, lines: dict[str, Lines]) -> list[str]:
        """Return the sessions or scenarios in which a fault may show."""
        return [name for name, ran in lines.items() if _runs(self.start, fault) or _runs(ran, fault)]


def _runs(lines: Lines, fault: Fault) -> bool:
    return fault.node.lineno in lines.get(fault.path, ())


def main(arguments: list[str]) -> int:
    """Print a line for each fault and the rate; 0 if the goal is met and every survivor has a reason."""
    parser = argparse.ArgumentParser(prog="nox -s mutants -- source", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw (default 1)")
    parser.add_argument("--count", type=int, default=500, help="faults that change an answer (default 500)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="faults whose place matches")
    parser.add_argument(
        "--survivors", action="store_true", help="the illegal faults of survivors.toml, not drawn ones"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="servers at a time")
    parser.add_argument(
        "--to", type=Path, metavar="FILE", help="append outcomes; faults in it are not tried again"
    )
    options = parser.parse_args(arguments)
    done = read_outcomes(options.to, options.seed) if options.to is not None else []
    reference = _reference()
    again = {place for row in survivors() if not row.legal for place in row.faults}
    tried = {outcome.place for outcome in done}
    drawn = [
        fault
        for fault in _drawn(PACKAGE.rglob("*.py"), reference, options.seed)
        if fnmatchcase(fault.place, options.only)
        and fault.place not in tried
        and (not options.survivors or fault.place in again)
    ]
    requests = sum(map(len, reference.good.values()))
    print(f"{len(drawn)} faults in lines that run; {requests} requests", flush=True)
    global _OF_WORKERS
    _OF_WORKERS = reference  # Forks inherit it.
    end = time.monotonic() + 60 * options.minutes
    counted = [outcome for outcome in done if outcome.counts]
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        # In the order of the draw: at the end of the time, a slow fault is waited for and not left out.
        for outcome in pool.imap(partial(_tried, seed=options.seed), drawn):
            done.append(outcome)
            if options.to is not None:
                append_outcome(options.to, outcome)
            if outcome.counts:
                counted.append(outcome)
                print(f"{len(counted):3} {outcome}", flush=True)
            if len(counted) >= options.count or time.monotonic() > end:
                break
        pool.terminate()
    return conclude(done)


def _drawn(paths: Iterable[Path], reference: Reference, seed: int) -> list[Fault]:
    """Return the faults of the lines that run, in the order of the draw."""
    found: dict[tuple[str, str], Fault] = {}
    for path in sorted(paths):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(tuple(f"{package}/" for package in PACKAGES)) or name.startswith(LEFT_OUT):
            continue
        for fault in faults_of(path, PACKAGE):
            if reference.reached(fault):
                found[f"{name}:{fault.node.lineno}:{fault.node.col_offset}", fault.new] = fault
    faults = list(found.values())
    random.Random(seed).shuffle(faults)
    return faults


def _reference() -> Reference:
    """Return the answers of the unchanged server that are the same twice, and the lines that run.

    The sessions are sent in both orders, so that only answers are compared that no other session changes.
    """
    asked = LineNotes(None)
    with served(notes=asked):
        _, modules = asked.take()
    import_all(name for name in modules if name.partition(".")[0] != "plumbline")
    notes = LineNotes(PACKAGE)
    found = Reference()
    order = list(SESSIONS)
    first: Answers = {}
    seconds: dict[str, float] = {}
    with served(notes=notes) as target:
        found.start, _ = notes.take()
        for name in order:
            first |= asyncio.run(answers(target, [name], NOTING))
            found.sessions[name], _ = notes.take()
        for scenario in SCENARIOS.values():
            began = time.monotonic()
            asyncio.run(record([scenario], target, patience=NOTING, declared=_DECLARED))
            seconds[scenario.id] = time.monotonic() - began
            found.scenarios[scenario.id], modules = notes.take()  # Some are imported by the first request.
    found.scenarios = {
        name: found.scenarios[name] for name in sorted(seconds, key=lambda name: seconds[name])
    }
    import_all(name for name in modules if name.partition(".")[0] != "plumbline")
    found.imports = lines_of_imports(modules, PACKAGE)
    import_all(modules)
    # The same source by the slow way, which must start: a fault must not fail because of it.
    file, name = PACKAGE / UNCHANGED, UNCHANGED.removesuffix(".py").replace("/", ".")
    unchanged = Change(f"plumbline.{name}", str(file), file.read_text("utf-8"), imported=True)
    with served(unchanged) as target:
        found.good = steady(first, asyncio.run(answers(target, order[::-1], PATIENCE)))
        accused, why = asyncio.run(_judged(target, list(found.scenarios)))
    if accused:
        raise SystemExit(f"the judge accuses the unchanged server: {why}")
    unsteady = [
        f"{name}, {answer[0]}" for name in order for answer in found.good[name] if answer[1] == UNSTEADY
    ]
    if unsteady:
        print(f"not compared, because the unchanged server answers them in two ways: {'; '.join(unsteady)}")
    return found


_OF_WORKERS = Reference()
"""What workers compare with."""


def _tried(fault: Fault, seed: int) -> MutantOutcome:
    began = time.monotonic()
    kind, what = _kind(fault, _OF_WORKERS)
    return MutantOutcome(seed=seed, place=fault.place, kind=kind, what=what, seconds=time.monotonic() - began)


def _kind(fault: Fault, reference: Reference) -> tuple[str, str]:
    path = PACKAGE / fault.path
    module = ".".join(("plumbline", *Path(fault.path).with_suffix("").parts)).removesuffix(".__init__")
    source = fault.apply(path.read_bytes()).decode()
    change = Change(module, str(path), source, imported=_runs(reference.imports, fault))
    try:
        with served(change) as target:
            sessions = reference.near(fault, reference.sessions)
            changed = asyncio.run(first_change(target, sessions, reference.good, PATIENCE))
            if changed is None:
                return "no change", ""
            near = reference.near(fault, reference.scenarios)
            others = [name for name in reference.scenarios if name not in near]
            accused, why = asyncio.run(_judged(target, near, others))
    except DidNotStart:
        return "no start", ""
    return ("detected" if accused else "survived"), f"{changed}: {why}"


async def _judged(target: Target, near: Sequence[str], others: Sequence[str] = ()) -> tuple[bool, str]:
    """Return whether the judge accuses the server, and the first checks that do.

    Args:
        target: the server.
        near: the scenarios that run the changed line.
        others: sent if none of these accuses: a store that writes later runs the line in another scenario.
    """
    found = await discovered(target, apis_of(list(SCENARIOS.values())), patience=PATIENCE)
    if found.why is not None:
        return True, f"cannot be judged: {found.why[:80]}"
    why = ""
    try:
        async with asyncio.timeout(JUDGING):
            for names in (near, others):
                for part in parts([SCENARIOS[name] for name in names]):
                    why = why or await _accused(part, found.target)
    except TimeoutError:
        return False, f"the judge did not end in {JUDGING:g} s"
    return bool(why), why or "no check accuses"


def parts(scenarios: Sequence[Scenario]) -> Iterator[Sequence[Scenario]]:
    """Yield the scenarios in runs that double in size, hostile ones last and lethal ones after them.

    A run accuses answers without an end when its other scenarios have ended: one run of all would wait for each.
    """
    ordered = sorted(scenarios, key=lambda one: (one.hostile, one.lethal))
    start, size = 0, FIRST
    while start < len(ordered):
        yield ordered[start : start + size]
        start, size = start + size, 2 * size


async def _accused(scenarios: Sequence[Scenario], target: Target) -> str:
    """Send these scenarios up to the first accusation."""
    accused: list[str] = []

    def see(transcript: Transcript) -> None:
        if not accused:
            accused.extend(map(_described, filter(_accuses, judge(transcript))))
            if accused:
                running.cancel()

    running = asyncio.create_task(
        record(
            scenarios,
            target,
            patience=PATIENCE,
            ended=see,
            restart_wait=3.0,
            declared=_DECLARED,
        )
    )
    try:
        await running
    except asyncio.CancelledError:
        if not accused:  # By the time-out.
            running.cancel()
            raise
    return ", ".join(accused[:3])


def _accuses(finding: Finding) -> bool:
    """Whether a run with all capabilities declared would end with status 1."""
    scenario = SCENARIOS[finding.check.rpartition("/")[0]]
    required = scenario.core or scenario.needs
    return finding.verdict in ACCUSING or (bool(required) and finding.verdict in ("rejected", "skipped"))


def _described(finding: Finding) -> str:
    return f"{finding.verdict} {finding.check}"

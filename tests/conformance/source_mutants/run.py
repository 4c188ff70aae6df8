"""Judge our server with drawn faults in its source, one at a time: `nox -s mutants -- source --seed N --count N`.

A reference server answers the wide set of requests, and notes which lines of the packages run. Faults are drawn from
those lines. A fault counts if the server starts with it and answers a request of the wide set in another way. The whole
suite then judges that server. A survivor is a fault that no check accuses: `survivors.toml` has the reason of each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
from support.source_faults import Fault, faults_of

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from own_server.launch import KEY, MODEL, DidNotStart, launched_server
from plumbline_conformance.client.http import conversations
from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.runner.preflight import apis_of, discovered
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.model import CAPABILITIES, SCENARIOS, Target
from plumbline_conformance.transcript.model import Exchange, Transcript
from source_mutants.wide import SESSIONS

__all__ = ["main"]

PACKAGE = Path(__file__).parents[3] / "src" / "plumbline"
PACKAGES = ("protocols", "road", "store", "server", "dialects", "structured_output")
LEFT_OUT = ("server/page", "server/start/first_run", "dialects/families", "store/sql/postgres")
"""What the requests of an API cannot reach."""
SERVER = Path(__file__).with_name("server.py")
SURVIVORS = Path(__file__).with_name("survivors.toml")
GOAL = 0.95
PATIENCE = 15.0
"""Seconds for one request: the slowest of the unchanged server takes one."""
JUDGING = 300.0
"""Seconds for all scenarios, ten times as long as the unchanged server takes."""
ACCUSING = ("fail", "warn", "flaky", "untestable")
_VOLATILE = (
    (rb"\b((?:chatcmpl|cmpl|resp|msg|rs|fc|ctc|conv|call|req|toolu|cmp)[-_])[A-Za-z0-9_-]{8,}", rb"\1ID"),
    (rb'"(created|created_at|completed_at|expires_at)": ?[0-9.]+', rb'"\1":T'),
    (rb'"(obfuscation|encrypted_content|signature)": ?"[^"]*"', rb'"\1":"X"'),
    (rb"[0-9a-f]{32,}", rb"HEX"),
)
_HEADERS = ("content-type", "allow", "cache-control", "www-authenticate")

Answers = dict[str, list[tuple[str, int, tuple[str, ...], bytes]]]
"""By session: the name, status, headers and normalised body of each exchange."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one fault."""

    fault: Fault
    kind: str
    """`no start`, `no change`, `detected` or `survived`."""
    what: str = ""
    """The request whose answer changed, and the first check that accused."""


def main(arguments: list[str]) -> int:
    """Print a line for each fault and the rate; 0 if the goal is met and every survivor has a reason."""
    parser = argparse.ArgumentParser(prog="nox -s mutants -- source", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw (default 1)")
    parser.add_argument("--count", type=int, default=500, help="faults that change an answer (default 500)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="faults whose place matches")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder), options)


def _run(folder: Path, options: argparse.Namespace) -> int:
    good, lines = _reference(folder)
    drawn = [fault for fault in _drawn(lines, options.seed) if fnmatchcase(fault.place, options.only)]
    print(f"{len(drawn)} faults in lines that run; {sum(map(len, good.values()))} requests", flush=True)
    counted: list[Outcome] = []
    kinds: Counter[str] = Counter()
    end = time.monotonic() + 60 * options.minutes
    for fault in drawn:
        if len(counted) == options.count or time.monotonic() > end:
            break
        outcome = _tried(fault, good, folder)
        kinds[outcome.kind] += 1
        if outcome.kind in ("detected", "survived"):
            counted.append(outcome)
            print(f"{len(counted):3} {outcome.kind:9} {fault.place}\n{'':14}{outcome.what}", flush=True)
    return _conclude(counted, kinds)


def _conclude(counted: list[Outcome], kinds: Counter[str]) -> int:
    reasons = tomllib.loads(SURVIVORS.read_text("utf-8")).get("survivor", [])
    unlisted = []
    legal = 0
    for outcome in counted:
        if outcome.kind != "survived":
            continue
        row = next((row for row in reasons if outcome.fault.place in row["faults"]), None)
        legal += row is not None and row["legal"]
        if row is None:
            unlisted.append(outcome.fault.place)
    detected = kinds["detected"]
    illegal = len(counted) - legal
    low, high = wilson(detected, illegal)
    print(f"{kinds['no start']} do not start, {kinds['no change']} change no answer of the wide set")
    print(
        f"{len(counted)} faults: {detected} detected, {legal} survive and are legal, "
        f"{len(counted) - detected - legal} survive and are not: {detected / max(1, illegal):.1%} of the illegal "
        f"ones are detected (95 % interval {low:.1%} to {high:.1%})"
    )
    for place in unlisted:
        print(f"no check detects, and no reason lists: {place}")
    return 1 if unlisted or detected < GOAL * illegal else 0


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share.

    >>> [round(bound, 3) for bound in wilson(95, 100)]
    [0.888, 0.978]
    """
    if not total:
        return 0.0, 1.0
    share = hits / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    low, high = (middle - spread) / (1 + z * z / total), (middle + spread) / (1 + z * z / total)
    return max(0.0, low), min(1.0, high)


def _drawn(lines: Mapping[str, list[int]], seed: int) -> list[Fault]:
    """Return the faults of the lines that run, in the order of the draw."""
    found: dict[tuple[str, str], Fault] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(tuple(f"{package}/" for package in PACKAGES)) or name.startswith(LEFT_OUT):
            continue
        ran = set(lines.get(f"/{name}", ()))
        for fault in faults_of(path, PACKAGE):
            if fault.node.lineno in ran:
                found[f"{name}:{fault.node.lineno}:{fault.node.col_offset}", fault.new] = fault
    faults = list(found.values())
    random.Random(seed).shuffle(faults)
    return faults


def _reference(folder: Path) -> tuple[Answers, dict[str, list[int]]]:
    """Return the answers of the unchanged server that are the same twice, and the lines that run."""
    noted = folder / "lines.json"
    runs = []
    for plan in ({"lines": str(noted), "package": str(PACKAGE)}, {"module": "", "path": "", "source": ""}):
        with _served(plan, folder) as url:
            runs.append(asyncio.run(_answers(url, 120.0)))
            time.sleep(2 if "lines" in plan else 0)  # The lines are written every second.
    one, other = runs
    good = {
        name: [
            answer if answer == twin else (answer[0], -1, (), b"")
            for answer, twin in zip(first, other[name], strict=False)
        ]
        for name, first in one.items()
    }
    unsteady = [answer[0] for answers in good.values() for answer in answers if answer[1] < 0]
    if unsteady:
        print(f"not compared, because the unchanged server answers them in two ways: {', '.join(unsteady)}")
    lines: dict[str, list[int]] = json.loads(noted.read_text("utf-8"))
    return good, lines


def _served(plan: Mapping[str, str], folder: Path) -> Any:
    file = folder / "plan.json"
    file.write_text(json.dumps(plan), "utf-8")
    return launched_server(KEY, program=[sys.executable, str(SERVER), str(file)])


def _tried(fault: Fault, good: Answers, folder: Path) -> Outcome:
    path = PACKAGE / fault.path
    source = fault.apply(path.read_bytes()).decode()
    module = ".".join(("plumbline", *Path(fault.path).with_suffix("").parts)).removesuffix(".__init__")
    try:
        with _served({"module": module, "path": str(path), "source": source}, folder) as url:
            changed = asyncio.run(_first_change(url, good))
            if changed is None:
                return Outcome(fault=fault, kind="no change")
            accused = asyncio.run(_judged(url, near=changed))
    except DidNotStart:
        return Outcome(fault=fault, kind="no start")
    kind = "survived" if accused is None else "detected"
    return Outcome(fault=fault, kind=kind, what=f"{changed}: {accused or 'no check accuses'}")


async def _answers(url: str, patience: float, good: Answers | None = None) -> Answers:
    """Return the answers to the wide set; with those of the unchanged server, up to the first change."""
    found: Answers = {}
    target = Target(base_url=url, model=MODEL, api_key=KEY)
    async with conversations(target, patience) as begin:
        for name, session in SESSIONS.items():
            found[name] = []
            async with begin() as conversation:
                steps = session()
                request = next(steps, None)
                while request is not None:
                    exchange = await conversation.send(request)
                    answer = _normalised(request.name, exchange)
                    found[name].append(answer)
                    if good is not None and _differs(answer, good[name], len(found[name]) - 1):
                        return found
                    try:
                        request = steps.send(exchange)
                    except StopIteration:
                        break
            if good is not None and len(found[name]) != len(good[name]):
                return found
    return found


def _differs(answer: Any, expected: list[Any], place: int) -> bool:
    return place >= len(expected) or (expected[place][1] >= 0 and answer != expected[place])


async def _first_change(url: str, good: Answers) -> str | None:
    """Return the name of the first request that is answered in another way."""
    found = await _answers(url, PATIENCE, good)
    session = list(found)[-1]
    last = found[session][-1] if found[session] else ("nothing", 0, (), b"")
    whole = list(found) == list(good) and [len(found[name]) for name in good] == [len(good[n]) for n in good]
    if whole and not _differs(last, good[session], len(found[session]) - 1):
        return None
    return f"{session}, {last[0]}"


def _normalised(name: str, exchange: Exchange) -> tuple[str, int, tuple[str, ...], bytes]:
    headers = tuple(sorted(f"{key}: {value}" for key, value in exchange.headers if key in _HEADERS))
    names = tuple(sorted({key for key, _ in exchange.headers} - {"date"}))
    body = _steady(exchange.body)
    if b'"index":1' in body and body.startswith(b"data:"):
        body = b"\n\n".join(sorted(body.split(b"\n\n")))  # Choices take turns as they please.
    return _steady(name.encode()).decode(), exchange.status, (*headers, *names), body


def _steady(text: bytes) -> bytes:
    """Replace ids, times and random texts."""
    for pattern, new in _VOLATILE:
        text = re.sub(pattern, new, text)
    return text


async def _judged(url: str, near: str) -> str | None:
    """Return the first check that accuses the server, or None.

    Args:
        url: the server.
        near: the first request that it answers in another way; scenarios of that API come first.
    """
    target = Target(base_url=url, model=MODEL, api_key=KEY)
    scenarios = sorted(SCENARIOS.values(), key=lambda one: one.id.partition("/")[0] not in near)
    found = await discovered(target, apis_of(scenarios), patience=PATIENCE)
    if found.why is not None:
        return f"cannot be judged: {found.why[:80]}"
    accused: list[str] = []

    def see(transcript: Transcript) -> None:
        if not accused:
            accused.extend(map(_described, filter(_accuses, judge(transcript))))
            if accused:
                running.cancel()

    running = asyncio.create_task(
        record(
            scenarios,
            found.target,
            patience=PATIENCE,
            trials=3,
            ended=see,
            restart_wait=3.0,
            declared=dict.fromkeys(CAPABILITIES, True),
        )
    )
    try:
        await asyncio.wait_for(running, JUDGING)
    except TimeoutError:
        return f"the judge did not end in {JUDGING:g} s"
    except asyncio.CancelledError:  # By `see`, at the first accusation.
        pass
    return ", ".join(accused[:3]) or None


def _accuses(finding: Finding) -> bool:
    """Whether a run with all capabilities declared would end with status 1."""
    scenario = SCENARIOS[finding.check.rpartition("/")[0]]
    required = scenario.core or scenario.needs
    return finding.verdict in ACCUSING or (bool(required) and finding.verdict in ("rejected", "skipped"))


def _described(finding: Finding) -> str:
    return f"{finding.verdict} {finding.check}"

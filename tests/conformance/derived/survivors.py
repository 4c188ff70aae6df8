"""Judge derived faults and compare the survivors with the committed list of those that have a reason."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

import msgspec

from derived.faults import PAIR, Fault, faults, pairs
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["LISTED", "FaultOutcome", "Listed", "judged", "survives"]

ACCUSING = ("fail", "warn", "untestable")
SAMPLED = 15
"""Exchanges of a sweep that are tried."""
PAIRS = 12
"""Pairs of faults that are tried for each exchange."""


class Listed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Faults that no check detects, and why."""

    why: str
    legal: bool
    """Whether a server may answer so; otherwise the answer breaks a MUST or the schema, and the judge misses it."""
    faults: list[str]
    """Patterns of ids: `SCENARIO REQUEST KIND: FAULT`."""


def _read(path: Path) -> list[Listed]:
    return msgspec.convert(tomllib.loads(path.read_text("utf-8"))["survivor"], list[Listed])


LISTED = _read(Path(__file__).with_name("survivors.toml"))
_ILLEGAL = frozenset(pattern for row in LISTED if not row.legal for pattern in row.faults)
"""A fault that one of these matches is illegal, whatever else matches it."""


class FaultOutcome(msgspec.Struct):
    """What became of the faults of some scenarios."""

    total: int = 0
    listed: int = 0
    missed: int = 0
    """Listed survivors that no server may send."""
    unlisted: list[str] = msgspec.field(default_factory=list)
    errors: list[str] = msgspec.field(default_factory=list)
    """Faults at which the judge itself failed."""
    used: set[str] = msgspec.field(default_factory=set)
    """The patterns that matched a survivor."""

    @property
    def detected(self) -> int:
        """Return how many faults a check detects."""
        return self.total - self.listed - len(self.unlisted) - len(self.errors)

    @property
    def share(self) -> float:
        """Return the share of illegal faults that are detected; every fault that is detected is illegal."""
        return self.detected / max(1, self.detected + self.missed + len(self.unlisted))


def judged(transcripts: Iterable[Transcript]) -> FaultOutcome:
    """Judge every derived fault of these transcripts."""
    outcome = FaultOutcome()
    for good in map(sampled, transcripts):
        for fault in chain(faults(good), pairs(good, PAIRS)):
            outcome.total += 1
            try:
                alive = survives(fault, good)
            except AssertionError:
                outcome.errors.append(fault.id)
                continue
            if not alive:
                continue
            patterns = list(_patterns(fault.id))
            outcome.used.update(patterns)
            if patterns:
                outcome.listed += 1
                outcome.missed += not _ILLEGAL.isdisjoint(patterns)
            else:
                outcome.unlisted.append(fault.id)
    return outcome


def sampled(seen: Transcript) -> Transcript:
    """Return a few of the exchanges of a sweep: its hundreds of answers are alike, and each is judged by one law."""
    if not seen.scenario.endswith("/members"):
        return seen
    first, *others = seen.exchanges
    return Transcript(scenario=seen.scenario, exchanges=[first, *others[:: len(others) // SAMPLED]])


def survives(fault: Fault, good: Transcript) -> bool:
    """Return whether no check accuses a server with this fault.

    Raises:
        AssertionError: the judge failed.
    """
    for seen in fault.transcripts(good):
        verdicts = {finding.verdict for finding in judge(seen)}
        assert "error" not in verdicts, fault.id
        if verdicts & set(ACCUSING):
            return False
    return True


def _patterns(name: str) -> Iterator[str]:
    """Yield the patterns that list a fault; two faults at once are listed if each of them is, or as a pair."""
    own = [pattern for pattern in _listing(name) if PAIR in pattern]
    first, found, second = name.partition(PAIR)
    if own or not found:
        return iter(own or _listing(name))
    prefix = first[: first.index(" ", first.index(" ") + 1) + 1]
    halves = list(_listing(first)), list(_listing(prefix + second))
    return iter([*halves[0], *halves[1]] if all(halves) else [])


def _listing(name: str) -> Iterator[str]:
    return (pattern for row in LISTED for pattern in row.faults if fnmatchcase(name, pattern))

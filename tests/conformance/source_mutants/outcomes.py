"""Count the outcomes of drawn faults: `python -m source_mutants.outcomes FILE …` adds them to `drawn.toml`.

A run appends each outcome to a file. The counts of all draws are in `drawn.toml`, and the reasons of survivors in
`survivors.toml`; the share of all and its interval are computed from these two.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

__all__ = [
    "DRAWN",
    "SURVIVORS",
    "Draw",
    "MutantOutcome",
    "Survivor",
    "append_outcome",
    "conclude",
    "draws",
    "read_outcomes",
    "shares",
    "survivors",
    "wilson",
]

SURVIVORS = Path(__file__).with_name("survivors.toml")
DRAWN = Path(__file__).with_name("drawn.toml")
GOAL = 0.95


class MutantOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one fault."""

    seed: int
    place: str
    kind: str
    """`no start`, `no change`, `detected` or `survived`."""
    what: str = ""
    """The request whose answer changed, and the first checks that accused."""
    seconds: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether the server started and answered a request in another way."""
        return self.kind in ("detected", "survived")

    def __str__(self) -> str:
        return f"{self.kind:9} {self.seconds:5.1f} s {self.place}\n    {self.what}"


class Survivor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Faults that no check accused when they were drawn, and why."""

    why: str
    legal: bool
    """Whether a server may answer so."""
    faults: list[str]
    detected_by: str = ""
    """The check that was written since and detects them."""


class Draw(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The counts of the faults of one seed that changed an answer."""

    seed: int
    detected: int
    legal: int
    """Survivors that are legal."""
    closed: int
    """Illegal survivors that a check detects which was written since."""
    missed: int
    """Illegal survivors that no check detects."""


def survivors() -> list[Survivor]:
    """Return the faults that survived, with their reasons."""
    return msgspec.toml.decode(SURVIVORS.read_bytes(), type=dict[str, list[Survivor]]).get("survivor", [])


def draws() -> list[Draw]:
    """Return the counts of all draws."""
    return msgspec.toml.decode(DRAWN.read_bytes(), type=dict[str, list[Draw]]).get("draw", [])


def read_outcomes(path: Path, seed: int | None = None) -> list[MutantOutcome]:
    """Return the outcomes in a file, of one seed or of all; the last one of each fault counts."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    found = [msgspec.json.decode(line, type=MutantOutcome) for line in lines]
    latest = {(outcome.seed, outcome.place): outcome for outcome in found if seed in (None, outcome.seed)}
    return list(latest.values())


def append_outcome(path: Path, outcome: MutantOutcome) -> None:
    """Add a line to a file."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(outcome) + b"\n")


def counted(outcomes: Iterable[MutantOutcome], reasons: Sequence[Survivor]) -> Draw:
    """Count the outcomes of one seed; survivors without a reason count as missed."""
    found = [outcome for outcome in outcomes if outcome.counts]
    row_of = {place: row for row in reasons for place in row.faults}
    rows = [row_of.get(outcome.place) for outcome in found if outcome.kind == "survived"]
    legal = sum(row is not None and row.legal for row in rows)
    closed = sum(row is not None and bool(row.detected_by) for row in rows)
    return Draw(
        seed=found[0].seed if found else 0,
        detected=len(found) - len(rows),
        legal=legal,
        closed=closed,
        missed=len(rows) - legal - closed,
    )


def shares(rows: Sequence[Draw]) -> list[str]:
    """Return the lines about the share of illegal faults that are detected, when they were drawn and since."""
    detected, closed, missed, legal = (
        sum(getattr(row, name) for row in rows) for name in ("detected", "closed", "missed", "legal")
    )
    illegal = detected + closed + missed
    lines = [
        f"{illegal + legal} faults of {len(rows)} seeds: {legal} are legal, {illegal} are not, {missed} of "
        "these are not detected"
    ]
    for title, hits in (("when they were drawn", detected), ("with the checks of today", detected + closed)):
        low, high = wilson(hits, illegal)
        share = hits / max(1, illegal)
        lines.append(
            f"detected {title}: {hits} of {illegal}, {share:.1%} (95 % interval {low:.1%} to {high:.1%})"
        )
    return lines


def conclude(outcomes: Sequence[MutantOutcome]) -> int:
    """Print the result of a run; 0 if the goal is met and every survivor has a reason."""
    reasons = survivors()
    draw = counted(outcomes, reasons)
    for kind in ("no start", "no change"):
        alike = [outcome.seconds for outcome in outcomes if outcome.kind == kind]
        print(f"{kind}: {len(alike)} faults, {sum(alike):.0f} s")
    print("\n".join(shares([draw])))
    listed = {place for row in reasons for place in row.faults}
    unlisted = [one.place for one in outcomes if one.kind == "survived" and one.place not in listed]
    for place in unlisted:
        print(f"no check detects, and no reason lists: {place}")
    illegal = draw.detected + draw.closed + draw.missed
    return int(bool(unlisted) or draw.detected < GOAL * illegal)


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


def _lines(row: Draw) -> list[str]:
    return [f"{name} = {value}" for name, value in msgspec.structs.asdict(row).items()]


def main(paths: Sequence[str]) -> int:
    """Replace the counts of the seeds in these files, and print the share of all draws."""
    outcomes = [outcome for path in paths for outcome in read_outcomes(Path(path))]
    rows = {row.seed: row for row in draws()}
    for seed in dict.fromkeys(outcome.seed for outcome in outcomes):
        rows[seed] = counted((one for one in outcomes if one.seed == seed), survivors())
    if paths:
        head = "# Counts of the faults that were drawn, by seed; `python -m source_mutants.outcomes` writes them.\n"
        text = "\n".join("\n[[draw]]\n" + "\n".join(_lines(row)) for row in rows.values())
        DRAWN.write_text(f"{head}{text}\n", "utf-8")
    print("\n".join(shares(list(rows.values()))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

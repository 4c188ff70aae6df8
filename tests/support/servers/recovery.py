"""Measure how long a server takes until it works again after a fault.

Tests of any folder use `recovering` around what comes between the end of a fault and the first answer as before.
`python tests/faults/table.py --record` keeps the longest time of each fault for the page.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["RECORD", "collect", "keep", "measured", "recovering"]

RECORD = Path(__file__).parents[2] / "faults" / "recoveries.json"
_NOTES = "PLUMBLINE_RECOVERIES"
"""Names the file that collects the times of a run."""


@contextmanager
def recovering(fault: str) -> Iterator[None]:
    """Note how long the block takes, under the name that the fault has in the table. A block that fails is no time."""
    began = time.monotonic()
    yield
    if path := os.environ.get(_NOTES):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps([fault, time.monotonic() - began]) + "\n")


def collect(path: Path) -> None:
    """Let the tests of this process, and of its children, note their times in a file."""
    os.environ[_NOTES] = str(path)


def keep(path: Path) -> None:
    """Keep the longest time of each fault."""
    longest: dict[str, float] = {}
    for line in path.read_text("utf-8").splitlines():
        fault, seconds = json.loads(line)
        longest[fault] = max(longest.get(fault, 0.0), seconds)
    found = {**measured(), **{fault: round(seconds, 3) for fault, seconds in longest.items()}}
    RECORD.write_text(json.dumps(dict(sorted(found.items())), indent=1, ensure_ascii=False) + "\n", "utf-8")


def measured() -> dict[str, float]:
    """Return the longest time to recover from each fault, in seconds, of the last run that was recorded."""
    found: dict[str, float] = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    return found

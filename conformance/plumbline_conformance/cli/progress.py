"""Show how many scenarios of a run have ended: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.reports.conclude import STYLES
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["progress"]

_SAY = 10.0
"""Seconds between two lines about the progress of a run whose output is not a terminal."""


@contextmanager
def progress(out: Console, count: int) -> Iterator[Callable[[Transcript], None]]:
    """Show a progress bar and the counts of verdicts on a terminal; elsewhere write a line every ten seconds."""
    if not out.is_terminal:
        yield from _lines(count)
        return
    counts: Counter[str] = Counter()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("", total=count)

        def shown(seen: Transcript) -> None:
            counts.update(finding.verdict for finding in judge(seen))
            counted = " ".join(f"[{STYLES[name]}]{counts[name]} {name}[/]" for name in STYLES if counts[name])
            bar.update(task, advance=1, description=counted)

        yield shown


def _lines(count: int) -> Iterator[Callable[[Transcript], None]]:
    """Write how many scenarios have ended, also while none ends: a server may take minutes for one answer."""
    ended: list[str] = []
    over = threading.Event()

    def write() -> None:
        while not over.wait(_SAY):
            print(f"{len(ended)} of {count} scenarios have ended", file=sys.stderr, flush=True)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield lambda seen: ended.append(seen.scenario)
    finally:
        over.set()
        writer.join()

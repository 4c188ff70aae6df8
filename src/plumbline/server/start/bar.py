"""Show the progress of a start as a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as rich_progress
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from plumbline.port.progress import LoadProgress

__all__ = ["bar"]


@contextmanager
def bar() -> Iterator[Callable[[LoadProgress], None] | None]:
    """Yield a function that shows each step while the block runs; None if nobody watches."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        _Bytes(binary_units=True),
        _Speed(),
        TimeRemainingColumn(),
    )
    # The bar goes away: the summary says what was loaded.
    with rich_progress.Progress(*columns, console=console, transient=True) as bars:
        yield _Bar(bars)


class _Bytes(DownloadColumn):
    """Bytes of a step that has any: imports would show "0/? bytes"."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


class _Speed(TransferSpeedColumn):
    """Bytes a second of a step that has bytes."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


class _Bar:
    """One bar, for the step that is done now."""

    def __init__(self, bars: rich_progress.Progress) -> None:
        self._bars = bars
        self._stage = ""
        self._task: TaskID | None = None

    def __call__(self, progress: LoadProgress) -> None:
        if self._task is None or progress.stage != self._stage:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._stage, self._task = (
                progress.stage,
                self._bars.add_task(progress.stage.capitalize(), total=None),
            )
        self._bars.update(self._task, completed=progress.done, total=progress.total or None)

"""Show reports and recordings of several servers in one table (`plumbline matrix`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from rich.console import Console
from rich.markup import escape

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import Describe, Texts
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.recording.file import UnreadableRecording, read_recording
from plumbline_conformance.reports.conclude import File
from plumbline_conformance.reports.matrix.explained import (
    Explanations,
    read_explanations,
)
from plumbline_conformance.reports.matrix.html import matrix_html
from plumbline_conformance.reports.matrix.table import (
    Column,
    NotComparable,
    ServerMatrix,
    matrix_markdown,
    matrix_of,
)
from plumbline_conformance.reports.report import Report, read_report, report_of
from plumbline_conformance.suite.contract import suite
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS

__all__ = ["MatrixCommand", "columns_from", "matrix_for", "replayed"]

_table = partial(Describe, "table")
_RECORDINGS = (".jsonl", ".jsonl.gz")


def replayed(path: Path) -> Report:
    """Judge a recording with the current suite.

    Raises:
        UnreadableRecording: the file is not a recording, or one of `plumbline watch`.
        OSError: the file cannot be read.
    """
    found = read_recording(path)
    if found.header.by != "check":
        raise UnreadableRecording(f"{path.name} is of live traffic: it has no scenarios")
    wanted = set(found.header.chosen or CHECKS)
    order = {name: place for place, name in enumerate(SCENARIOS)}
    seen = sorted(
        (transcript for transcript in found.transcripts if transcript.scenario in order),
        key=lambda transcript: order[transcript.scenario],
    )
    findings = [finding for transcript in seen for finding in judge(transcript) if finding.check in wanted]
    return report_of(msgspec.structs.replace(found.header, suite=suite()), seen, findings, everything=True)


class MatrixCommand(Command, frozen=True, kw_only=True):
    """Show several servers in one table."""

    example = "plumbline matrix ours=a.json theirs=b.jsonl.gz --html matrix.html"

    reports: Annotated[
        Texts,
        _table("JSON reports or recordings, with names for the columns", "[NAME=]FILE", positional=True),
    ]
    markdown: Annotated[
        File, _table("write Markdown", "FILE", default="print it if there is no --html", writes=True)
    ] = None
    html: Annotated[File, _table("write one self-contained HTML page", "FILE", writes=True)] = None

    def files(self) -> tuple[dict[Path, str], dict[str, Path]]:
        """Return the files that are read, with the options that name them, and those that are written."""
        read, written = Command.files(self)
        return read | {_named(text)[1]: "FILE" for text in self.reports}, written

    def run(self, out: Console) -> int:
        """Write the pages; print Markdown if no file is given."""
        columns = columns_from(self.reports)
        if self.markdown is None and self.html is None:
            out.print(escape(matrix_markdown(matrix_for(columns, Path()))), end="")
        if self.markdown is not None:
            self.markdown.write_text(matrix_markdown(matrix_for(columns, self.markdown.parent)), "utf-8")
        if self.html is not None:
            self.html.write_text(matrix_html(matrix_for(columns, self.html.parent)), "utf-8")
        return 0


def columns_from(named: Sequence[str]) -> list[Column]:
    """Return a column for each `NAME=FILE` or `FILE`, a report or a recording.

    The explanations of a recording are in a file next to it with the same name and the suffix `.toml`.

    Raises:
        NotComparable: two columns have the same name.
        UnreadableExplanations: the file next to a recording has another format.
        UnreadableRecording: a file is not a recording.
        UnreadableReport: a file is not a report.
        OSError: a file cannot be read.
    """
    columns: dict[str, Column] = {}
    for text in named:
        column = _column(*_named(text))
        if column.name in columns:
            raise NotComparable(
                f"Two reports are named {column.name}. Give them different names with NAME=FILE."
            )
        columns[column.name] = column
    return list(columns.values())


def matrix_for(columns: Sequence[Column], folder: Path) -> ServerMatrix:
    """Return the matrix for a page in this folder, with links to the recordings.

    Raises:
        NotComparable: the reports come from different suites.
    """
    away = {
        column.name: Path(os.path.relpath(column.recording, folder)).as_posix()
        for column in columns
        if column.recording
    }
    return matrix_of(
        [msgspec.structs.replace(column, recording=away.get(column.name, "")) for column in columns]
    )


def _named(text: str) -> tuple[str, Path]:
    """Split an argument into name (possibly empty) and file; an existing path with `=` is a file."""
    if Path(text).exists():
        return "", Path(text)
    signs = [place for place, char in enumerate(text) if char == "="]
    for sign in signs:
        if Path(text[sign + 1 :]).exists():
            return text[:sign], Path(text[sign + 1 :])
    name, sign_at_all, place = text.rpartition("=")
    return (name, Path(place)) if sign_at_all else ("", Path(text))


def _column(name: str, path: Path) -> Column:
    stem = path.name.partition(".")[0]
    if not path.name.endswith(_RECORDINGS):
        report = read_report(path)
        return Column(name=name or f"{stem} ({report.run.model})", report=report)
    beside = path.with_name(f"{stem}.toml")
    explanations = read_explanations(beside) if beside.is_file() else Explanations()
    return Column(name=name or stem, report=replayed(path), explanations=explanations, recording=str(path))

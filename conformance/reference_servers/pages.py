"""Make files from the recordings: the verdicts that a replay has to repeat, and pages of `docs/`."""

from __future__ import annotations

import json
from pathlib import Path

from differences import Run, differences_markdown, read_run, reasons
from repetitions import read_repetitions
from server_pages import server_page
from servers import PEERS

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli.matrix import columns_from, matrix_for
from plumbline_conformance.recording.file import read_recording
from plumbline_conformance.reports.matrix import Column
from plumbline_conformance.reports.matrix_pages import matrix_pages

__all__ = ["differences", "pages", "recordings"]


def recordings(root: Path) -> dict[str, Path]:
    """Return the existing recordings, in the order of the servers."""
    folder = root / "conformance" / "recordings"
    return {name: path for name in PEERS if (path := folder / f"{name}.jsonl.gz").is_file()}


def verdicts(columns: list[Column]) -> str:
    """Return the content of `verdicts.json`: the verdict of every check on every server."""
    found = {
        column.name: {result.check: result.verdict for result in column.report.results} for column in columns
    }
    return json.dumps(found, indent=0) + "\n"


def pages(root: Path) -> dict[Path, str]:
    """Return the text of every file that is made from the recordings."""
    columns = columns_from([str(path) for path in recordings(root).values()])
    docs = root / "docs"
    written = {column.name for column in columns if (docs / "servers" / f"{column.name}.md").is_file()}
    matrix = matrix_pages(matrix_for(columns, docs), written)
    return {
        root / "conformance" / "recordings" / "verdicts.json": verdicts(columns),
        **{docs / path: text for path, text in matrix.items()},
        docs / "differences.md": differences_markdown(differences(root)),
        **{
            docs / "servers" / f"{name}.md": server_page(
                name,
                PEERS[name],
                column,
                read_repetitions(root / "conformance" / "recordings" / f"{name}.repetitions.json"),
            )
            for name, column in zip(recordings(root), columns, strict=True)
            if not PEERS[name].ours
        },
    }


def differences(root: Path) -> dict[str, tuple[str, Run, dict[str, list[str]]]]:
    """Return, for each server that was compared with ours, its title, the run and the explanations."""
    folder = root / "conformance" / "recordings"
    return {
        name: (
            read_recording(path).header.server,
            read_run(folder / f"{name}.differences.json"),
            reasons(folder / f"{name}.differences.toml"),
        )
        for name, path in recordings(root).items()
        if (folder / f"{name}.differences.toml").is_file()
    }

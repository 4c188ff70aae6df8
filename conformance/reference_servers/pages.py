"""Make files from the recordings: the verdicts that a replay must repeat, and pages about the servers.

`nox -s peers` writes the committed files. As a script (`nox -s docs`) this module writes what the site has besides: a
page for each rule and each server, and pages that show every verdict with its requests and answers.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

import msgspec
from differences import DiffRun, differences_markdown, read_run, reasons
from history import read_history
from repetitions import read_repetitions
from rule_pages import rule_pages
from server_pages import server_page
from servers import PEERS

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli.matrix import columns_from, matrix_for
from plumbline_conformance.recording.file import read_recording
from plumbline_conformance.reports.matrix.pages import matrix_pages, summary_markdown
from plumbline_conformance.reports.matrix.table import Column

__all__ = ["built_pages", "committed_files", "differences", "recordings", "write"]

_MORE = (
    "\nThe site that `nox -s docs` builds has the pages that the names lead to, and every verdict, request and answer "
    "(`/evidence/matrix.html`).\n"
)


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


def committed_files(root: Path) -> dict[Path, str]:
    """Return the text of every committed file that is made from the recordings."""
    columns = _columns(root)
    docs = root / "docs" / "reference"
    return {
        root / "conformance" / "recordings" / "verdicts.json": verdicts(columns),
        docs / "matrix.md": summary_markdown(matrix_for(columns, docs), _notes(columns, "servers")) + _MORE,
    }


def built_pages(root: Path, names: Collection[str] = PEERS) -> dict[Path, str]:
    """Return the text of every page of the site that is not committed.

    Args:
        root: the root of the repository.
        names: the servers whose requests and answers are shown.
    """
    every = _columns(root)
    columns = [column for column in every if column.name in names]
    docs = root / "docs" / "reference"
    evidence = root / "docs" / "build" / "extra" / "evidence"
    # The site has copies of the recordings, because pages of a site cannot link to files beside it.
    copied = [
        msgspec.structs.replace(
            column, recording=str(evidence.parent / "recordings" / Path(column.recording).name)
        )
        for column in columns
    ]
    matrix = matrix_for(copied, evidence)
    notes = {column.name: f"../reference/servers/{column.name}/" for column in columns}
    return {
        docs / "differences.md": differences_markdown(differences(root)),
        **{docs / "servers" / f"{column.name}.md": _server_page(root, column) for column in every},
        **{evidence / path: text for path, text in matrix_pages(matrix, notes).items()},
        **{root / "docs" / "rules" / path: text for path, text in rule_pages(matrix).items()},
    }


def _columns(root: Path) -> list[Column]:
    return columns_from([str(path) for path in recordings(root).values()])


def _server_page(root: Path, column: Column) -> str:
    repetitions = read_repetitions(_beside(root, column, "repetitions"))
    history = read_history(_beside(root, column, "history"))
    return server_page(column.name, PEERS[column.name], column, repetitions, history)


def _beside(root: Path, column: Column, kind: str) -> Path:
    return root / "conformance" / "recordings" / f"{column.name}.{kind}.json"


def _notes(columns: list[Column], folder: str) -> dict[str, str]:
    """Return the links to the pages of the servers."""
    return {column.name: f"{folder}/{column.name}.md" for column in columns}


def write(files: dict[Path, str]) -> None:
    """Write the files, and create their folders."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def differences(root: Path) -> dict[str, tuple[str, DiffRun, dict[str, list[str]]]]:
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


if __name__ == "__main__":
    # With arguments: another root, and the servers whose requests and answers are shown.
    root = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[2]
    write(built_pages(root, sys.argv[2:] or PEERS))
    copies = root / "docs" / "build" / "extra" / "recordings"
    copies.mkdir(exist_ok=True)
    for path in recordings(root).values():
        shutil.copyfile(path, copies / path.name)

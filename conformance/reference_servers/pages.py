"""Make files from the recordings: the verdicts that a replay must repeat, and pages about the servers.

`nox -s peers` writes the committed files. As a script (`nox -s docs`) this module builds the pages of `docs/build/`.
They show every verdict with its requests and answers, and are too large to commit.
"""

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
from plumbline_conformance.reports.matrix.pages import matrix_pages, summary_markdown
from plumbline_conformance.reports.matrix.table import Column

__all__ = ["built_pages", "committed_files", "differences", "recordings", "write"]

_MORE = "\n`nox -s docs` builds pages with every verdict, request and answer; they begin at `docs/build/matrix.html`.\n"


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
        docs / "differences.md": differences_markdown(differences(root)),
        **{
            docs / "servers" / f"{column.name}.md": server_page(
                column.name,
                PEERS[column.name],
                column,
                read_repetitions(root / "conformance" / "recordings" / f"{column.name}.repetitions.json"),
            )
            for column in columns
            if not PEERS[column.name].ours
        },
    }


def built_pages(root: Path) -> dict[Path, str]:
    """Return the text of every page in `docs/build/`."""
    columns = _columns(root)
    build = root / "docs" / "build"
    pages = matrix_pages(matrix_for(columns, build), _notes(columns, "../reference/servers"))
    return {build / path: text for path, text in pages.items()}


def _columns(root: Path) -> list[Column]:
    return columns_from([str(path) for path in recordings(root).values()])


def _notes(columns: list[Column], folder: str) -> dict[str, str]:
    """Return the links to the pages with notes; our own server has no such page."""
    return {column.name: f"{folder}/{column.name}.md" for column in columns if not PEERS[column.name].ours}


def write(files: dict[Path, str]) -> None:
    """Write the files, and create their folders."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


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


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    write(built_pages(root))
    print(f"Open {root / 'docs' / 'build' / 'matrix.html'}")

"""Test output files: unwritable or conflicting ones are reported before any request."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plumbline_conformance.cli import main
from plumbline_conformance.cli.matrix import _named
from plumbline_conformance.console.output_files import why_unwritable

AWAY = ["http://127.0.0.1:1/v1", "--model", "m"]
"""No server listens there, so other messages come before any request."""


def test_a_baseline_to_update_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *AWAY, "--update-baseline"]) == 2
    assert "--update-baseline needs --baseline FILE" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--baseline", "--json", "--record"])
def test_unwritable_files_are_reported_before_the_run(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--update-baseline"] if option == "--baseline" else []
    for path in (tmp_path / "no" / "file.json", tmp_path):
        known = ["--baseline", str(path)] if option == "--baseline" else [option, str(path)]
        if path.is_dir() and option == "--baseline":
            continue  # The file is read first, with the same message.
        assert main(["check", *AWAY, *known, *more]) == 2
        out = capsys.readouterr().err
        assert "cannot be written" in out
        assert "reached" not in out


@pytest.mark.parametrize("command", ["fuzz", "exact", "diff"])
def test_other_commands_look_at_their_file_as_well(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {
        "fuzz": ["fuzz", *AWAY],
        "exact": ["compare", AWAY[0], str(tmp_path), *AWAY[1:]],
        "diff": ["compare", AWAY[0], *AWAY],
    }[command]

    assert main([*words, "--json", str(tmp_path / "no" / "file.json")]) == 2
    assert "cannot be written: the directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second"), [("--record", "--json"), ("--junit", "--html"), ("--baseline", "--markdown")]
)
def test_two_files_of_a_run_are_two(
    first: str, second: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compare the files, not their names; existing content is kept."""
    file, link = tmp_path / "a", tmp_path / "b"
    file.write_text('{"format": 1, "expected": {}}', "utf-8")
    link.symlink_to(file)

    assert main(["check", *AWAY, first, str(file), second, str(link)]) == 2

    out = capsys.readouterr().err
    assert first in out
    assert second in out
    assert "overwrite" in out
    assert file.read_text("utf-8") == '{"format": 1, "expected": {}}'


def test_inputs_are_not_overwritten(tmp_path: Path) -> None:
    run = tmp_path / "run.jsonl"
    run.write_text("{}", "utf-8")

    assert "overwrite" in str(why_unwritable({"--json": run}, {run: "the recording"}))
    assert (
        why_unwritable({"--json": tmp_path / "a", "--html": tmp_path / "b"}, {run: "the recording"}) is None
    )


@pytest.mark.skipif(not Path(os.devnull).is_char_device(), reason="no such device here")
def test_a_device_takes_what_comes() -> None:
    nowhere = Path(os.devnull)

    assert why_unwritable({"--json": nowhere, "--html": nowhere}) is None


def test_a_path_of_a_matrix_may_have_an_equals_sign(tmp_path: Path) -> None:
    folder = tmp_path / "a=b"
    folder.mkdir()
    file = folder / "r=1.json"
    file.write_text("{}", "utf-8")

    assert _named(str(file)) == ("", file)
    assert _named(f"ours={file}") == ("ours", file)
    assert _named(f"x=y={file}") == ("x=y", file)
    assert _named("ours=none.json") == ("ours", Path("none.json"))
    assert _named("none.json") == ("", Path("none.json"))

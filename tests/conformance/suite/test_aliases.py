"""Former ids of checks are accepted wherever an id is, with a note of the current id."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from example_servers.good_server import KEY, MODEL, serving, transcripts
from example_servers.reference import application
from plugin_run import pytest_run

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli import main
from plumbline_conformance.recording.file import Recorder, RecordingHeader, read_recording
from plumbline_conformance.reports.baseline import Baseline
from plumbline_conformance.reports.matrix.explained import read_explanations
from plumbline_conformance.suite import aliases as module
from plumbline_conformance.suite import coverage
from plumbline_conformance.suite.aliases import aliases
from plumbline_conformance.suite.coverage import as_published, published, revisions
from plumbline_conformance.suite.scenario import CHECKS
from plumbline_conformance.suite.selection import Selection, named

OLD, NEW = "models/old/name", "models/list/shape"
NOTE = f"{OLD} is now called {NEW}."


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a check had been renamed; there may be none that was."""
    monkeypatch.setattr(module, "aliases", lambda: {OLD: NEW})


def test_an_alias_is_a_former_id_of_a_check_that_there_is() -> None:
    for old, new in aliases().items():
        assert re.fullmatch(r"[a-z0-9-]+(/[a-z0-9-]+){2}", old)
        assert old not in CHECKS, "an id is never used again"
        assert new in CHECKS, "an alias of an alias names the check itself"


def test_a_former_id_chooses_what_the_new_one_chooses(renamed: None) -> None:
    assert Selection(ids=[OLD]).checks() == Selection(ids=[NEW]).checks() == [NEW]
    assert named(OLD) == named(NEW) == [CHECKS[NEW]]


def test_a_published_set_keeps_what_was_renamed(renamed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "as_published", lambda revision: [OLD, *as_published(revision)])

    assert published(revisions()[-1])[0] == NEW


@pytest.mark.parametrize("command", ["checks", "explain"])
def test_a_former_id_is_listed_and_explained(
    renamed: None, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, OLD]) == 0
    note, *output = capsys.readouterr().out.splitlines()
    assert main([command, NEW]) == 0

    assert note == NOTE
    assert [line for line in output if line] == [
        line for line in capsys.readouterr().out.splitlines() if line
    ]


def test_a_former_id_chooses_the_check_of_a_run(
    renamed: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    with serving(application()) as base_url:
        asked = ["check", base_url, "--model", MODEL, "--api-key", KEY]
        assert main([*asked, "--record", str(path), OLD]) == 0
    assert NOTE in capsys.readouterr().out

    assert main(["judge", str(path), OLD]) == 0
    output = capsys.readouterr().out
    assert NOTE in output
    assert "1 check: 1 pass" in output


def test_a_recording_that_chose_a_former_id_is_judged_by_the_new_one(renamed: None, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Recorder(path, RecordingHeader.of("u", "m", chosen=[OLD])) as recorder:
        recorder.add(transcripts()["models/list"])

    assert read_recording(path).header.chosen == [NEW]


def test_a_baseline_may_list_a_former_id(
    renamed: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = tmp_path / "plumbline.json", tmp_path / "run.jsonl"
    entry = {"verdict": "fail", "why": "known"}
    path.write_text(json.dumps({"format": 1, "expected": {OLD: entry}}), "utf-8")
    with Recorder(run, RecordingHeader.of("u", "m")) as recorder:
        recorder.add(transcripts()["models/list"])

    found = Baseline.read(path)

    assert list(found.expected) == [NEW]
    assert found.expected[NEW].why == "known"
    # The check passes, so that the entry is untrue, under whichever name.
    assert main(["judge", str(run), "models/list", "--baseline", str(path), "--strict"]) == 1
    output = capsys.readouterr().out
    assert NOTE in output
    assert f"stale {NEW}" in output
    found.write(path)
    assert OLD not in path.read_text("utf-8")


def test_an_entry_under_the_id_of_today_is_the_later_one(renamed: None, tmp_path: Path) -> None:
    path = tmp_path / "plumbline.json"
    for names in ([OLD, NEW], [NEW, OLD]):
        entries = {name: {"verdict": "fail", "why": name} for name in names}
        path.write_text(json.dumps({"format": 1, "expected": entries}), "utf-8")

        assert Baseline.read(path).expected[NEW].why == NEW


def test_explanations_may_name_a_former_id(renamed: None, tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(f'[[explanation]]\nwhy = "so"\nchecks = ["{OLD}"]\n', "utf-8")

    assert read_explanations(path).of(NEW) == "so"


def test_items_of_pytest_are_chosen_by_a_former_id(tmp_path: Path) -> None:
    rename = (
        f"from plumbline_conformance.suite import aliases\naliases.aliases = lambda: {{{OLD!r}: {NEW!r}}}\n"
    )
    (tmp_path / "conftest.py").write_text(rename, "utf-8")
    with serving(application()) as base_url:
        target = ["--plumbline-url", base_url, "--plumbline-model", MODEL, "--plumbline-api-key", KEY]
        for words in (["--plumbline-check", OLD], [f"plumbline::{OLD}"]):
            status, out = pytest_run(tmp_path, *target, *words)

            assert status == 0, out
            assert "1 passed" in out
            assert f"plumbline: {NOTE}" in out
            assert f"PASSED plumbline::{NEW}" in out

"""The composite action and the container file of `conformance/ci/` do what docs/guides/judge-ci.md says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from example_servers.good_server import KEY, MODEL, serving
from example_servers.reference import application

from plumbline_conformance.suite.selection import PROFILES

FOLDER = Path(__file__).parents[2] / "conformance" / "ci"
ACTION: dict[str, Any] = yaml.safe_load((FOLDER / "action.yml").read_text("utf-8"))
[CHECK] = [step for step in ACTION["runs"]["steps"] if "plumbline check" in step.get("run", "")]


def checked(folder: Path, base_url: str) -> int:
    """Return the exit status of the step that checks; of the suite only the models, which are quick."""
    program = folder / "plumbline"
    program.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m plumbline_conformance.cli "$@" models\n', "utf-8"
    )
    program.chmod(0o755)
    given = {"base-url": base_url, "model": MODEL, "api-key": KEY}
    values = {name: given.get(name, found.get("default", "")) for name, found in ACTION["inputs"].items()}
    asked = {
        name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: values[found[1]], text)
        for name, text in CHECK["env"].items()
    }
    environment = {**os.environ, **asked, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-e", "-c", CHECK["run"]], cwd=folder, env=environment, check=False, capture_output=True
    ).returncode


def test_the_action_checks_a_server_and_leaves_its_files(tmp_path: Path) -> None:
    with serving(application()) as base_url:
        assert checked(tmp_path, base_url) == 0

    kept = ACTION["runs"]["steps"][-1]["with"]["path"].split()
    assert [name for name in kept if not (tmp_path / name).exists()] == []


@pytest.mark.parametrize(("content", "status"), [('{"expected": {}}', 0), ("no baseline", 2)])
def test_the_action_uses_a_baseline_that_is_there(content: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "plumbline.json").write_text(content, "utf-8")

    with serving(application()) as base_url:
        assert checked(tmp_path, base_url) == status


def test_the_action_reports_whatever_the_verdict() -> None:
    later = ACTION["runs"]["steps"][ACTION["runs"]["steps"].index(CHECK) + 1 :]

    assert later
    assert all(step["if"] == "always()" for step in later)
    assert all("shell" in step for step in ACTION["runs"]["steps"] if "run" in step)


def test_inputs_reach_no_shell_text() -> None:
    """An input within a script would let a workflow's caller run commands."""
    assert not any("${{" in step.get("run", "") for step in ACTION["runs"]["steps"])
    assert set(PROFILES) == set(re.findall(r"[a-z]+", ACTION["inputs"]["profile"]["description"])) - {"or"}


def test_the_container_runs_the_judge_as_nobody_special() -> None:
    lines = (FOLDER / "Containerfile").read_text("utf-8").splitlines()

    assert 'ENTRYPOINT ["plumbline"]' in lines
    assert lines.index("USER 10001") < lines.index('ENTRYPOINT ["plumbline"]')

"""The GitHub Action of docs/guides/judge-ci.md runs as it stands: first, with a baseline, and without a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from example_servers.good_server import KEY, MODEL, serving
from example_servers.reference import application

TEXT = (Path(__file__).parents[2] / "docs" / "guides" / "judge-ci.md").read_text("utf-8")
[EXAMPLE] = [block for part in TEXT.split("```yaml\n")[1:] if "jobs:" in (block := part.partition("```")[0])]
STEPS: list[dict[str, Any]] = yaml.safe_load(EXAMPLE)["jobs"]["plumbline"]["steps"]
[CHECK] = [step["run"] for step in STEPS if "plumbline check" in step.get("run", "")]
[SUMMARY] = [step["run"] for step in STEPS if "GITHUB_STEP_SUMMARY" in step.get("run", "")]
[KEPT] = [step["with"]["path"].split() for step in STEPS if "upload-artifact" in step.get("uses", "")]


def stepped(folder: Path, script: str, base_url: str, check: str = "models") -> int:
    """The exit status of a step, as the runner runs it; of the suite only these checks, for they are quick."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    program = tools / "plumbline"
    program.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m plumbline_conformance.cli "$@" {check}\n', "utf-8"
    )
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(folder / "step"),
        "OPENAI_API_KEY": KEY,
    }
    text = script.replace("http://127.0.0.1:8000/v1", base_url).replace("my-model", MODEL)
    (folder / "script").write_text(text, "utf-8")
    done = subprocess.run(
        ["bash", "-e", "script"], cwd=folder, env=environment, check=False, capture_output=True
    )
    return done.returncode


def test_the_first_run_needs_no_baseline_and_leaves_what_is_kept(tmp_path: Path) -> None:
    with serving(application()) as base_url:
        assert stepped(tmp_path, CHECK, base_url) == 0
    assert stepped(tmp_path, SUMMARY, "") == 0

    assert "Plumbline" in (tmp_path / "step").read_text("utf-8")
    assert [name for name in KEPT if not (tmp_path / name).exists()] == []


@pytest.mark.parametrize(("content", "status"), [('{"expected": {}}', 0), ("no baseline", 2)])
def test_a_baseline_is_compared_with_the_run_once_it_is_there(
    content: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "plumbline.json").write_text(content, "utf-8")

    with serving(application()) as base_url:
        assert stepped(tmp_path, CHECK, base_url) == status
    assert stepped(tmp_path, SUMMARY, "") == 0


def test_without_a_server_only_the_reporting_step_fails(tmp_path: Path) -> None:
    assert stepped(tmp_path, CHECK, "http://127.0.0.1:1/v1", "chat/text") == 2
    assert stepped(tmp_path, SUMMARY, "") == 0


def test_what_comes_after_the_verdict_always_runs() -> None:
    later = STEPS[STEPS.index(next(step for step in STEPS if step.get("run") == CHECK)) + 1 :]

    assert later
    assert all(step["if"] == "always()" for step in later)

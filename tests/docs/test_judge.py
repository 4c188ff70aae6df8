"""Check that the commands and options in the guides to the judge exist, and that counts of checks agree."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from plumbline.cli import _COMMANDS
from plumbline_conformance.console.commands import JUDGE, parser_of
from plumbline_conformance.reports.report import SCORED, VERDICTS
from plumbline_conformance.suite.scenario import CHECKS
from plumbline_conformance.suite.selection import PROFILES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "guides"
README = (ROOT / "README.md").read_text("utf-8")
TEXT = "\n".join(
    (DOCS / f"{name}.md").read_text("utf-8")
    for name in (
        "judge",
        "judge-ci",
        "judge-more",
        "vectors",
        "verify",
        "bench",
        "client",
        "scripted-checkpoint",
    )
)
PLUGIN = (ROOT / "conformance" / "plumbline_conformance" / "pytest_plugin.py").read_text("utf-8")


COMMANDS = {name: parser_of(_COMMANDS, name).commands[name] for group in JUDGE.values() for name in group}
LINES = [
    line.removeprefix("- run: ").partition("#")[0]
    for line in TEXT.replace("\n          --", " --").splitlines()
    if "plumbline " in line and "--" in line and not line.startswith(("|", "    see", "    actual"))
]


@pytest.mark.parametrize("line", LINES)
def test_every_documented_option_exists(line: str) -> None:
    for command, rest in re.findall(r"plumbline (\w+)([^`]*)", line):
        if command in COMMANDS:
            known = COMMANDS[command].format_help()
            assert [name for name in re.findall(r"--[a-z-]+", rest) if name not in known] == []


def test_enough_lines_were_read() -> None:
    assert len(LINES) > 8


def test_every_verdict_and_profile_is_explained() -> None:
    assert [name for name in VERDICTS if f"| `{name}` |" not in TEXT] == []
    assert [name for name in PROFILES if f"`{name}`" not in TEXT and f"--profile {name}" not in TEXT] == []


def test_the_options_of_the_plugin_exist() -> None:
    for name in re.findall(r"--plumbline-[a-z-]+", TEXT):
        assert f'"{name}"' in PLUGIN


def test_readme_and_guide_count_all_checks() -> None:
    assert f"a judge with {len(CHECKS):,} checks" in README
    assert f"all {len(CHECKS):,} checks" in TEXT


def test_the_row_of_the_readme_has_the_scores_of_the_recordings() -> None:
    """`check` and the matrix count a violation by the same verdicts, one that cannot be tested included."""
    recorded = json.loads((ROOT / "conformance" / "recordings" / "verdicts.json").read_text("utf-8"))
    scores = []
    for server in ("plumbline", "llama-server", "vllm"):
        scored = [verdict for verdict in recorded[server].values() if verdict in SCORED]
        scores.append(f"{scored.count('pass'):,} of {len(scored):,}")

    assert f"(docs/reference/matrix.md)) | {' | '.join(scores)} |" in README

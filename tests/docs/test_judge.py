"""Check that the commands and options in the guides to the judge exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plumbline.cli import _COMMANDS
from plumbline_conformance.console.commands import JUDGE, parser_of
from plumbline_conformance.reports.report import VERDICTS
from plumbline_conformance.suite.selection import PROFILES

DOCS = Path(__file__).parents[2] / "docs" / "guides"
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
PLUGIN = (Path(__file__).parents[2] / "conformance" / "plumbline_conformance" / "pytest_plugin.py").read_text(
    "utf-8"
)


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

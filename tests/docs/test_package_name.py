"""Nothing tells a user to install `plumbline` from the package index, where another project has that name."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OTHERS = re.compile(
    r"""(?:pip3?|uv|pipx|uvx)\b[^\n#]*?[ \t'"]plumbline(?=[\[=<>~!'"`\s]|\.?$)""", re.MULTILINE
)
"""A command with `plumbline` as a requirement; `./plumbline` and `plumbline-llm` are ours."""
HISTORY = {"CHANGELOG.md", "tests/docs/test_package_name.py"}


def texts() -> dict[str, str]:
    suffixes = ("*.md", "*.py", "*.toml", "*.txt", "*.yml", "*.yaml", "*Containerfile", ".ci/run")
    listed = subprocess.run(
        ["git", "ls-files", *suffixes], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return {
        name: (ROOT / name).read_text("utf-8")
        for name in listed
        if name not in HISTORY and (ROOT / name).is_file()
    }


def installs(text: str) -> list[str]:
    return [found[0] for found in OTHERS.finditer(text) if re.search(r"\b(install|run|uvx)\b", found[0])]


def test_the_distribution_has_a_name_of_its_own() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    assert project["name"] == "plumbline-llm"
    assert set(project["scripts"]) == {"plumbline"}


def test_no_text_installs_the_package_of_others() -> None:
    assert {name: found for name, text in texts().items() if (found := installs(text))} == {}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("pip install plumbline", True),
        ("pip install 'plumbline[serve]'", True),
        ('python -m pip install -U "plumbline>=0.1"', True),
        ("`pip install plumbline`.", True),
        ("uv pip install plumbline==0.1.0", True),
        ("pip install ./plumbline", False),
        ("pip install '.[serve]'", False),
        ("pip install plumbline-llm", False),
        ("pip install plumbline_llm-0.1.0-py3-none-any.whl", False),
        ("pip install .  # then plumbline serve", False),
    ],
)
def test_the_pattern_finds_the_name_and_nothing_else(line: str, wrong: bool) -> None:
    assert bool(installs(line)) == wrong

"""ARCHITECTURE.md and CONTRIBUTING.md name files that exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("openapi", "src", "kernels", "conformance", "tests", "benchmarks", "docs")
BUILT = ("tokenizer.json", "config.json", "tokenizer_config.json", "generation_config.json")
"""Files of model folders."""


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_that_is_named_exists(page: str) -> None:
    files = [
        f"/{path.relative_to(ROOT).as_posix()}" for folder in FOLDERS for path in (ROOT / folder).rglob("*")
    ]
    ends = {each[-length:] for each in files for length in range(1, len(each) + 1) if each[-length] == "/"}
    named = set(
        re.findall(r"`([\w./]+(?:\.(?:py|h|cpp|md|yaml|json|toml)|/))`", (ROOT / page).read_text("utf-8"))
    )
    missing = [
        name
        for name in named
        if name not in BUILT and f"/{name.rstrip('/')}" not in ends and not (ROOT / name).exists()
    ]
    assert missing == []
    assert named


def test_a_name_says_what_it_is_without_its_module() -> None:
    """A reader who searches for a class or a file finds one."""
    classes: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for folder in ("src", "kernels", "conformance", "openapi", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            if {"_generated", "foreign_tests"} & set(path.parts):
                continue
            if not path.name.startswith("__"):
                files[path.name] += 1
            tree = ast.parse(path.read_bytes())
            classes.update(n.name for n in tree.body if isinstance(n, ast.ClassDef) and n.name[0] != "_")
    assert [name for name, count in classes.items() if count > 1] == []
    assert {name: count for name, count in files.items() if count > 5} == {}

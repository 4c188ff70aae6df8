"""ARCHITECTURE.md and CONTRIBUTING.md name files that exist."""

from __future__ import annotations

import re
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

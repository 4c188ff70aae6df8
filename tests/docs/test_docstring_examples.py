"""The examples in docstrings are right."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "src" / "plumbline", ROOT / "conformance" / "plumbline_conformance")


def test_every_example_of_a_docstring_gives_what_it_shows() -> None:
    found = 0
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            if ">>> " in path.read_text("utf-8"):
                name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
                failed, tried = doctest.testmod(importlib.import_module(name))
                assert not failed, name
                found += tried
    assert found > 20

"""The table of native code names every library with a compiled part that the package imports, and where it runs.

Laws:
    1. Each such library has a row, and each row is of a library that is imported.
    2. Each test that a row names exists.
    3. No library that runs in workers only is imported by the server's process.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "native-code.md"
NEEDS_NONE = frozenset({"jinja2", "transformers", "soundfile", "gguf"})
"""Libraries with a row that have no compiled part of their own: they run programs, or call other libraries."""


def rows() -> dict[str, list[str]]:
    """The cells of each library's row."""
    found: dict[str, Any] = {}
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0] != "library" and not cells[0].startswith("-"):
            found |= {name.strip(): cells for name in cells[0].split(",")}
    return found


def imported() -> set[str]:
    """The libraries that the package imports, at any depth of its code."""
    found = set()
    for path in [*(ROOT / "src" / "plumbline").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return {
        name for name in found if name not in sys.stdlib_module_names and not name.startswith("plumbline")
    }


def is_compiled(name: str) -> bool:
    """Whether an installed library has a compiled part."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return False
    folders = [Path(each) for each in spec.submodule_search_locations or ()]
    return (spec.origin or "").endswith(".so") or any(next(each.rglob("*.so"), None) for each in folders)


def test_every_compiled_library_has_a_row() -> None:
    assert {name for name in imported() if is_compiled(name)} - set(rows()) == set()


def test_every_row_is_of_a_library_that_is_imported() -> None:
    # uvicorn imports httptools and websockets for the server, and the judge yaml for `script-model`.
    known = imported() | {"httptools", "websockets", "yaml"}
    assert set(rows()) - known == set()
    assert all(
        is_compiled(name) or importlib.util.find_spec(name) is None for name in set(rows()) - NEEDS_NONE
    )


def test_every_test_that_is_named_exists() -> None:
    for library, cells in rows().items():
        named = re.findall(r"`([^`]+)`", cells[4])
        assert named or "trusted" in cells[3], library
        for path in named:
            assert (ROOT / path).exists(), (library, path)


@pytest.mark.parametrize("module", ["plumbline.server.app", "plumbline.server.start.listener"])
def test_what_runs_in_workers_is_not_imported_by_the_server(module: str) -> None:
    alone = sorted(name for name, cells in rows().items() if cells[2].startswith("workers of decoders"))
    program = f"import sys, {module}; print([name for name in {alone} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

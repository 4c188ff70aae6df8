"""Each promise of SECURITY.md names tests, and these exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")


def promises() -> dict[str, list[str]]:
    """The tests of each promise."""
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ")]
    return {
        promise.strip(): re.findall(r"`([^`]+)`", tests)
        for promise, tests in rows
        if tests.strip() != "tests"
    }


def test_every_promise_has_tests_that_exist() -> None:
    found = promises()
    assert len(found) > 15
    for promise, tests in found.items():
        assert tests, promise
        for path in tests:
            assert (ROOT / path).exists(), (promise, path)


def test_every_file_and_session_that_the_page_names_exists() -> None:
    sessions = re.findall(
        r'@nox\.session\((?:name="([\w-]+)")?|^def (\w+)\(session', (ROOT / "noxfile.py").read_text(), re.M
    )
    known = {name for pair in sessions for name in pair if name}
    for name in re.findall(r"nox\s+-s\s+([\w-]+)", PAGE):
        assert name in known, name
    for path in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / path).exists(), path

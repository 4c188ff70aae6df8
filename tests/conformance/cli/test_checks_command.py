"""Test that `checks` honours or refuses every option."""

from __future__ import annotations

import pytest

from plumbline_conformance.cli import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--markdown"], "checks --rules --markdown"),
        (["--markdown", "chat"], "checks --rules --markdown"),
        (["--rules", "--profile", "core"], "leave out ids"),
        (["--rules", "--surface", "chat"], "leave out ids"),
        (["--rules", "chat"], "leave out ids"),
    ],
)
def test_a_list_ignores_no_option(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checks", *words]) == 2

    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


def test_rules_are_listed_in_short_lines_and_as_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checks", "--rules"]) == 0
    lines = capsys.readouterr().out
    assert main(["checks", "--rules", "--markdown"]) == 0

    assert capsys.readouterr().out != lines
    assert lines.startswith("CHAT-01")
    assert max(map(len, lines.splitlines())) <= 100

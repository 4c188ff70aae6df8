"""`list` honours every option or refuses it."""

from __future__ import annotations

import pytest

from plumbline_conformance.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--markdown"], "list --rules --markdown"),
        (["--markdown", "chat"], "list --rules --markdown"),
        (["--rules", "--profile", "core"], "leave out what chooses checks"),
        (["--rules", "--surface", "chat"], "leave out what chooses checks"),
        (["--rules", "chat"], "leave out what chooses checks"),
    ],
)
def test_a_list_ignores_no_option(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", *words]) == 2

    out = " ".join(capsys.readouterr().out.split())
    assert said in out
    assert "CHAT-01" not in out


def test_rules_are_listed_as_lines_and_as_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--rules"]) == 0
    lines = capsys.readouterr().out
    assert main(["list", "--rules", "--markdown"]) == 0

    assert capsys.readouterr().out != lines
    assert lines.startswith("CHAT-01")

"""Test the commands of the judge that list and explain checks."""

from __future__ import annotations

import pytest

from plumbline_conformance.cli import main
from plumbline_conformance.cli.explain import explain
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.coverage import published, revisions
from plumbline_conformance.suite.scenario import CHECKS
from plumbline_conformance.suite.selection import Selection


def test_list_shows_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checks"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(CHECKS)
    assert "MUST" in lines[0]


def test_every_check_is_explained() -> None:
    for name, found in CHECKS.items():
        out = "\n".join(explain(name) or [])
        for rule in found.rules:
            assert rules()[rule]["sentence"] in out, name
            assert rules()[rule]["source"] in out, name
        over_websocket = "websocket/" in name and name != "websocket/upgrade/refused"
        assert ("websocat" if over_websocket else "curl -sS") in out, name


@pytest.mark.parametrize("name", ["CHAT-01", "WS-01", "chat/text", "chat/text/shape"])
def test_an_explanation_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0

    assert capsys.readouterr().out == "\n".join([*(explain(name) or []), ""])


@pytest.mark.parametrize(
    "name", ["chat", "chat-08", "CHAT-08", "*/usage", "chat/stream-text/do", "chat/text"]
)
def test_what_check_knows_explain_knows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By id, prefix, pattern, or rule in any case."""
    assert main(["explain", name]) == 0

    out = capsys.readouterr().out
    chosen = Selection(ids=[name]).checks()
    assert chosen
    if name in ("chat", "*/usage"):
        assert out.startswith(f"{name} matches {len(chosen)} checks.")
        assert all(f"    {check}  {CHECKS[check].title}\n" in out for check in chosen)
    elif name == "chat/stream-text/do":
        assert chosen == ["chat/stream-text/done"]
        assert out.startswith("chat/stream-text/done  (MUST)")


def test_a_published_revision_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checks", "--requirements", revisions()[-1], "--surface", "models"]) == 0

    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [name for name in CHECKS if name.startswith("models/") and name in published()]
    assert main(["checks", "--requirements", "1999-01"]) == 2


def test_nothing_is_explained_that_does_not_exist() -> None:
    assert main(["explain", "no/such/check"]) == 2

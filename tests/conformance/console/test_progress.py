"""A run whose output is not a terminal writes how far it is, also while no scenario ends, and nothing later."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from plumbline_conformance.cli import progress
from plumbline_conformance.transcript.exchange import Transcript


@pytest.mark.parametrize("ended", [0, 2])
def test_lines_come_while_no_scenario_ends(
    ended: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_SAY", 0.001)
    threads = threading.active_count()
    line = f"{ended} of 5 scenarios have ended\n"
    written = ""

    with progress.progress(Console(file=io.StringIO()), 5) as report:
        for number in range(ended):
            report(Transcript(scenario=f"chat/{number}", exchanges=[]))
        while written.count(line) < 3:  # No scenario ends meanwhile.
            written += capsys.readouterr().err

    assert threading.active_count() == threads
    assert (written + capsys.readouterr().err).endswith(line)

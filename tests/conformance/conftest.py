"""Makes the helpers beside these tests importable, and gives one good transcript of every scenario."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that are busy or silent on purpose are not waited for in earnest."""
    monkeypatch.setattr("plumbline_conformance.client.busy_retry._PAUSES", (0.01, 0.01, 0.01))
    monkeypatch.setattr("plumbline_conformance.client.http._LEAST_PATIENCE", 0.0)

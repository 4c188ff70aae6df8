"""The report on Open Responses fails for every result that is not expected."""

from __future__ import annotations

import pytest

from own_server import openresponses
from own_server.openresponses import report, run


def result(name: str, status: str) -> dict[str, object]:
    return {"id": name, "status": status, "errors": ["something"]}


BY_DESIGN = [result("planned", "failed")]


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([*BY_DESIGN, result("one", "passed")], 0),
        ([*BY_DESIGN, result("one", "failed")], 1),
        ([*BY_DESIGN, result("one", "skipped")], 1),
        ([result("planned", "passed"), result("one", "passed")], 1),
        ([], 1),
    ],
)
def test_only_expected_results_are_a_success(
    results: list[dict[str, object]], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openresponses, "EXPECTED_FAILURES", {"planned": "a reason"})
    assert report(results) == status


def test_a_folder_without_the_suite_is_named(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([str(tmp_path)]) == 2
    assert "give the folder of a checkout" in capsys.readouterr().err

"""Test the judge's commands: selection, output, exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_servers.good_server import KEY, MODEL, serving, target_at
from example_servers.odd_servers import answering, error, fixed
from example_servers.reference import application

from plumbline_conformance.cli import main
from plumbline_conformance.cli.check import check
from plumbline_conformance.recording.file import read_recording
from plumbline_conformance.reports.conformance_classes import CLASSES, class_of
from plumbline_conformance.suite.scenario import CHECKS, Check, Target
from plumbline_conformance.suite.selection import Selection, UnknownChoice


@pytest.fixture(scope="module")
def good() -> Iterator[str]:
    with serving(application()) as base_url:
        yield base_url


ERROR = {"error": {"message": "no [bold]", "type": "invalid_request_error", "param": None, "code": None}}


def test_the_reference_conforms(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    mcp = target_at(good).mcp
    # The model is the first that it lists.
    assert main(["check", good, "--api-key", KEY, "--strict", "--mcp", str(mcp)]) == 0
    behaviour = sum(found.sampled for found in CHECKS.values())
    protocol = len(CHECKS) - behaviour
    counts = Counter(map(class_of, CHECKS))
    classes = ", ".join(f"{name}: pass ({counts[name]} of {counts[name]})" for name in CLASSES)
    assert capsys.readouterr().out == (
        f"by class: {classes}\n"
        "checks that pass, of those with a verdict: "
        f"protocol {protocol}/{protocol}, behaviour {behaviour}/{behaviour}\n"
        f"{len(CHECKS)} checks: {len(CHECKS)} pass\n"
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "*"])
def test_an_mcp_server_at_every_address_is_refused(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "http://127.0.0.1:1/v1", "--mcp", f"{host}:8765"]) == 2
    assert "is every address of this machine" in capsys.readouterr().err


@pytest.mark.long
def test_our_server_is_accused_of_nothing() -> None:
    """The whole server with the scripted model, which calls tools, reasons and reads images."""
    script = Path(__file__).parents[3] / "conformance/own_server/check.py"
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout[-2000:]
    accused = ("fail", "warn", "untestable", "error", "inconclusive", "skipped")
    assert not [line for line in ran.stdout.splitlines() if line.startswith(accused)]


def test_violations_end_with_1_and_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(fixed(200, {})) as base_url:
        assert check(Target(base_url=base_url, model="m"), ["errors/empty-messages"]) == 1

    out = capsys.readouterr().out
    assert "fail errors/empty-messages/refused  Refuse an empty list of messages" in out
    assert "ERR-07: Every out-of-range value" in out
    assert "expected status 400 or 422" in out
    assert "actual   status 200  (status)" in out


def test_what_is_core_may_not_be_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(fixed(400, ERROR)) as base_url:
        target = Target(base_url=base_url, model="m")
        assert check(target, ["chat/text"]) == 1
        assert check(target, ["responses"]) == 0

    assert "no [bold]" in capsys.readouterr().out


def test_warnings_count_where_one_is_strict() -> None:
    """Answer an unknown model with 404, without the code."""

    def change(_: str, body: Any) -> Any:
        return None if body["model"] == MODEL else (404, {}, error("No.", code="x"))

    with serving(answering(change)) as base_url:
        target = Target(base_url=base_url, model=MODEL, api_key=KEY)
        assert check(target, ["errors/unknown-model"]) == 0
        assert check(target, ["errors/unknown-model"], strict=True) == 1


def test_a_server_that_is_always_busy_cannot_be_judged() -> None:
    with serving(fixed(429, ERROR)) as base_url:
        assert check(Target(base_url=base_url, model="m"), ["chat"]) == 2


def test_a_check_that_crashes_is_the_suites_fault(good: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = CHECKS["chat/text/shape"]

    def crash(_: object) -> Any:
        raise ZeroDivisionError("oh")

    broken = Check(id=found.id, title=found.title, level="MUST", rules=found.rules, judge=crash)
    monkeypatch.setitem(CHECKS, found.id, broken)

    assert check(Target(base_url=good, model=MODEL, api_key=KEY), ["chat/text"]) == 3


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (["chat/text/usage"], {"chat/text/usage"}),
        (["chat/stream-text/do"], {"chat/stream-text/done"}),
        (
            ["models", "chat/choices"],
            {name for name in CHECKS if name.startswith(("models", "chat/choices"))},
        ),
    ],
)
def test_ids_and_their_beginnings_choose_checks(
    good: str, tmp_path: Path, chosen: list[str], expected: set[str]
) -> None:
    file = tmp_path / "findings.json"

    assert main(["check", good, "--model", MODEL, "--api-key", KEY, "--json", str(file), *chosen]) == 0

    results = json.loads(file.read_text("utf-8"))["results"]
    assert {result["check"] for result in results} == expected
    assert {result["verdict"] for result in results} == {"pass"}


def test_a_url_and_ids_stand_on_both_sides_of_options(good: str, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    words = ["check", good, "models", "--api-key", KEY, "--json", str(file), "errors/empty-messages"]
    assert main(words) == 0
    report = json.loads(file.read_text("utf-8"))
    assert report["run"]["model"] == MODEL
    assert {result["check"].split("/")[0] for result in report["results"]} == {"models", "errors"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chat"], "URL chat does not begin with http://"),
        ([], "URL is missing: give the root of its API"),
        (["http://127.0.0.1:1/v1"], "does not answer (GET /models"),
    ],
)
def test_a_server_and_its_model_are_named_once(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *words]) == 2
    assert said in capsys.readouterr().err


def test_unknown_ids_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Even next to known ones, and before any request."""
    assert main(["check", "http://127.0.0.1:1", "--model", "m", "chat", "chatt[/x"]) == 2
    assert "No check begins with chatt[/x." in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--concurrency", "0"], ["--timeout", "-1"], ["--timeout", "nan"]])
def test_numbers_that_would_hang_are_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "http://127.0.0.1:1", "--model", "m", *option]) == 2
    assert f"{option[0]} must be " in capsys.readouterr().err


def test_findings_that_cannot_be_saved_are_reported(good: str, tmp_path: Path) -> None:
    file = tmp_path / "no" / "folder.json"

    assert main(["check", good, "--model", MODEL, "--api-key", KEY, "--json", str(file), "models"]) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "selection", [["chat", "*/list/*", "ERR-01"], ["--level", "must", "--profile", "core"]]
)
def test_a_recording_is_judged_as_the_server_was(
    good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], selection: list[str]
) -> None:
    """Same lines, findings and status as `check`, without a server."""
    run, first, second = (tmp_path / name for name in ("run.jsonl", "a.json", "b.json"))

    files = ["--record", str(run), "--json", str(first)]
    status = main(["check", good, "--model", MODEL, "--api-key", KEY, *files, *selection])
    online = capsys.readouterr().out
    assert main(["judge", str(run), "--json", str(second)]) == status
    assert capsys.readouterr().out == online

    reports = [json.loads(path.read_text("utf-8")) for path in (first, second)]
    assert reports[0].pop("seconds") > 0
    assert reports[1].pop("seconds") is None
    assert reports[0] == reports[1]


def test_a_cut_recording_cannot_be_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.jsonl"
    run.write_text('{"kind": "header", "format": 1}\n', "utf-8")

    assert main(["judge", str(run)]) == 2
    assert "no footer" in capsys.readouterr().err
    assert main(["judge", str(tmp_path / "none.jsonl")]) == 2


def test_a_stale_baseline_is_named_and_fails_a_strict_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "baseline.json"
    only = ["errors/empty-messages", "--baseline", str(file)]
    with serving(fixed(200, {})) as base_url:
        target = [base_url, "--model", "m"]
        assert main(["check", *target, *only]) == 2  # There is no baseline yet.
        assert main(["check", *target, *only, "--update-baseline"]) == 0
        assert main(["check", *target, *only]) == 0
    assert "accepted by the baseline: not explained yet" in capsys.readouterr().out
    with serving(fixed(400, ERROR)) as base_url:
        target = [base_url, "--model", "m"]
        assert main(["check", *target, *only, "--strict"]) == 1
        assert main(["check", *target, *only]) == 0
        assert "stale errors/empty-messages/refused" in capsys.readouterr().out
        assert main(["check", *target, *only, "--update-baseline"]) == 0
        assert main(["check", *target, *only]) == 0


def test_every_report_is_saved(good: str, tmp_path: Path) -> None:
    names = {"json": "r.json", "junit": "r.xml", "markdown": "r.md", "html": "r.html", "badge": "b.svg"}
    options = [word for kind, name in names.items() for word in (f"--{kind}", str(tmp_path / name))]

    assert main(["check", good, "--model", MODEL, "--api-key", KEY, "models", *options]) == 0

    heads = {
        "json": "{",
        "junit": "<?xml",
        "markdown": "# Plumbline",
        "html": "<!doctype html>",
        "badge": "<svg",
    }
    for kind, name in names.items():
        assert (tmp_path / name).read_text("utf-8").startswith(heads[kind])


def test_a_matrix_of_reports(good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, page = tmp_path / "a.json", tmp_path / "m.html"
    assert main(["check", good, "--model", MODEL, "--api-key", KEY, "models", "--json", str(report)]) == 0
    capsys.readouterr()

    assert main(["matrix", f"ours={report}", f"same={report}"]) == 0
    assert "| ours | same |" in capsys.readouterr().out
    assert main(["matrix", str(report), "--html", str(page)]) == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert main(["matrix", f"a={report}", f"a={report}"]) == 2
    assert main(["matrix", str(tmp_path / "none.json")]) == 2


def test_profiles_levels_and_surfaces_choose() -> None:
    everything = Selection().checks()
    assert everything == list(CHECKS)
    assert {name.split("/")[0] for name in Selection(profile="core").checks()} == {"chat", "models"}
    assert "responses" not in {name.split("/")[0] for name in Selection(profile="chat").checks()}
    assert "chat" not in {name.split("/")[0] for name in Selection(profile="responses").checks()}
    assert {CHECKS[name].level for name in Selection(level="MUST").checks()} == {"MUST"}
    assert Selection(surfaces=["models"]).checks() == Selection(ids=["models/*"]).checks()
    with pytest.raises(UnknownChoice, match="surface"):
        Selection(surfaces=["nope"]).checks()


def without_completions(asked: set[str]) -> Any:
    """Return the reference without one API, and record the requested paths."""
    inner = application()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        asked.add(scope.get("path", ""))
        missing = scope.get("path") == "/v1/completions"
        await (fixed(404, ERROR) if missing else inner)(scope, receive, send)

    return serve


@pytest.mark.parametrize(
    ("capabilities", "verdicts", "looked"),
    [
        ("", {"completions/text": {"skipped"}, "responses/stream-text": {"pass"}}, True),
        (
            "completions,-responses",
            {"completions/text": {"rejected"}, "responses/stream-text": {"skipped"}},
            False,
        ),
    ],
)
def test_declared_capabilities_are_requested_and_declared_lacks_are_not(
    capabilities: str, verdicts: dict[str, set[str]], looked: bool, tmp_path: Path
) -> None:
    """Neither is probed, and the recording says so."""
    run, report, page = (tmp_path / name for name in ("run.jsonl", "r.json", "r.html"))
    asked: set[str] = set()
    with serving(without_completions(asked)) as base_url:
        words = [base_url, "--model", MODEL, "--api-key", KEY, "--capabilities", capabilities]
        words += ["--record", str(run), "--json", str(report), "--html", str(page)]
        main(["check", *words, "chat/text", *verdicts])

    assert ("said: completions -responses" in page.read_text("utf-8")) is bool(capabilities)
    results = json.loads(report.read_text("utf-8"))["results"]
    found = {name: {r["verdict"] for r in results if r["check"].startswith(f"{name}/")} for name in verdicts}
    assert found == verdicts
    assert ("/v1/responses" in asked) is looked
    options = read_recording(run).header.options
    assert options is not None
    assert options.capabilities == [word for word in capabilities.split(",") if word]


@pytest.mark.parametrize("capabilities", ["nothing", "tools,-tools", "-"])
def test_capabilities_that_do_not_exist_are_reported(
    capabilities: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", "http://127.0.0.1:1/v1", "--model", "m", f"--capabilities={capabilities}"]

    assert main(words) == 2
    assert "--capabilities " in capsys.readouterr().err


def test_expected_failures_are_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "http://127.0.0.1:1/v1", "--model", "m"]

    assert main([*words, "--expected-failures", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_a_rule_is_chosen_in_any_case() -> None:
    assert Selection(ids=["chat-08"]).checks() == Selection(ids=["CHAT-08"]).checks()


def test_what_is_concealed_is_not_in_the_recording(good: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    target = [good, "--model", MODEL, "--api-key", KEY]

    main(
        ["check", *target, "chat/text", "--record", str(path), "--server", "Good 1", "--conceal", "chat.comp"]
    )

    found = read_recording(path)
    assert found.header.server == "Good 1"
    bodies = b"".join(e.body for seen in found.transcripts for e in seen.exchanges)
    assert bodies
    assert b"chat.comp" not in bodies

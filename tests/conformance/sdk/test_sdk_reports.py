"""Findings of `--sdk openai` reach every report, the exit status and the baseline."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import openai
import pytest
from example_servers.good_server import KEY, MODEL, serving, transcripts
from example_servers.reference import application
from mutants.mutations import chunk, events

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli import main
from plumbline_conformance.recording.file import Recorder, RecordingHeader
from plumbline_conformance.transcript.exchange import Transcript

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "conformance/plumbline_conformance/reports/report.schema.json"

STREAM, RESPONSE = "chat/stream-text", "responses/tool"


def other_index(value: Any) -> None:
    value["output_index"] = 7


def recorded(path: Path, *seen: Transcript) -> Path:
    with Recorder(path, RecordingHeader.of("http://127.0.0.1:1/v1", "m")) as recorder:
        for transcript in seen:
            recorder.add(transcript)
    return path


def judged(path: Path, *words: str) -> int:
    return main(["judge", str(path), *words, "--sdk", "openai"])


def test_findings_are_in_every_report_and_in_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = events(lambda found: [(name, data) for name, data in found if name != "response.completed"])(
        transcripts()[RESPONSE]
    )
    path = recorded(tmp_path / "run.jsonl", seen)
    files = {kind: tmp_path / f"report.{kind}" for kind in ("json", "junit", "html", "markdown")}
    named = [word for kind, file in files.items() for word in (f"--{kind}", str(file))]
    chosen = "responses/tool/call-id"

    assert judged(path, chosen, *named) == 0
    out = capsys.readouterr().out
    assert "warn sdk/openai/responses-stream-helper" in out
    assert (
        "actual   RuntimeError: Didn't receive a `response.completed` event.  (responses/tool, request stream, events)"
        in out
    )
    assert "see it   curl" in out
    assert re.search(r" responses/tool (.* )?--sdk openai", out)
    assert judged(path, chosen, "--strict", *named) == 1
    report = json.loads(files["json"].read_text("utf-8"))
    jsonschema.validate(report, json.loads(SCHEMA.read_text("utf-8")))
    assert set(report["evidence"]) >= {"responses/tool"}
    cases = ElementTree.fromstring(files["junit"].read_text("utf-8")).iter("testcase")
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    assert failed == ["responses-stream-helper"]
    for kind in ("html", "markdown"):
        assert "responses-stream-helper" in files[kind].read_text("utf-8")
    assert (
        main(["matrix", f"a={files['json']}", f"b={files['json']}", "--html", str(tmp_path / "m.html")]) == 0
    )


def test_a_baseline_accepts_the_findings_of_a_client(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.jsonl", chunk(4, other_index)(transcripts()[RESPONSE]))
    good = recorded(tmp_path / "good.jsonl", transcripts()[RESPONSE])
    baseline = ("--strict", "--baseline", str(tmp_path / "plumbline.json"))
    chosen = "responses/tool/call-id"

    assert judged(path, chosen, *baseline, "--update-baseline") == 0
    assert judged(path, chosen, *baseline) == 0
    # Without the client nobody knows, and with it the entry is no longer true of the good one.
    assert main(["judge", str(path), chosen, *baseline]) == 0
    assert judged(good, chosen, *baseline) == 1


def test_the_server_gets_no_further_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    good = application()

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope.get("path", ""))
        await good(scope, receive, send)

    counts = []
    for options in ([], ["--sdk", "openai"]):
        asked.clear()
        with serving(counting) as base_url:
            target = [base_url, "--model", MODEL, "--api-key", KEY]
            assert main(["check", *target, "chat/stream-text", "models", *options]) == 0
        counts.append(len(asked))

    assert counts[0] == counts[1]
    out = capsys.readouterr().out
    assert "skipped sdk/openai" in out
    assert "pass" in out


def test_no_finding_of_a_client_has_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"

    async def leaking(scope: Any, receive: Any, send: Any) -> None:
        """Halves of the key in two chunks, which the client puts together."""
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        parts = [{"role": "assistant", "content": KEY[:4]}, {"content": KEY[4:]}]
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        sent = [{**chunk, "choices": [{"index": 0, "delta": part, "finish_reason": None}]} for part in parts]
        sent[1]["object"] = "else"
        content = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in sent)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    with serving(leaking) as base_url:
        target = [base_url, "--model", MODEL, "--api-key", KEY, "--trials", "0"]
        main(["check", *target, "chat/stream-text", "--sdk", "openai", "--json", str(report)])

    found = {result["check"]: result for result in json.loads(report.read_text("utf-8"))["results"]}
    assert found["sdk/openai/chat-stream-helper"]["verdict"] == "warn"
    told = json.dumps(found["sdk/openai/chat-stream-helper"])
    assert KEY not in told
    assert "sha256:" in told
    assert KEY not in capsys.readouterr().out


def test_without_the_client_the_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    path = recorded(tmp_path / "run.jsonl", transcripts()[STREAM])

    for command in (["judge", str(path)], ["check", "http://127.0.0.1:9/v1", "--model", "m"]):
        assert main([*command, "--sdk", "openai"]) == 2
        assert "pip install openai" in capsys.readouterr().err
    assert main(["judge", str(path), "chat/stream-text/done"]) == 0


def test_a_client_without_the_helpers_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(openai.resources.responses.Responses, "stream")

    path = recorded(tmp_path / "run.jsonl", transcripts()[STREAM])
    assert main(["judge", str(path), "--sdk", "openai"]) == 2
    assert f"a newer openai than {openai.__version__}" in capsys.readouterr().err


def test_a_client_that_nobody_knows_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "run.jsonl", transcripts()[STREAM])
    assert main(["judge", str(path), "--sdk", "openai,other"]) == 2

    assert "--sdk has the unknown name other: choose from openai, anthropic" in capsys.readouterr().err


def test_live_traffic_is_not_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "live.jsonl"
    with Recorder(path, RecordingHeader.of("u", "", by="watch")) as recorder:
        recorder.add(transcripts()["models/list"])

    assert judged(path) == 2
    assert "live traffic" in capsys.readouterr().err


def test_claims_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "sdk/openai/chat-stream-helper", "SDK-02"]) == 0

    out = capsys.readouterr().out
    assert "--sdk openai" in out
    assert "Observed by:" in out

"""Test HAR export: complete as far as the format allows, with notes on omissions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from example_servers.good_server import transcripts

from plumbline_conformance.cli import main
from plumbline_conformance.recording.file import Recorder, RecordingHeader, read_recording
from plumbline_conformance.suite.scenario import SCENARIOS
from plumbline_conformance.transcript.exchange import Exchange, Transcript

NAMES = ("chat/stream-text", "errors/invalid-utf8", "models/list", "websocket/queue", "responses/pages")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    silent = Exchange(
        method="GET", url="http://h/x?a=&b=1", request_headers={}, request_body=b"", error="no answer"
    )
    odd = Exchange(
        method="POST",
        url="http://h/x",
        request_headers={},
        request_body=b"\xff",
        status=200,
        frames=[(0.5, b"\xfe")],
    )
    with Recorder(path, RecordingHeader.of("http://h/v1", "m")) as file:
        for name in NAMES:
            file.add(transcripts()[name])
        file.add(Transcript(scenario="chat/text", exchanges=[silent], again=[[odd]]))
    return path


@pytest.fixture(scope="module")
def log(run: Path) -> Any:
    target = run.with_suffix(".har")
    assert main(["export", str(run), "--har", str(target)]) == 0
    return json.loads(target.read_text("utf-8"))["log"]


def test_every_exchange_is_an_entry_in_its_place(run: Path, log: Any) -> None:
    found = [(seen.scenario, one) for seen in read_recording(run).transcripts for one in seen.everything]

    assert len(log["entries"]) == len(found)
    for entry, (scenario, exchange) in zip(log["entries"], found, strict=True):
        assert entry["pageref"] == scenario
        assert entry["request"]["url"] == exchange.url
        assert entry["response"]["status"] == exchange.status
        assert entry["response"]["bodySize"] == len(exchange.body)
        assert entry.get("comment") == exchange.error
        assert entry["time"] == pytest.approx(
            entry["timings"]["wait"] + entry["timings"]["receive"], abs=0.01
        )
    assert [page["id"] for page in log["pages"]] == [*NAMES, "chat/text"]


def test_what_har_requires_is_there(log: Any) -> None:
    """Check the required fields of the format."""
    assert log["version"] == "1.2"
    assert {"name", "version"} <= set(log["creator"])
    for entry in log["entries"]:
        assert {"startedDateTime", "time", "request", "response", "cache", "timings"} <= set(entry)
        assert {
            "method",
            "url",
            "httpVersion",
            "cookies",
            "headers",
            "queryString",
            "headersSize",
            "bodySize",
        } <= set(entry["request"])
        assert {"status", "statusText", "httpVersion", "cookies", "headers", "content", "redirectURL"} <= set(
            entry["response"]
        )
        assert {"size", "mimeType"} <= set(entry["response"]["content"])


def test_bodies_survive_whatever_they_are(log: Any) -> None:
    streams = [e for e in log["entries"] if e["response"]["content"]["mimeType"] == "text/event-stream"]
    assert all(entry["response"]["content"]["text"].endswith("data: [DONE]\n\n") for entry in streams)
    assert streams
    [odd] = [entry for entry in log["entries"] if entry["response"]["content"].get("encoding") == "base64"]
    assert odd["response"]["content"]["text"] == "/g=="


def test_messages_of_a_websocket_stand_beside_its_upgrade(log: Any) -> None:
    [entry] = [entry for entry in log["entries"] if entry["pageref"] == "websocket/queue"]
    sent = [one for one in entry["_webSocketMessages"] if one["type"] == "send"]
    received = [
        json.loads(one["data"])["type"] for one in entry["_webSocketMessages"] if one["type"] == "receive"
    ]

    assert entry["request"]["method"] == "GET"
    assert len(sent) == 2
    assert received.count("response.created") == 2


def test_it_is_printed_without_a_file_and_refuses_what_is_no_recording(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run)]) == 0
    assert json.loads(capsys.readouterr().out)["log"]["entries"]
    (tmp_path / "x").write_text("{}")
    assert main(["export", str(tmp_path / "x")]) == 2
    assert main(["export", str(tmp_path / "missing")]) == 2


def test_the_scenarios_that_are_exported_exist() -> None:
    assert set(NAMES) <= set(SCENARIOS)

"""`--seed` changes the seed of requests that send one, and nothing else."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from example_servers.good_server import KEY, MODEL, serving
from example_servers.reference import application
from hypothesis import given
from hypothesis import strategies as st

from plumbline_conformance.cli import main
from plumbline_conformance.client.http import exchange_of
from plumbline_conformance.recording.file import Options, RecordingHeader, read_recording
from plumbline_conformance.suite.scenario import SCENARIOS, SEED, Request, Target
from plumbline_conformance.transcript.exchange import Exchange

TARGET = Target(base_url="http://127.0.0.1:1/v1", model="m")
SILENCE = Exchange(method="", url="", request_headers={}, request_body=b"", error="not sent")


def requests(name: str) -> list[Request]:
    """Return the first requests of a scenario, without any answer."""
    steps = SCENARIOS[name].steps(TARGET)

    def sent() -> Any:
        try:
            request = next(steps)
            while True:
                yield request
                request = steps.send(SILENCE)
        except StopIteration:
            return

    return list(islice(sent(), 6))


@given(st.sampled_from(sorted(SCENARIOS)), st.integers(-(2**63), 2**63 - 1))
def test_a_seed_changes_the_seed_alone(name: str, seed: int) -> None:
    other = msgspec.structs.replace(TARGET, seed=seed)

    for request in requests(name):
        was, now = exchange_of(TARGET, request).request_json, exchange_of(other, request).request_json
        if isinstance(was, dict) and was.get("seed") == SEED:
            assert now["seed"] == seed
            now = {**now, "seed": SEED}
        assert now == was


def test_scenarios_that_draw_send_a_seed() -> None:
    sent = [exchange_of(TARGET, request).request_json for name in SCENARIOS for request in requests(name)]

    assert sum(isinstance(body, dict) and body.get("seed") == SEED for body in sent) > 10


@given(st.none() | st.text() | st.booleans() | st.integers().filter(lambda value: value != SEED))
def test_a_seed_that_is_what_a_request_is_about_stays(value: Any) -> None:
    request = Request(path="/chat/completions", json={"seed": value})

    sent = exchange_of(msgspec.structs.replace(TARGET, seed=7), request)

    assert json.loads(sent.request_body) == {"seed": value}


def test_the_recording_names_the_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    with serving(application()) as base_url:
        main(
            ["check", base_url, "--model", MODEL, "--api-key", KEY, "--seed", "-3",
             "--record", str(path), "chat/stream-text"]
        )  # fmt: skip

    found = read_recording(path)

    assert found.header.options is not None
    assert found.header.options.seed == -3
    [seen] = found.transcripts
    assert {exchange.request_json["seed"] for exchange in seen.exchanges} == {-3}


def test_a_recording_from_before_had_the_usual_seed() -> None:
    old = {"trials": 0, "concurrency": 1, "timeout": 1.0}
    value = {"base_url": "u", "model": "m", "started": "2026", "options": old}

    options = msgspec.convert(value, RecordingHeader).options

    assert options == Options(trials=0, concurrency=1, timeout=1.0)
    assert options is not None
    assert options.seed == SEED


@pytest.mark.parametrize("seed", ["x", "1.5", str(2**63)])
def test_what_is_no_seed_is_refused(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "http://127.0.0.1:1/v1", "--model", "m", "--seed", seed]) == 2

    assert "--seed" in capsys.readouterr().err

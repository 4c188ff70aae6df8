"""One valid request precedes a run, so that a wrong address, model or key is not reported as violations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from example_servers.good_server import KEY, MODEL, serving, transcripts
from example_servers.odd_servers import answering, error, of_the_o_series, only
from example_servers.reference import application

from plumbline_conformance.cli import main
from plumbline_conformance.client.http import exchange_of
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.recording.file import read_recording
from plumbline_conformance.runner.preflight import apis_of
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS, Request, Target
from plumbline_conformance.transcript.exchange import Exchange, Transcript


@pytest.fixture(scope="module")
def good() -> Iterator[str]:
    transcripts()
    with serving(application()) as base_url:
        yield base_url


def commands(base_url: str, model: str = MODEL, key: str = KEY) -> dict[str, list[str]]:
    """Every command that asks a server, short."""
    target = [base_url, "--model", model, "--api-key", key]
    keys = ["--api-key", key, "--reference-api-key", key]
    return {
        "check": ["check", *target],
        "fuzz": ["fuzz", *target, "--examples", "30"],
        "diff": ["compare", base_url, base_url, "--model", model, *keys, "--examples", "3"],
    }


@pytest.mark.parametrize("command", ["check", "fuzz", "diff"])
def test_a_model_that_is_not_known_is_no_violation(
    good: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(commands(good, model="wrong")[command]) == 2

    out = capsys.readouterr().err
    assert f"The server does not know the model 'wrong'; it lists: {MODEL}, other/one." in out
    assert "fail" not in out


@pytest.mark.parametrize("command", ["check", "fuzz", "diff"])
def test_an_address_without_the_api_is_no_violation(
    good: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(commands(good.removesuffix("/v1"))[command]) == 2

    out = capsys.readouterr().err
    assert "There is no API at" in out
    assert "Does the address end with /v1" in out


@pytest.mark.parametrize("command", ["check", "fuzz", "diff"])
def test_a_key_that_is_refused_is_no_violation(
    good: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(commands(good, key="sk-other")[command]) == 2

    out = capsys.readouterr().err
    assert "The server refuses the API key" in out
    assert "sk-other" not in out


def test_a_missing_key_is_reported(
    good: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    assert main(["check", good, "--model", MODEL]) == 2
    assert "The server requires an API key" in capsys.readouterr().err


UNKNOWN = [
    (404, error("The model `m` does not exist or you do not have access to it.", code="model_not_found")),
    (403, error("Project `p` does not have access to model `m`", code="model_not_found")),
    (
        404,
        {"object": "error", "message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404},
    ),
    (404, {"error": {"message": 'model "m" not found, try pulling it first', "type": "api_error"}}),
    (400, error("/chat/completions: Invalid model name passed in model=m.", code="400")),
    (400, error("Unknown.", param="model")),
]


@pytest.mark.parametrize(("status", "body"), UNKNOWN)
def test_every_known_refusal_of_an_unknown_model_is_recognized(
    status: int, body: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server = answering(lambda path, _: None if path == "/models" else (status, {}, body), open_to_all=True)
    with serving(server) as base_url:
        assert main(["check", base_url, "--model", "m"]) == 2

    assert f"does not know the model 'm'; it lists: {MODEL}, other/one." in capsys.readouterr().err


def test_without_a_list_of_models_none_are_suggested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, body = UNKNOWN[0]
    with serving(answering(lambda *_: (status, {}, body))) as base_url:
        assert main(["check", base_url, "--model", "m"]) == 2

    assert "it lists no models" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "scenario"), [("/responses", "responses/stream-text"), ("/completions", "completions/stop")]
)
def test_a_server_of_one_api_is_judged_by_it(path: str, scenario: str, tmp_path: Path) -> None:
    """It has no chat completions, and that is not the end."""
    file = tmp_path / "r.json"
    with serving(only(path, "/models")) as base_url:
        target = [base_url, "--model", MODEL, "--api-key", KEY]
        assert main(["check", *target, scenario, "--json", str(file)]) == 0
        assert main(["check", *target, "chat/text"]) == 1

    results = json.loads(file.read_text("utf-8"))["results"]
    assert {result["verdict"] for result in results} <= {"pass", "skipped"}


def test_what_refuses_everything_but_knows_the_model_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(answering(lambda *_: (400, {}, error("No.")))) as base_url:
        assert main(["check", base_url, "--model", "m", "chat/text"]) == 1

    assert "rejected chat/text" in capsys.readouterr().out


def test_a_selection_that_generates_nothing_asks_for_nothing() -> None:
    assert apis_of([SCENARIOS["models/list"]]) == []
    assert apis_of([SCENARIOS["chat/text"], SCENARIOS["responses/tool"]])[0] == "chat"
    assert apis_of([SCENARIOS["responses/tool"], SCENARIOS["websocket/turn"]])[0] == "responses"
    assert apis_of([SCENARIOS["completions/stop"]])[0] == "completions"


def test_the_first_request_is_no_evidence(good: str, tmp_path: Path) -> None:
    run = tmp_path / "run.jsonl"
    target = [good, "--model", MODEL, "--api-key", KEY]
    assert main(["check", *target, "chat/text", "--record", str(run)]) == 0

    [seen] = read_recording(run).transcripts
    assert len(seen.exchanges) == len(transcripts()["chat/text"].exchanges)


def test_the_first_request_is_paid_from_the_budget(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It costs the reference six tokens: two of the prompt and four of the answer."""
    target = [good, "--model", MODEL, "--api-key", KEY]

    assert main(["check", *target, "chat/text", "--max-tokens-total", "100"]) == 0
    capsys.readouterr()
    main(["check", *target, "chat/text", "--max-tokens-total", "6"])
    assert "and 0 of 0 are left" in capsys.readouterr().out


def test_a_right_request_that_is_refused_at_all_times_is_not_spoilt_by_hostile_ones() -> None:
    seen = transcripts()["errors/hostile"]
    unknown = Exchange(
        method="POST",
        url="",
        request_headers={},
        request_body=b"{}",
        status=404,
        frames=[(0.0, json.dumps(error("No such model.", code="model_not_found")).encode())],
    )
    exchanges = [msgspec.structs.replace(unknown, name=one.name) for one in seen.exchanges]
    verdicts = {
        finding.check: finding.verdict
        for finding in judge(Transcript(scenario=seen.scenario, exchanges=exchanges))
    }

    assert verdicts["errors/hostile/served"] == "rejected"
    assert verdicts["errors/hostile/refused"] == "inconclusive"


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (400, "fail"),
        (404, "fail"),
        (422, "fail"),
        (500, "fail"),
        (429, "inconclusive"),
        (503, "inconclusive"),
    ],
)
def test_a_server_that_hostile_requests_spoil_is_reported(status: int, verdict: str) -> None:
    """It refused what was hostile as it should, and refuses the right request after it."""
    seen = transcripts()["errors/hostile"]
    frames = [(0.0, json.dumps(error("state is poisoned")).encode())]
    *hostile, valid = seen.exchanges
    exchanges = [*hostile, msgspec.structs.replace(valid, status=status, frames=frames)]

    [finding] = [
        found
        for found in judge(Transcript(scenario=seen.scenario, exchanges=exchanges))
        if found.check == "errors/hostile/served"
    ]

    assert finding.verdict == verdict


@pytest.mark.parametrize("status", [400, 422, 500])
def test_an_api_that_fails_beside_one_that_is_missing_is_there(
    status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(path: str, _: Any) -> Any:
        if path == "/models":
            return None
        return (404, {}, error("Not found")) if "chat" in path else (status, {}, error("boom"))

    with serving(answering(change)) as base_url:
        target = [base_url, "--model", MODEL, "--api-key", KEY]
        assert main(["check", *target, "responses/tool", "chat/text"]) == 1

    assert "There is no API" not in capsys.readouterr().out


@pytest.mark.parametrize("second", [400, 500])
def test_an_unknown_model_is_reported_whatever_the_other_apis_do(
    second: int, capsys: pytest.CaptureFixture[str]
) -> None:
    status, body = UNKNOWN[0]

    def change(path: str, _: Any) -> Any:
        if path == "/models":
            return None
        return (status, {}, body) if "chat" in path else (second, {}, error("boom"))

    with serving(answering(change, open_to_all=True)) as base_url:
        assert main(["check", base_url, "--model", "m"]) == 2

    assert "does not know the model" in capsys.readouterr().err


@pytest.mark.long
def test_a_server_that_takes_the_new_limit_alone_conforms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The contract: `max_tokens` is deprecated, and not compatible with some models."""
    run = tmp_path / "run.jsonl"
    with serving(of_the_o_series()) as base_url:
        target = [base_url, "--model", MODEL, "--api-key", KEY]
        assert main(["check", *target, "--record", str(run)]) == 0
    out = capsys.readouterr().out

    skipped = sum(name.startswith("responses/mcp") for name in CHECKS)
    assert out.splitlines()[-1] == f"{len(CHECKS)} checks: {len(CHECKS) - skipped} pass, {skipped} skipped"
    assert "was given `max_completion_tokens`" in out
    found = read_recording(run)
    assert found.header.options is not None
    assert found.header.options.limit == "max_completion_tokens"
    assert main(["judge", str(run)]) == 0
    assert capsys.readouterr().out == out


def test_a_limit_that_is_too_small_is_not_renamed(tmp_path: Path) -> None:
    """The server names `max_tokens` because of its number."""

    def change(path: str, body: Any) -> Any:
        limit = body.get("max_tokens") if isinstance(body, dict) else None
        small = path == "/chat/completions" and isinstance(limit, int) and limit < 16
        return (400, {}, error("max_tokens must be >= 16", param="max_tokens")) if small else None

    run = tmp_path / "run.jsonl"
    with serving(answering(change)) as base_url:
        target = [base_url, "--model", MODEL, "--api-key", KEY]
        main(["check", *target, "chat/text", "--record", str(run)])

    options = read_recording(run).header.options
    assert options is not None
    assert options.limit == "max_tokens"


def test_a_limit_that_is_wrong_on_purpose_keeps_its_name() -> None:
    old = Target(base_url="http://h/v1", model="m")
    new = Target(base_url="http://h/v1", model="m", limit="max_completion_tokens")

    def sent(target: Target, path: str = "/chat/completions", **body: Any) -> Any:
        return json.loads(exchange_of(target, Request(path=path, json=body)).request_body)

    assert sent(old, max_tokens=4) == {"max_tokens": 4}
    assert sent(new, max_tokens=4) == {"max_completion_tokens": 4}
    assert sent(new, max_tokens=4, max_completion_tokens=-1) == {"max_completion_tokens": -1}
    assert sent(new, max_tokens=4, max_completion_tokens=None) == {"max_completion_tokens": 4}
    for wrong in (0, "4", True, None):
        assert sent(new, max_tokens=wrong) == {"max_tokens": wrong}
    assert sent(new, path="/completions", max_tokens=4) == {"max_tokens": 4}


@pytest.mark.parametrize("command", ["fuzz", "diff"])
def test_a_server_that_served_nothing_was_not_found_to_be_right(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every request is refused with a correct error, also those that no server may refuse."""

    def refuse(path: str, _: Any) -> Any:
        if not path.startswith("/messages"):
            return 400, {}, error("No.", param="messages")
        own = {"type": "error", "error": {"type": "invalid_request_error", "message": "No."}}
        return 400, {"request-id": "req_1"}, own

    with serving(answering(refuse)) as base_url:
        assert main(commands(base_url)[command]) == 2

    assert "No valid request got an answer with status 200" in capsys.readouterr().out

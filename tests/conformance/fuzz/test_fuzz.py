"""Test the fuzzer: valid requests are valid, our server passes, and a broken server is found and shrunk."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_servers.asgi import body_of, live_and_end, send_json
from example_servers.good_server import MODEL, app, serving, transcripts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

import plumbline_conformance.fuzz
from own_server import fuzz as fuzz_our_server
from plumbline_conformance.cli import main
from plumbline_conformance.fuzz.claims import claims
from plumbline_conformance.fuzz.schema_strategies import of_schema
from plumbline_conformance.fuzz.strategies import MODES, operations, requests
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.transcript.exchange import Exchange

LAWS = settings(max_examples=EXPLORED or 15, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def good() -> Iterator[str]:
    transcripts()
    with serving(app()) as base_url:
        yield base_url


@pytest.mark.parametrize("name", operations())
def test_valid_requests_are_valid(name: str) -> None:
    @LAWS
    @given(requests(operations()[name], "valid", "m"))
    def law(request: Any) -> None:
        body = json.loads(request.content)
        assert list(violations(operations()[name].schema, body)) == []

    law()


@pytest.mark.long
@pytest.mark.parametrize("name", operations())
@pytest.mark.parametrize("mode", MODES)
def test_every_request_can_be_sent(name: str, mode: str) -> None:
    @LAWS
    @given(requests(operations()[name], mode, "m"))
    def law(request: Any) -> None:
        assert isinstance(request.content, bytes)
        assert request.path.startswith("/")

    law()


def test_schemas_with_unknown_words_are_not_guessed() -> None:
    with pytest.raises(NotImplementedError, match="allOf"):
        of_schema({"allOf": []})


@given(st.integers(0, 599), st.binary(max_size=40))
def test_claims_are_made_of_any_answer(status: int, body: bytes) -> None:
    for operation in operations().values():
        exchange = Exchange(
            method="POST",
            url=f"http://h/v1{operation.path}",
            request_headers={},
            request_body=b'{"stream": true}',
            status=status,
            headers=[("content-type", "text/event-stream")],
            frames=[(0.0, body)],
        )
        found = list(claims(operation, exchange))
        # 405 and 501 say that the operation is missing, which is no fault.
        assert found or status in (200, 401, 403, 404, 405, 408, 429, 501, 503), status


@pytest.mark.long
def test_our_server_survives_a_short_run(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A short run; `nox -s fuzz` is the long one."""
    status = main(["fuzz", good, "--model", MODEL, "--examples", "150"])

    out = capsys.readouterr().out
    assert status == 0, out
    assert out.endswith("0 counterexamples\n")
    assert "createChatCompletion valid: " in out


def broken(body: bytes) -> tuple[int, bytes]:
    """Return a server that crashes on messages that are not a list, and sends errors without an envelope."""
    try:
        value = json.loads(body)
        trips = isinstance(value, dict) and not isinstance(value.get("messages"), list)
    except (ValueError, RecursionError):
        trips = False
    return (500, b"Traceback") if trips else (400, b'{"detail": "no"}')


async def falls_over(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await live_and_end(receive, send)
        return
    body = await body_of(receive)
    status, answer = broken(body)
    await send_json(send, status, answer)


@pytest.mark.long
def test_faults_are_distinguished_and_shrunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    with serving(falls_over) as base_url:
        command = ["fuzz", base_url, "createChatCompletion", "--model", "m"]
        assert main([*command, "--examples", "150", "--json", str(file)]) == 1

    found = json.loads(file.read_text("utf-8"))
    assert {example["claim"]["name"] for example in found} == {"errors/broken-json/envelope", "status 500"}
    smallest = min((e["command"] for e in found if e["claim"]["name"] == "status 500"), key=len)
    assert "curl" in smallest
    assert len(smallest) < 300
    assert "expected no 5xx" in capsys.readouterr().out


def test_a_server_that_is_not_there_cannot_be_fuzzed(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fuzz", "http://127.0.0.1:1/v1", "--model", "m"]

    assert main(command) == 2
    assert "cannot be reached" in capsys.readouterr().err
    assert main([*command, "noSuchOperation"]) == 2


def test_without_hypothesis_the_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The package is imported again below; restore the old modules afterwards.
    monkeypatch.setattr(plumbline_conformance, "fuzz", plumbline_conformance.fuzz)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    for name in [name for name in sys.modules if name.startswith("plumbline_conformance.fuzz")]:
        monkeypatch.delitem(sys.modules, name)

    assert main(["fuzz", "http://127.0.0.1:1/v1", "--model", "m"]) == 2
    assert "pip install '.[fuzz]'" in capsys.readouterr().err


@pytest.mark.long
def test_both_fuzzers_find_nothing_in_a_short_run(good: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        fuzz_our_server.main(
            [
                good,
                "--model",
                MODEL,
                "--phases",
                "examples,fuzzing,stateful",
                "--examples",
                "34",
            ]
        )
        == 0
    )

    out = capfd.readouterr().out
    assert "0 counterexamples" in out
    assert "Fuzzing" in out

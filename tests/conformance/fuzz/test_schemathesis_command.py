"""Test `plumbline fuzz --schemathesis`: it sends model and key, and its findings set the exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from example_servers.good_server import MODEL, app, serving
from example_servers.odd_servers import answering, error
from example_servers.reference.names import KEY

from plumbline_conformance.cli import main
from plumbline_conformance.fuzz import schemathesis_run

FEW = ("--schemathesis", "--phases", "fuzzing", "--examples", "8")


class Met:
    """Record keys and models of the requests of schemathesis to an application."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.keys: set[str] = set()
        self.models: set[str] = set()
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def noted() -> Any:
            message = await receive()
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                self.models.add(str(json.loads(message.get("body", b""))["model"]))
            return message

        headers = dict(scope.get("headers", []))
        if headers.get(b"user-agent", b"").startswith(b"schemathesis"):
            self.asked += 1
            self.keys.add(headers.get(b"authorization", b"none").decode())
            await self._inner(scope, noted, send)
            return
        await self._inner(scope, receive, send)


@pytest.mark.long
def test_it_asks_for_the_model_with_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    met = Met(answering(lambda *_: None))
    with serving(met) as base_url:
        command = ["fuzz", base_url, "createCompletion", "--model", MODEL, "--api-key", KEY]
        status = main([*command, *FEW])

    out = capsys.readouterr().out
    assert met.asked > 0, out
    assert met.keys == {f"Bearer {KEY}"}
    assert MODEL in met.models
    assert "Fuzzing" in out
    assert KEY not in out
    assert status in (0, 1)


@pytest.mark.long
def test_on_our_server_it_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(app()) as base_url:
        command = ["fuzz", base_url, "createChatCompletion", "--model", MODEL, *FEW]
        assert main(command) == 0, capsys.readouterr().out


@pytest.mark.long
def test_what_it_finds_counts_and_a_key_that_is_repeated_is_covered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Our fuzzer finds nothing here, so the status is that of schemathesis.
    monkeypatch.setattr("plumbline_conformance.fuzz.campaign.search", lambda *_, **__: 0)
    repeats = answering(
        lambda path, _: None if path == "/models" else (500, {}, error(f"no {KEY}")), open_to_all=True
    )
    with serving(repeats) as base_url:
        command = ["fuzz", base_url, "createChatCompletion", "--model", MODEL]
        status = main([*command, "--api-key", KEY, *FEW])

    out = capsys.readouterr().out
    assert status == 1, out
    assert "Server error" in out
    assert KEY not in out


def test_where_the_first_could_not_run_the_second_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object, **__: object) -> int:
        raise AssertionError

    monkeypatch.setattr(schemathesis_run, "run_schemathesis", never)

    assert main(["fuzz", "http://127.0.0.1:1/v1", "--model", "m", *FEW]) == 2
    assert "cannot be reached" in capsys.readouterr().err


def test_what_cannot_be_run_is_reported_before_a_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away = ["fuzz", "--model", "m", *FEW]

    assert main([*away, "http://127.0.0.1:1/v1?api-version=1"]) == 2
    assert "the query of the base URL" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main([*away, "http://127.0.0.1:1/v1"]) == 2
    assert "pip install '.[fuzz]'" in capsys.readouterr().err


@pytest.mark.long
def test_an_interruption_ends_both() -> None:
    met = Met(app())
    with serving(met) as base_url:
        command = ["fuzz", base_url, "createChatCompletion", "--model", MODEL]
        command += ["--schemathesis", "--examples", "100000"]
        # Only our process is interrupted, as by `kill`; its child must end, too.
        script = (
            "import signal, sys; import plumbline_conformance.fuzz.campaign as run; "
            "from plumbline_conformance.cli import main; "
            # Background processes of a shell ignore SIGINT, and so do their children.
            "signal.signal(signal.SIGINT, signal.default_int_handler); "
            "run.search = lambda *a, **b: 0; sys.exit(main(sys.argv[1:]))"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script, *command],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        while met.asked < 5 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
        watchdog.cancel()
        before = met.asked
        time.sleep(1)

    assert process.returncode == 130
    assert "Interrupted" in out
    assert met.asked - before <= 1

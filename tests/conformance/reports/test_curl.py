"""Test printed curl commands: a shell runs them with a fake curl that prints its arguments."""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline_conformance.cli.check import CheckCommand
from plumbline_conformance.client.http import exchange_of
from plumbline_conformance.client.target_input import capabilities_of
from plumbline_conformance.console.command import read
from plumbline_conformance.console.commands import JUDGE, parse_arguments, parser_of
from plumbline_conformance.recording.file import Options, RecordingHeader
from plumbline_conformance.recording.redaction import fingerprint, redacted_exchange
from plumbline_conformance.reports.curl import curl
from plumbline_conformance.reports.formats.text import command_of
from plumbline_conformance.reports.report import Report, Result
from plumbline_conformance.suite.scenario import CAPABILITIES, SCENARIOS, WRONG_KEY, Request, Target
from plumbline_conformance.suite.selection import PROFILES
from plumbline_conformance.transcript.exchange import Exchange

CURL = "#!/bin/sh\nprintf '%s\\0' \"$@\"\nprintf '\\0'\nif [ -p /dev/stdin ]; then cat; fi\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("bin")
    (found / "curl").write_text(CURL, "utf-8")
    (found / "curl").chmod(0o755)
    return found


def sent(command: str, folder: Path) -> tuple[list[str], bytes]:
    """Return the arguments of curl, and the body."""
    environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "OPENAI_API_KEY": "the key"}
    out = subprocess.run(["sh", "-c", command], env=environment, stdout=subprocess.PIPE, check=True).stdout
    arguments, _, body = out.partition(b"\0\0")
    found = arguments.decode().split("\0")
    place = found.index("--data-binary")
    return found, body if found[place + 1] == "@-" else found[place + 1].encode()


@settings(max_examples=EXPLORED or 25, deadline=None)
@given(st.binary(min_size=1, max_size=60))
@example(b'it\'s "$HOME" `id` \\n %s')
@example(b"@/etc/passwd")
@example(b"-\x00")
@example(b"\x00\xff%d\\'\n")
def test_the_command_sends_the_very_bytes(folder: Path, content: bytes) -> None:
    exchange = Exchange(
        method="POST",
        url="http://127.0.0.1:1/v1/a?b=$(id)&c='d'",
        request_headers={"content-type": "application/json", "authorization": "Bearer secret"},
        request_body=content,
    )

    arguments, body = sent(curl(exchange), folder)

    assert body == content
    assert "http://127.0.0.1:1/v1/a?b=$(id)&c='d'" in arguments
    assert "content-type: application/json" in arguments
    assert "authorization: Bearer the key" in arguments
    assert "-X" not in arguments


def test_methods_that_a_body_does_not_imply_are_named() -> None:
    def command(method: str, content: bytes) -> str:
        return curl(Exchange(method=method, url="http://h/", request_headers={}, request_body=content))

    assert command("GET", b"") == "curl -sS -N -i http://h/"
    assert "-X DELETE" in command("DELETE", b"")
    assert "-X PUT" in command("PUT", b"{}")
    noise = Random(7).randbytes(30_000)
    assert "a body of 30000 bytes" in command("POST", noise)


@settings(max_examples=EXPLORED or 15, deadline=None)
@given(
    st.binary(max_size=600),
    st.binary(min_size=1, max_size=40),
    st.integers(30_000, 200_000),
    st.binary(max_size=600),
)
@example(b"", b'{"model":', 27_000, b"")
@example(b'{"messages": [{"content": "', b"it's \\ $HOME", 60_000, b'"}]}')
@example(b"", b"\x00", 20_001, b"")
@example(b"ab", b"ab", 3_000_000, b"a")
def test_a_long_body_that_repeats_a_piece_is_made_by_the_command(
    folder: Path, head: bytes, piece: bytes, size: int, tail: bytes
) -> None:
    content = head + piece * (size // len(piece)) + tail
    exchange = Exchange(method="POST", url="http://h/", request_headers={}, request_body=content)

    command = curl(exchange)

    assert "# and a body" not in command
    assert len(command) < 20_000
    assert sent(command, folder)[1] == content


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_request_of_another_version_of_http_is_sent_by_that(version: Any) -> None:
    request = Request(path="/chat/completions", json={}, version=version)

    shown = curl(exchange_of(Target(base_url="http://h/v1", model="m"), request))

    assert ("--http1.0" in shown) == (version == "1.0")


def test_every_body_of_the_suite_is_sent_by_its_command(folder: Path) -> None:
    """Return the requests that scenarios send without answers."""
    target, long = Target(base_url="http://h/v1", model="m"), 0
    for scenario in SCENARIOS.values():
        steps = scenario.steps(target)
        asked: list[Exchange] = []
        with suppress(StopIteration):
            asked.append(exchange_of(target, next(steps)))
            while True:
                asked.append(exchange_of(target, steps.send(asked[-1])))
        for exchange in asked:
            assert "# and a body" not in curl(exchange), scenario.id
            if len(exchange.request_body) > 20_000:
                long += 1
                assert sent(curl(exchange), folder)[1] == exchange.request_body
    assert long


@settings(max_examples=EXPLORED or 25)
@given(
    st.integers(0, 9),
    st.floats(0.5, 600).map(lambda seconds: round(seconds, 1)),
    st.dictionaries(st.sampled_from(list(CAPABILITIES)), st.booleans()),
    st.sampled_from(list(PROFILES)),
    st.integers(-(2**63), 2**63 - 1) | st.just(1),
)
def test_the_command_that_runs_a_check_again_has_the_options_that_were_given(
    trials: int, timeout: float, capabilities: dict[str, bool], profile: str, seed: int
) -> None:
    names = [name if there else f"-{name}" for name, there in capabilities.items()]
    options = Options(
        trials=trials, concurrency=4, timeout=timeout, capabilities=names, profile=profile, seed=seed
    )
    run = RecordingHeader.of("http://h/v1", "m", options=options)
    report = Report(run=run, results=[], rules={}, scenarios={}, evidence={}, profile=profile)
    result = Result(check="chat/text/shape", title="", level="MUST", rules=[], verdict="fail")
    _, *words = shlex.split(command_of(report, result))

    found = read(CheckCommand, vars(parse_arguments(parser_of(JUDGE, "check"), words)))
    assert (found.trials, found.timeout, found.seed) == (trials, timeout, seed)
    assert found.selection.profile == profile
    assert capabilities_of(found.capabilities) == capabilities
    assert (found.under_test.url, *found.selection.ids) == ("http://h/v1", "chat/text/shape")
    # Unchanged options are not in the command.
    assert ("--trials" in " ".join(words)) == (trials != 3)
    assert ("--seed" in " ".join(words)) == (seed != 1)


def curl_arguments(folder: Path, command: str) -> list[str]:
    """Return the arguments of curl."""
    environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "OPENAI_API_KEY": "the key"}
    out = subprocess.run(["sh", "-c", command], env=environment, stdout=subprocess.PIPE, check=True).stdout
    return out.partition(b"\0\0")[0].decode().split("\0")


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    ("own", "header"), [(WRONG_KEY, f"authorization: {WRONG_KEY}"), ("", "authorization;")]
)
def test_a_key_that_is_wrong_on_purpose_is_sent_as_it_was(
    folder: Path, own: str, header: str, recorded: bool
) -> None:
    """The command sends the wrong key, not that of the environment, also from a recording."""
    exchange = Exchange(
        method="GET", url="http://h/", request_headers={"authorization": own}, request_body=b""
    )
    if recorded:
        exchange.request_headers["authorization"] = fingerprint(own)

    words = curl_arguments(folder, curl(redacted_exchange(exchange), key=True))

    assert [word for word in words if word.startswith("authorization")] == [header]


def test_the_wrong_key_of_the_suite_is_shown_where_it_is_refused() -> None:
    target = Target(base_url="http://h/v1", model="m")
    asked = [exchange_of(target, request) for request in SCENARIOS["errors/key"].steps(target)]

    commands = [curl(redacted_exchange(exchange), key=True) for exchange in asked]

    assert all("$OPENAI_API_KEY" not in command for command in commands)
    assert "-H 'authorization;'" in commands[0]
    assert f"-H 'authorization: {WRONG_KEY}'" in commands[1]


def test_a_websocket_is_opened_with_the_key_that_it_was_opened_with() -> None:
    headers = {"authorization": WRONG_KEY}
    exchange = Exchange(method="WEBSOCKET", url="ws://h/", request_headers=headers, request_body=b"{}")

    command = curl(redacted_exchange(exchange), key=True)

    assert f"-H='authorization: {WRONG_KEY}'" in command
    assert "$OPENAI_API_KEY" not in command


def test_a_body_without_a_type_is_sent_without_one(folder: Path) -> None:
    """By default, curl would add the content type of an HTML form, which servers may refuse."""
    bare = Exchange(method="POST", url="http://h/", request_headers={}, request_body=b"{}")
    typed = Exchange(
        method="POST", url="http://h/", request_headers={"Content-Type": "text/plain"}, request_body=b"{}"
    )

    assert "content-type:" in curl_arguments(folder, curl(bare))
    assert "content-type:" not in curl_arguments(folder, curl(typed))
    assert "Content-Type: text/plain" in curl_arguments(folder, curl(typed))


@pytest.mark.parametrize("model", ["-x", "--help", "a b", "org/name"])
def test_the_command_that_runs_a_check_again_names_its_model(model: str) -> None:
    report = Report(
        run=RecordingHeader.of("http://h/v1", model),
        results=[],
        rules={},
        scenarios={},
        evidence={},
        seconds=None,
    )
    result = Result(check="chat/text/shape", title="", level="MUST", rules=[], verdict="fail")
    program, *words = shlex.split(command_of(report, result))

    assert program == "plumbline"
    assert parse_arguments(parser_of(JUDGE, "check"), words).model == model

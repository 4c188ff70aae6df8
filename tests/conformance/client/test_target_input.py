"""Test base URLs and keys: invalid ones are refused before any request, valid ones are used as intended."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from example_servers.good_server import KEY, MODEL, serving
from example_servers.odd_servers import answering
from example_servers.reference import application
from hypothesis import given
from hypothesis import strategies as st

from plumbline_conformance.cli import main
from plumbline_conformance.client.http import sender
from plumbline_conformance.client.target_input import (
    _FRAMING,
    base_url_of,
    capabilities_of,
    headers_of,
    joined,
    key_of,
)
from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.recording.file import read_recording
from plumbline_conformance.suite.scenario import CAPABILITIES, Request, Target
from plumbline_conformance.transcript.exchange import Exchange

AWAY = "http://127.0.0.1:1/v1"


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    file = tmp_path / "scripts.json"
    file.write_text(json.dumps({"scripts": [{"prompt": "a", "name": "A", "output": "b"}]}), "utf-8")
    return file


def commands(url: str, key: str, scripts: Path) -> list[list[str]]:
    """Run every command that accepts a base URL and a key."""
    target = [url, "--model", "m", "--api-key", key]
    return [
        ["check", *target],
        ["fuzz", *target],
        ["compare", target[0], str(scripts), *target[1:]],
        ["compare", AWAY, url, "--model", "m", "--reference-api-key", key],
        ["compare", url, AWAY, "--model", "m", "--api-key", key],
    ]


def test_white_space_around_a_key_is_not_the_key(tmp_path: Path) -> None:
    """A key from a file or variable may end with a line feed, which is invalid in a header."""
    run = tmp_path / "run.jsonl"
    with serving(application()) as base_url:
        options = [base_url, "--model", MODEL, "--api-key", f" {KEY}\n", "--record", str(run)]
        assert main(["check", *options, "errors/key", "models"]) == 0

    assert KEY not in run.read_text("utf-8")
    assert any(seen.scenario == "errors/key" and not seen.skipped for seen in read_recording(run).transcripts)


@pytest.mark.parametrize("key", ["", " \n"])
def test_an_empty_key_is_none(key: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An unset CI secret is an empty variable, and servers refuse an empty `Bearer`."""
    run = tmp_path / "run.jsonl"
    with serving(answering(lambda *_: None, open_to_all=True)) as base_url:
        options = [base_url, "--model", MODEL, "--api-key", key, "--record", str(run)]
        main(["check", *options, "errors/key"])

    assert "no key was given" in capsys.readouterr().out
    assert read_recording(run).header.key is None


@pytest.mark.parametrize("key", ["sk-one\nsk-two", "sk-ключ", "sk-\x00", "sk-\udcff", "sk-a\tb"])
def test_a_key_that_no_header_carries_is_refused(
    key: str, scripts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in commands(AWAY, key, scripts):
        assert main(command) == 2
        out = capsys.readouterr().err
        assert "cannot be sent in a header: character" in out
        assert "sk-" not in out


WRONG = {
    "http://127.0.0.1:99999/v1": "port",
    "http://127.0.0.1:x/v1": "port",
    "http://127.0.0.1:0/v1": "port",
    "127.0.0.1:8000/v1": "http://",
    "localhost:8000/v1": "http://",
    "ftp://host/v1": "http://",
    "http:///v1": "host",
    "http://:8000/v1": "host",
    "http://[::1/v1": "cannot be read",
    "http://host/v1#top": "fragment",
    "http://ho st/v1": "white space",
    "": "http://",
}


@pytest.mark.parametrize("url", WRONG)
def test_an_address_that_is_none_is_refused(
    url: str, scripts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command has the same message, with advice and without a traceback."""
    for command in commands(url, "k", scripts):
        assert main(command) == 2
        out = capsys.readouterr().err
        assert WRONG[url] in out
        assert "Give one such as http://127.0.0.1:8000/v1" in out


@pytest.mark.parametrize("url", ["http://me:pass/word@host/v1", "http://me:pass#word@host/v1", "pass@word"])
def test_a_refused_address_is_shown_without_what_may_be_its_password(url: str) -> None:
    with pytest.raises(UnusableInput) as refused:
        base_url_of(url.replace("pass@", "//pass@"))

    assert "pass" not in str(refused.value)


def test_what_is_usable_stays_as_it_is() -> None:
    for url in ("http://127.0.0.1:8000/v1", "https://host", "http://[::1]:8/v1/", "http://a:b@h/v1?x=1"):
        assert base_url_of(f" {url}\n") == url
    assert key_of(" a b~ ") == "a b~"
    assert key_of(None) is None


@pytest.mark.parametrize(
    ("base", "path", "wanted"),
    [
        ("http://h/v1", "/models", "http://h/v1/models"),
        ("http://h/v1/", "/models", "http://h/v1/models"),
        ("http://h", "/models?limit=1", "http://h/models?limit=1"),
        ("http://h/v1?api-version=1", "/models", "http://h/v1/models?api-version=1"),
        ("http://h/v1/?a=1&b=2", "/items?after=x", "http://h/v1/items?a=1&b=2&after=x"),
        ("HTTPS://h/v1", "/models", "https://h/v1/models"),
    ],
)
def test_a_path_stands_before_the_query_of_its_base(base: str, path: str, wanted: str) -> None:
    assert joined(base, path) == wanted


def test_a_query_of_the_base_is_part_of_every_request() -> None:
    """As in Azure: `…/v1?api-version=1`."""
    asked: list[tuple[str, bytes]] = []
    inner = application()

    async def looking(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            asked.append((scope["path"], scope["query_string"]))
        await inner(scope, receive, send)

    with serving(looking) as base_url:
        options = [f"{base_url}?api-version=1", "--model", MODEL, "--api-key", KEY]
        assert main(["check", *options, "models", "responses/stream-text", "websocket/turn"]) == 0

    assert {"/v1/models", "/v1/responses"} <= {path for path, _ in asked}
    assert all(query.startswith(b"api-version=1") for _, query in asked)


def test_an_exchange_with_no_such_port_is_one_without_an_answer() -> None:
    """`send` never raises, even for an invalid target."""

    async def sent() -> Exchange:
        async with sender(Target(base_url="http://127.0.0.1:99999/v1", model="m"), 5.0) as send:
            return await send(Request(path="/models", method="GET"))

    found = asyncio.run(sent())

    assert found.status == 0
    assert found.error


@given(st.text("abcdefghij-_", min_size=1).filter(lambda name: name.lstrip("-") not in CAPABILITIES))
def test_an_unknown_capability_is_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnusableInput) as raised:
        capabilities_of(f"tools,{name}")

    assert all(known in str(raised.value) for known in CAPABILITIES)


NAMES = st.from_regex(r"\A[a-z][a-z0-9-]{0,12}\Z").filter(lambda name: name not in _FRAMING)
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=12)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_headers_are_read_as_they_are_written(headers: dict[str, str]) -> None:
    lines = [f"{name.title()}:  {value} " for name, value in headers.items()]

    assert headers_of(lines) == headers


@pytest.mark.parametrize(
    "line", ["x-a", ": b", "x a: b", "x-a: \r\nx-b: c", "x-a: é", "Content-Length: 5", "x-\x00: a"]
)
def test_headers_that_cannot_be_sent_are_refused_by_name(line: str) -> None:
    with pytest.raises(UnusableInput, match="--header"):
        headers_of([line])
    with pytest.raises(UnusableInput, match="--header has x-a twice"):
        headers_of(["x-a: 1", "X-A: 2"])


def test_headers_go_with_every_request_and_secrets_among_them_are_not_written(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []

    async def gateway(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket"):
            seen.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await inner(scope, receive, send)

    inner = application()
    files = [f"--{kind}={tmp_path / kind}" for kind in ("record", "json", "html", "junit")]
    with serving(gateway) as base_url:
        target = (base_url, "--model", MODEL, "--api-key", KEY)
        headers = ("--header", "X-Tenant: acme", "--header", "x-gateway-key: gw-secret-0123")
        main(["check", *target, *headers, *files, "chat/text", "websocket/turn", "errors/no-model"])

    assert len(seen) > 4
    assert {found["x-tenant"] for found in seen} == {"acme"}
    assert {found["x-gateway-key"] for found in seen} == {"gw-secret-0123"}
    for path in tmp_path.iterdir():
        assert "gw-secret-0123" not in path.read_text()

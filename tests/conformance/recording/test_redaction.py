"""No key appears in a recording, a report or a terminal, even if the server repeats it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from example_servers.asgi import body_of, live_and_end, send_json
from example_servers.good_server import serving
from hypothesis import example, given
from hypothesis import strategies as st

from plumbline_conformance.cli import main
from plumbline_conformance.client.http import sender
from plumbline_conformance.fuzz import campaign as search_run
from plumbline_conformance.fuzz.claims import Violation
from plumbline_conformance.recording.redaction import (
    concealed,
    fingerprint,
    redacted,
    redacted_exchange,
    redacted_url,
)
from plumbline_conformance.suite.scenario import Request, Target
from plumbline_conformance.transcript.exchange import Exchange, Transcript
from plumbline_conformance.watch.live import judge_live

KEY = "sk-proj-supersecret42/abc+def"
PASSWORD = "correct-horse-battery"
Answer = Callable[[str], tuple[int, Any]]


def repeating(answer: Answer) -> Any:
    """A server that repeats the authorization of every request."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await live_and_end(receive, send)
            return
        await body_of(receive)
        key = dict(scope["headers"]).get(b"authorization", b"").decode().rpartition(" ")[2]
        await send_json(send, *answer(key))

    return application


def refusing(before: int, status: int = 400) -> Answer:
    """An error object with the key in its words, so many characters after their beginning, where words are cut."""

    def answer(key: str) -> tuple[int, Any]:
        error = {"message": "x" * before + key, "type": key, "param": None, "code": key}
        return status, {"error": error, "id": key, "object": key, "choices": [key]}

    return answer


def scripts(folder: Path) -> Path:
    script = {"prompt": "script 1", "name": "One", "output": "Hello.", "message": {"content": "Hello."}}
    file = folder / "scripts.json"
    file.write_text(json.dumps({"scripts": [script]}), "utf-8")
    return file


COMMANDS: dict[str, list[str]] = {
    "check": ["check", "chat/text", "chat/stream-text", "errors/empty-messages", "responses"],
    "fuzz": ["fuzz", "createChatCompletion", "--examples", "12"],
    "exact": ["compare", "SCRIPTS"],
}


@pytest.mark.parametrize(("status", "before"), [(200, 0), (400, 0), (400, 165), (400, 185), (500, 165)])
@pytest.mark.parametrize("command", ["check", pytest.param("fuzz", marks=pytest.mark.long), "exact"])
def test_no_command_shows_a_key_that_the_server_repeats(
    command: str, status: int, before: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key is also redacted if the end of the shown text cuts it."""
    report = tmp_path / "report.json"
    name, *more = [str(scripts(tmp_path)) if word == "SCRIPTS" else word for word in COMMANDS[command]]
    with serving(repeating(refusing(before, status))) as base_url:
        options = [base_url, "--model", "m", "--api-key", KEY, "--json", str(report)]
        main([name, options[0], *more, *options[1:]])

    told = "".join(capsys.readouterr()) + report.read_text("utf-8")
    if {"check": True, "fuzz": status == 500, "exact": before < 185}[command]:
        assert fingerprint(KEY)[:8] in told, "the server's words are shown"
    for length in range(12, len(KEY) + 1):
        assert KEY[:length] not in told
        assert KEY[-length:] not in told


def in_two_events(before: int = 7) -> Any:
    """A server that splits the key over two events, so that no bytes contain all of it."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await live_and_end(receive, send)
            return
        stream = b'"stream": true' in await body_of(receive)
        key = dict(scope["headers"]).get(b"authorization", b"").decode().rpartition(" ")[2]
        head = {"id": "chatcmpl-1", "created": 1, "model": "m"}
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": None}
        said = {"role": "assistant", "content": "", "refusal": None}
        texts = [key[:before], key[before:]]
        chunks = [
            {**head, "object": "chat.completion.chunk", "choices": [{**choice, "delta": {"content": text}}]}
            for text in texts
        ]
        kind = "text/event-stream" if stream else "application/json"
        whole = {
            **head,
            "object": "chat.completion",
            "choices": [{**choice, "message": said, "finish_reason": "stop"}],
        }
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode() if stream else whole
        await send_json(send, 200, body, kind)

    return application


@pytest.mark.parametrize("command", ["check", "diff"])
def test_a_key_in_two_events_of_a_stream_is_shown_by_no_command(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("r.json", "r.html", "r.xml")]
    with serving(in_two_events()) as url:
        target = [url, "--model", "m", "--api-key", KEY]
        if command == "diff":
            keys = ["--api-key", KEY, "--reference-api-key", "sk-another-secret-0001"]
            main(["compare", url, url, "--model", "m", *keys, "--examples", "40", "--json", str(files[0])])
        else:
            written = ["--json", str(files[0]), "--html", str(files[1]), "--junit", str(files[2])]
            main(["check", *target, "chat/text", "chat/stream-text", *written])

    told = capsys.readouterr().out.replace("\n", "")
    assert KEY not in told
    assert fingerprint(KEY) in told
    for file in files:
        if file.exists():
            assert KEY not in file.read_text("utf-8")


def test_a_claim_that_joins_the_halves_of_a_key_is_covered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as one that has the text of a stream in its words."""
    joined = Violation(name="text", expected="another text", actual=repr(f"{KEY} and more"))
    monkeypatch.setattr(search_run, "claims", lambda *_: iter([joined]))

    with serving(in_two_events()) as url:
        target = [url, "--model", "m", "--api-key", KEY]
        assert main(["fuzz", *target, "createChatCompletion", "--examples", "8"]) == 1

    told = capsys.readouterr().out.replace("\n", "")
    assert KEY not in told
    assert fingerprint(KEY) in told


def test_diff_shows_no_key_that_a_server_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    with serving(repeating(refusing(0))) as first, serving(repeating(refusing(0))) as second:
        keys = ["--api-key", KEY, "--reference-api-key", KEY[::-1]]
        options = ["--model", "m", "--examples", "3", "--json", str(report)]
        assert main(["compare", first, second, *keys, *options]) == 1

    told = capsys.readouterr().out + report.read_text("utf-8")
    assert fingerprint(KEY)[:12] in told
    assert KEY[:12] not in told
    assert KEY[::-1][:12] not in told


@pytest.mark.parametrize("command", ["check", "fuzz", "compare"])
def test_no_password_of_an_address_is_shown(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"check": ["models"], "fuzz": [], "compare": [str(scripts(tmp_path))]}[command]

    assert main([command, f"http://me:{PASSWORD}@127.0.0.1:1/v1", *words, "--model", "m"]) == 2

    out = "".join(capsys.readouterr())
    assert "127.0.0.1:1/v1" in out
    assert PASSWORD[:8] not in out


def test_a_key_that_cannot_be_sent_is_not_shown_by_the_client_either() -> None:
    """httpx2 shows the value of a header that it refuses, and shows it escaped."""

    async def sent(base_url: str) -> Exchange:
        target = Target(base_url=base_url, model="m", api_key=f"{KEY}\n")
        async with sender(target, 5.0) as send:
            return await send(Request(path="/models", method="GET"))

    with serving(repeating(refusing(0))) as base_url:
        found = asyncio.run(sent(base_url))

    assert found.error == "LocalProtocolError: a header that cannot be sent"


SECRET = [
    "Authorization",
    "Api-Key",
    "X-Auth-Token",
    "X-Amz-Security-Token",
    "X-Amz-Signature",
    "Cf-Access-Client-Secret",
    "Cf-Access-Jwt-Assertion",
    "X-Goog-Api-Key",
    "Ocp-Apim-Subscription-Key",
    "Proxy-Authorization",
    "X-ApiKey",
    "X-Csrf-Token",
    "X-Password",
    "Helicone-Auth",
]
HARMLESS = [
    "content-type",
    "x-request-id",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "x-prompt-tokens",
    "x-token-count",
    "openai-processing-ms",
    "openai-organization",
    "sec-websocket-key",
    "sec-websocket-accept",
    "www-authenticate",
    "proxy-authenticate",
    "idempotency-key",
    "access-control-allow-credentials",
    "x-author",
    "x-tokenizer",
    "retry-after",
]


def with_headers(**headers: str) -> Exchange:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Exchange(
        method="POST",
        url="http://h/v1/chat/completions",
        request_headers=named,
        request_body=b"{}",
        status=200,
        headers=list(named.items()),
        frames=[(0.0, f"you said {KEY}".encode())],
    )


@pytest.mark.parametrize("name", SECRET)
def test_a_header_that_sounds_like_a_credential_is_covered(name: str) -> None:
    found = redacted_exchange(with_headers(**{name.replace("-", "_"): f"Bearer {KEY}"}))

    assert found.request_headers == {name: fingerprint(f"Bearer {KEY}")}
    assert found.headers == [(name, fingerprint(f"Bearer {KEY}"))]
    assert KEY.encode() not in found.body, "what the server repeats of it is as secret"


@pytest.mark.parametrize("name", HARMLESS)
def test_a_header_that_opens_nothing_stays(name: str) -> None:
    found = redacted_exchange(with_headers(**{name.replace("-", "_"): "abcdef 123456"}))

    assert found.request_headers == {name: "abcdef 123456"}
    assert found.headers == [(name, "abcdef 123456")]


def test_the_key_among_the_protocols_of_a_websocket_is_covered() -> None:
    said = f"realtime, openai-insecure-api-key.{KEY}, openai-beta.realtime-v1"

    found = redacted_exchange(with_headers(Sec_WebSocket_Protocol=said))

    covered = f"realtime, openai-insecure-api-key.{fingerprint(KEY)}, openai-beta.realtime-v1"
    assert found.request_headers == {"Sec-WebSocket-Protocol": covered}
    assert found.headers == [("Sec-WebSocket-Protocol", covered)]
    assert KEY.encode() not in found.body


def test_what_a_server_repeats_of_a_cookie_or_an_address_is_covered() -> None:
    cookie = with_headers(cookie=f"theme=dark; session={KEY}; a=b")
    sent = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    address = Exchange(
        method="GET",
        url=f"http://me:{PASSWORD}@h/v1/models?api-key=another{KEY}",
        request_headers={},
        request_body=b"",
        frames=[(0.0, f"{PASSWORD} {KEY} another{KEY} Basic {sent}".encode())],
    )

    for exchange, secrets in ((cookie, [KEY]), (address, [f"another{KEY}", PASSWORD, sent])):
        found = redacted_exchange(exchange)
        for secret in secrets:
            assert secret.encode() not in found.body
        assert len(found.body) == len(exchange.body)


def test_what_is_a_fingerprint_stays_the_same_one() -> None:
    """A recording that is judged again shows what the run showed."""
    exchange = with_headers(
        authorization=f"Bearer {KEY}", Sec_WebSocket_Protocol=f"openai-insecure-api-key.{KEY}"
    )
    exchange.url = f"http://me:{PASSWORD}@h/v1?api-key={KEY}&x=1"

    once = redacted(Transcript(scenario="a/b", exchanges=[exchange], skipped=f"no {KEY}"), [KEY])

    assert KEY not in repr(once)
    assert redacted(once) == once
    assert redacted_url(redacted_url(exchange.url)) == redacted_url(exchange.url)


@given(st.text(), st.text(min_size=6), st.text(), st.integers(0, 40))
@example("", 'a"b\\c/d', "", 0)
@example("é", "sk-1234567890", "", 5)
def test_no_way_to_write_a_secret_is_left(before: str, secret: str, after: str, cut: int) -> None:
    """As it is, as JSON and Python write it, and where the end of a text cuts it."""
    ways = [secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]]

    for way in ways:
        text = concealed(f"{before}{way}{after}", [secret])
        assert way in fingerprint(secret) or way not in text.replace(fingerprint(secret), "\0")
        whole = "\0" + way
        ended = concealed(whole[: len(whole) - min(cut, len(way) - 6)] + "…", [secret])
        assert ended == f"\0{fingerprint(secret)}…"


def test_a_law_of_live_traffic_does_not_repeat_the_clients_key() -> None:
    """Neither in problems, nor where redaction changes the verdict."""
    answer = {"object": KEY, "model": KEY, "choices": [], "error": {"message": KEY, "code": KEY}}
    exchange = Exchange(
        method="POST",
        url="http://h/v1/chat/completions",
        request_headers={"Authorization": f"Bearer {KEY}", "content-type": "application/json"},
        request_body=b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}',
        status=400,
        headers=[("content-type", "application/json")],
        frames=[(0.0, json.dumps({**answer, "error": {"message": 5, "type": KEY, KEY: 1}}).encode())],
    )

    found = judge_live(exchange)

    assert any(finding.verdict == "fail" for finding in found)
    assert KEY not in repr(found)

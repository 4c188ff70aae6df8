"""Legal ways to answer a client: each changes an answer, and none changes what it says.

- Every variation leaves the text, the calls and the counts of the scripted answers, as the judge folds them.
- Every variation changes something in some answer; every answer matches the contract, with or without one.
- Over HTTP, a client that reads as RFC 9112 says gets the same content in every case, and an error in those that fail.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.about import about
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from plumbline_conformance.cli import main
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.transcript.answer_fold import Surface, fold
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.transcript.sse import parse_events
from plumbline_conformance.variations.cases import CASES, PLAIN, LegalAnswer
from plumbline_conformance.variations.http import VariationServer, scripted_exchange, serving
from plumbline_conformance.variations.script import ARGUMENTS, TEXT, TOOL

Json = dict[str, Any]
PATHS: dict[Surface, str] = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "responses": "/responses",
}
SAYS = [case for case in CASES if not case.fails]


def requests() -> Iterator[tuple[str, Json]]:
    for path in [*PATHS.values(), "/messages"]:
        for tools in (None, [{"type": "function"}]):
            for stream in (False, True):
                if path != "/completions" or tools is None:
                    yield path, {"stream": stream, "tools": tools, "stream_options": {"include_usage": True}}


def sse_json(content: bytes) -> list[Json]:
    """The JSON of the events of a stream."""
    found = [event.json for event in parse_events(content)]
    return [one for one in found if isinstance(one, dict)]


def exchange(path: str, body: Json) -> Exchange:
    found = scripted_exchange("POST", path, json.dumps(body).encode())
    assert found is not None
    return found


def test_a_variation_says_the_same() -> None:
    for case in SAYS:
        with about(case.slug):
            for surface, path in PATHS.items():
                for asked, body in requests():
                    if asked != path:
                        continue
                    found = fold(surface, case.change(exchange(path, body)))
                    (choice,) = found.choices
                    said = [(call.name, json.loads(call.arguments)) for call in choice.calls]
                    assert (choice.content, said) == (
                        ("", [(TOOL, ARGUMENTS)]) if body["tools"] else (TEXT, [])
                    ), path
                    if surface != "completions" or not body["stream"]:
                        names = ("input", "output") if surface == "responses" else ("prompt", "completion")
                        assert [found.usage[f"{name}_tokens"] for name in names] == [11, 7]


def test_a_variation_changes_something() -> None:
    for case in (case for case in CASES if case.change is not PLAIN.change):
        with about(case.slug):
            originals = [exchange(path, body) for path, body in requests()]
            assert any(
                (varied.frames, varied.headers) != (old.frames, old.headers)
                for old, varied in ((old, case.change(old)) for old in originals)
            )


SCHEMAS = {
    "/chat/completions": ("CreateChatCompletionResponse", "CreateChatCompletionStreamResponse"),
    "/completions": ("CreateCompletionResponse", "CreateCompletionStreamResponse"),
    "/responses": ("Response", "ResponseStreamEvent"),
    "/messages": ("CreateMessageResponse", "MessageStreamEvent"),
}
NO_SCHEMA = "contract-unknown-events"
"""A client has to pass over events of later versions, which no schema of today has."""


def test_every_answer_matches_the_contract() -> None:
    for case in (case for case in SAYS if case.slug != NO_SCHEMA):
        with about(case.slug):
            for path, body in requests():
                whole, event = SCHEMAS[path]
                found = case.change(exchange(path, body))
                events = sse_json(found.body) if body["stream"] else [found.json]
                assert [
                    problem
                    for one in events
                    for problem in violations(event if body["stream"] else whole, one)
                ] == []


def test_events_are_numbered_in_order() -> None:
    for case in SAYS:
        with about(case.slug):
            for path, body in requests():
                if path == "/responses" and body["stream"]:
                    numbers = [
                        one["sequence_number"] for one in sse_json(case.change(exchange(path, body)).body)
                    ]
                    assert numbers == [*range(len(numbers))]


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.slug for case in CASES}) == len(CASES)


async def read(server: VariationServer, case: LegalAnswer) -> str:
    """The text of a streamed chat completion, by a client that reads events as WHATWG says."""
    body = {"stream": True, "messages": []}
    async with httpx2.AsyncClient(timeout=10) as client:
        found = await client.post(f"{server.url(case)}/chat/completions", json=body)
    assert found.status_code == 200
    seen = exchange("/chat/completions", body)
    seen.frames = [(0.0, found.content)]
    return fold("chat", seen).choices[0].content


async def test_a_client_reads_every_case_over_http() -> None:
    quick = [case for case in SAYS if not case.sending.wait]
    async with serving() as server:
        texts = await asyncio.gather(*(read(server, case) for case in quick))
    assert {case.slug: text for case, text in zip(quick, texts, strict=True) if text != TEXT} == {}
    assert set(server.asked) == {case.slug for case in quick}


async def test_a_case_that_fails_is_an_error_over_http() -> None:
    async with serving() as server:
        for case in CASES:
            if case.sending.fails == "cut":
                with pytest.raises(httpx2.RemoteProtocolError):
                    await read(server, case)
            elif case.sending.fails == "status":
                with pytest.raises(AssertionError):
                    await read(server, case)
            elif case.sending.fails:
                assert await read(server, case) != TEXT


async def turn(server: VariationServer, case: LegalAnswer) -> tuple[list[Json], list[bytes]]:
    """The messages and the fragments of a turn over a WebSocket, by a client that reads as RFC 6455 says."""
    address = f"{server.url(case).replace('http', 'ws', 1)}/responses"
    found: list[Json] = []
    fragments: list[bytes] = []
    async with asyncio.timeout(10), connect(address, proxy=None) as socket:
        await socket.send(json.dumps({"type": "response.create", "model": "m", "input": "hi"}))
        while not found or found[-1]["type"] not in ("response.completed", "error"):
            pieces = [piece async for piece in socket.recv_streaming(decode=False)]
            fragments += pieces
            found.append(json.loads(b"".join(pieces)))
    return found, fragments


async def test_a_client_reads_every_case_over_a_websocket() -> None:
    quick = [case for case in SAYS if not case.sending.wait]
    async with serving() as server:
        turns = await asyncio.gather(*(turn(server, case) for case in quick))
    for case, (found, _) in zip(quick, turns, strict=True):
        deltas = [one["delta"] for one in found if one["type"] == "response.output_text.delta"]
        assert "".join(deltas) == TEXT, case.slug
        assert [one["sequence_number"] for one in found] == [*range(len(found))], case.slug
    assert set(server.asked) == {case.slug for case in quick}


async def test_messages_of_a_websocket_are_cut_as_the_case_says() -> None:
    cases = [case for case in CASES if case.group == "websocket"]
    async with serving() as server:
        whole, _ = await turn(server, PLAIN)
        for case in cases:
            found, fragments = await turn(server, case)
            size = case.sending.frames.fragment
            assert found == whole
            assert size == 0 or max(map(len, fragments)) <= size
            assert (len(fragments) > len(found)) == bool(size)
            assert (b"" in fragments) == case.sending.frames.empty


async def test_a_websocket_ends_after_both_closes() -> None:
    """RFC 6455, section 5.5.1: an answer to the server's close must not meet a connection that has ended."""
    case = next(case for case in CASES if case.sending.frames.close)
    lines = [
        f"GET /{case.slug}/v1/responses HTTP/1.1", "host: t", "upgrade: websocket", "connection: upgrade",
        "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==", "sec-websocket-version: 13", "", "",
    ]  # fmt: skip
    mask = bytes(4)
    async with serving() as server, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write("\r\n".join(lines).encode())
        message = b'{"type": "response.create", "input": "hi"}'
        writer.write(bytes((0x81, 0x80 | len(message))) + mask + message)
        await reader.readuntil(b"\x88\x00")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read()
        writer.write(b"\x88\x80" + mask)
        assert await reader.read() == b""
        writer.close()


async def test_a_case_that_fails_is_an_error_over_a_websocket() -> None:
    async with serving() as server:
        for case in CASES:
            match case.sending.fails:
                case "event":
                    assert (await turn(server, case))[0][-1]["error"]["code"] == "server_error"
                case "status":
                    with pytest.raises(InvalidStatus):
                        await turn(server, case)
                case "cut":
                    with pytest.raises(ConnectionClosedError):
                        await turn(server, case)


@pytest.mark.parametrize(
    "raw", [b"GET\r\n\r\n", b"POST /x HTTP/1.1\r\ncontent-length: -5\r\n\r\n", b"\0" * 99, b""]
)
async def test_a_request_that_is_none_ends_its_connection_alone(raw: bytes) -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(raw)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        assert await read(server, PLAIN) == TEXT


@pytest.mark.parametrize(
    "body",
    [
        {"messages": 5, "tools": [1]},
        {"messages": {"a": 1}, "tools": [1]},
        {"messages": [{"content": {"x": 1}}], "tools": [1]},
        {"stream": True, "stream_options": 3},
        [1],
    ],
)
async def test_a_request_of_another_form_is_answered(body: Any) -> None:
    async with serving() as server, httpx2.AsyncClient(timeout=5) as client:
        assert (await client.post(f"{server.url(PLAIN)}/chat/completions", json=body)).status_code == 200


async def test_a_connection_that_the_client_wants_closed_is_closed() -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET /{PLAIN.slug}/v1/models HTTP/1.1\r\nconnection: close\r\n\r\n".encode())
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_the_server_ends_while_a_client_keeps_its_connection() -> None:
    async with asyncio.timeout(5):
        async with serving() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(f"GET /{PLAIN.slug}/v1/models HTTP/1.1\r\n\r\n".encode())
            await reader.readuntil(b"}")
        await reader.read()
        writer.close()


async def test_an_outcome_without_words_is_a_failure() -> None:
    async with serving() as server, httpx2.AsyncClient(timeout=5) as client:
        await client.post(f"{server.root}/{PLAIN.slug}/outcome", json={"ok": False, "error": ""})
    assert server.outcomes == {PLAIN.slug: "the program gave no error"}


PROGRAM = """
import json, os, urllib.request
expected = json.loads(os.environ["PLUMBLINE_EXPECTED"])
body = json.dumps({"messages": []}).encode()
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
answer = urllib.request.urlopen(urllib.request.Request(url, body))
assert answer.headers["content-type"] == "application/json", answer.headers["content-type"]
assert json.load(answer)["choices"][0]["message"]["content"] == expected["text"]
"""


def run(tmp_path: Path, program: str, *options: str) -> tuple[int, list[Json]]:
    file = tmp_path / "program.py"
    file.write_text(program, "utf-8")
    out = tmp_path / "out.json"
    given = ["client", "--json", str(out), *options, sys.executable, str(file)]
    status = main(given)
    return status, json.loads(out.read_text("utf-8")) if out.exists() else []


def test_a_program_is_run_for_each_case(tmp_path: Path) -> None:
    names = ["--case", "http-a-charset", "--case", "json-escapes"]
    status, found = run(tmp_path, PROGRAM, *names)
    assert status == 1
    assert [(one["case"], bool(one["error"])) for one in found] == [
        (PLAIN.slug, False), ("http-a-charset", True), ("json-escapes", False),
    ]  # fmt: skip
    assert "application/json; charset=utf-8" in found[1]["error"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit('broken')", "fails without a variation: broken"),
        ("", "has asked for nothing"),
        # More than is kept of what a program prints.
        ("print('x' * 300_000); raise SystemExit(3)", "x (status 3)"),
        (
            "import subprocess; subprocess.Popen(['sleep', '30']); raise SystemExit('left a child')",
            "left a child",
        ),
    ],
)
def test_a_program_that_shows_nothing_has_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str, words: str
) -> None:
    assert run(tmp_path, program) == (2, [])
    assert words in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", "99999"], "--port must be an integer from 0 to 65535"),
        (["--json", "/no/such/folder/x.json"], "cannot be written"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert run(tmp_path, PROGRAM, *options) == (2, [])
    assert words in capsys.readouterr().err


def test_a_program_may_take_all_cases_itself(tmp_path: Path) -> None:
    taking = """
import json, os, urllib.request
for case in json.load(urllib.request.urlopen(os.environ["PLUMBLINE_CASES"])):
    said = json.dumps({"ok": "sse" not in case["name"], "error": "no events"}).encode()
    urllib.request.urlopen(urllib.request.Request(case["outcome_url"], said))
"""
    status, found = run(tmp_path, taking, "--once")
    assert status == 1
    assert {one["error"] for one in found if one["case"].startswith("sse")} == {"no events"}
    assert {one["error"] for one in found if not one["case"].startswith("sse")} == {""}

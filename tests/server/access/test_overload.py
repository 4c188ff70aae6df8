"""Laws of a server without room for another request.

- A request that would be refused is refused before it is read: no body is waited for, parsed, rendered or tokenised.
- The refusal is a whole answer: 429, envelope, `Retry-After`, request id, the limits of its key, a count.
- It costs a key nothing of its share.
- Whatever does not generate is answered, and so is every request as soon as there is room.
- What is being rendered has its place already: of many that come at once no more are rendered than there is room for.
- Who has waited too long is refused, but not later choices and prompts of an answer, and not in the background.
- Of several models a full one refuses its own requests, before they are rendered.
- The listener refuses without a task, in the same words: the connection stays open, what comes of the body is dropped,
  requests that were sent together are answered in their order, and a trusted proxy's client is the one that is named.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.bodies import BODIES, each_api
from support.models import GatedEngine, hold_steps, served, tiny_engine, until
from support.servers.asgi import Exchange, Server, serving
from support.servers.live import live
from support.servers.shelf import CHAT, Shelf, body

from plumbline.answer.text.render import Renderer
from plumbline.server.settings import Settings


@asynccontextmanager
async def full(engine: GatedEngine, **settings: Any) -> Any:
    """Serve an engine of one place, which a request has."""
    key = {"authorization": "Bearer other"} if "api_keys" in settings else {}
    async with serving(served(engine), **settings) as server:
        first = server.open("POST", "/v1/completions", BODIES["/v1/completions"], headers=key)
        await until(lambda: engine.num_running)
        yield server
        engine.let()
        assert (await first.answer()).status == 200


async def unsent(server: Server, path: str) -> Exchange:
    """Send the headers of a request, and nothing of its body."""
    exchange = Exchange()
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-length", b"10")],
        "client": ("test", 1),
        "server": ("test", 80),
        "state": {},
    }

    async def receive() -> Any:
        raise AssertionError("the body was read")

    await server.app(scope, receive, exchange.sent.put)
    return exchange


@each_api
async def test_a_request_is_refused_before_its_body_is_read(path: str) -> None:
    """HTTP-05, HTTP-03."""
    engine = GatedEngine(max_inflight=1)
    async with full(engine) as server:
        exchange = await unsent(server, path)
        await exchange.begin()
        headers = dict(exchange.headers)
        assert exchange.status == 429
        assert int(headers["retry-after"]) >= 1
        assert headers["x-request-id"].startswith("req_")
        answer = await server.post(path, b"{")
        assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
        counted = (await server.get("/metrics")).body.decode()
        assert f'plumbline_http_requests_total{{path="{path}",status="429"}} 2.0' in counted


async def test_what_does_not_generate_is_answered() -> None:
    async with full(GatedEngine(max_inflight=1)) as server:
        assert (await server.post("/tokenize", {"model": "test-model", "prompt": "hi"})).status == 200
        assert (await server.get("/v1/models")).status == 200
        assert (await server.get("/health/ready")).status == 200
        assert (await server.post("/v1/completion", {})).status == 404


async def test_a_refusal_costs_a_key_nothing() -> None:
    engine = GatedEngine(max_inflight=1)
    async with full(engine, api_keys=("other", "one requests=3")) as server:
        asked = {"authorization": "Bearer one"}
        for _ in range(5):
            answer = await server.post(CHAT, BODIES[CHAT], headers=asked)
            assert (answer.status, answer.header("x-ratelimit-remaining-requests")) == (429, "3")
            assert "in flight" in answer.error["message"]
        assert (await server.post(CHAT, BODIES[CHAT], headers={"authorization": "Bearer x"})).status == 401


async def test_there_is_room_again_at_once() -> None:
    engine = GatedEngine(max_inflight=1)
    async with full(engine) as server:
        assert (await server.post(CHAT, BODIES[CHAT])).status == 429
        engine.let()
        await until(lambda: not engine.num_running)
        assert (await server.post(CHAT, BODIES[CHAT])).status == 200


async def test_a_full_model_refuses_before_it_renders_and_others_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelf = Shelf("a", "b")
    async with serving(shelf.catalog(capacity=2)) as server:
        for name in "ab":
            assert (await server.post(CHAT, body(CHAT, name))).status == 200
        shelf.engines["a"][0]._max_inflight = 0
        assert (await server.post(CHAT, body(CHAT, "b"))).status == 200

        def render(*_: Any) -> Any:
            raise AssertionError("a prompt was rendered")

        monkeypatch.setattr(Renderer, "token_ids", render)
        assert (await server.post(CHAT, body(CHAT, "a"))).status == 429


@pytest.mark.parametrize("clients", [1, 20])
async def test_of_many_that_come_at_once_only_those_with_room_are_rendered(
    clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tuple(f"key-{number}" for number in range(clients))
    engine = GatedEngine(max_inflight=1)
    render, rendered = Renderer.token_ids, []

    def counted(*given: Any) -> Any:
        rendered.append(given)
        return render(*given)

    monkeypatch.setattr(Renderer, "token_ids", counted)
    async with serving(served(engine), api_keys=keys) as server:
        exchanges = [
            server.open("POST", CHAT, BODIES[CHAT], headers={"authorization": f"Bearer {key}"})
            for key in keys * (20 // clients)
        ]
        await until(lambda: engine.num_running)
        engine.let()
        statuses = [(await exchange.answer()).status for exchange in exchanges]
    assert sorted(statuses) == [200] + [429] * 19
    assert len(rendered) == 1


async def test_a_client_has_one_name_before_and_after_its_request_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the limit of a client is not seen before its request is read."""
    engine, names = GatedEngine(), []
    engine.let()
    monkeypatch.setattr(engine, "refusal", lambda client, more=0: names.append(client))
    async with serving(served(engine), api_keys=("schlüssel",)) as server:
        answer = await server.post(CHAT, BODIES[CHAT], headers={"authorization": "Bearer schlüssel"})
    assert answer.status == 200
    assert names == ["schlüssel"] * 2


@contextmanager
def connected(**settings: Any) -> Iterator[socket.socket]:
    """Connect to a listening server that has no room."""
    with (
        live(lambda: served(GatedEngine(max_inflight=0)), Settings(store="none", **settings)) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection,
    ):
        yield connection


def read(connection: socket.socket, count: int) -> list[tuple[int, dict[str, str], bytes]]:
    """Read answers that have a length: status, headers and body of each."""
    found: list[Any] = []
    data = b""
    while len(found) < count:
        head, end, rest = data.partition(b"\r\n\r\n")
        # A head that is cut may end within the name of a header.
        headers = dict(line.decode().split(": ", 1) for line in head.split(b"\r\n")[1:]) if end else {}
        size = int(headers.get("content-length", "0"))
        if end and len(rest) >= size:
            found.append((int(head.split()[1]), headers, rest[:size]))
            data = rest[size:]
            continue
        piece = connection.recv(65536)
        assert piece, "the connection was closed"
        data += piece
    assert not data
    return found


def head(more: str = "", path: str = CHAT, length: int = 10) -> bytes:
    """Write the headers of a request."""
    text = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{more}"
    return f"{text}content-length: {length}\r\n\r\n".encode()


def test_the_listener_refuses_before_the_body_and_reads_on() -> None:
    """HTTP-05, HTTP-03."""
    with connected() as connection:
        for _ in range(2):
            connection.sendall(head("x-request-id: mine\r\n"))
            ((status, headers, body),) = read(connection, 1)
            assert (status, headers["x-request-id"], headers["retry-after"]) == (429, "mine", "1")
            assert b"in flight" in body
            connection.sendall(b"x" * 10)
        connection.sendall(head("connection: close\r\n"))
        assert read(connection, 1)[0][1]["connection"] == "close"
        assert connection.recv(1) == b""


def test_a_refusal_has_the_headers_of_the_listener() -> None:
    """RFC 9110, 6.6.1: a server with a clock sends `date`."""
    with connected() as connection:
        connection.sendall(head(length=0))
        ((_, refused, _),) = read(connection, 1)
        connection.sendall(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n")
        ((_, answered, _),) = read(connection, 1)
    assert "date" in answered
    assert answered.keys() <= refused.keys()


@pytest.mark.parametrize("body", [b"", b"x" * 10], ids=["no body", "a body that comes later"])
def test_a_connection_stays_open_after_a_refusal_as_long_as_after_an_answer(body: bytes) -> None:
    with connected(header_timeout=0.4, idle_timeout=20) as connection:
        connection.sendall(head(length=len(body)))
        read(connection, 1)
        connection.sendall(body)
        time.sleep(0.5)
        connection.sendall(head(length=0))
        read(connection, 1)


def test_the_listener_and_the_application_refuse_in_the_same_words() -> None:
    async def asked() -> Any:
        async with serving(served(GatedEngine(max_inflight=0)), cors_origins=("*",)) as server:
            return await server.post(CHAT, {}, headers={"origin": "http://a"})

    answer = asyncio.run(asked())
    with connected(cors_origins=("*",)) as connection:
        connection.sendall(head("origin: http://a\r\n", length=0))
        ((status, headers, body),) = read(connection, 1)
    assert (status, body) == (answer.status, answer.body)
    changing = ("date", "x-request-id", "openai-processing-ms")
    assert [(name, value) for name, value in headers.items() if name not in changing] == [
        (name, value) for name, value in answer.headers if name not in changing
    ]


def test_refused_requests_that_were_sent_together_are_answered_in_their_order() -> None:
    with connected() as connection:
        names = [f"n{number}" for number in range(1000)]
        sent = b"".join(head(f"x-request-id: {name}\r\n", length=0) for name in names)
        connection.sendall(sent + b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answers = read(connection, len(names) + 1)
    assert [headers["x-request-id"] for _, headers, _ in answers[:-1]] == names
    assert [status for status, _, _ in answers] == [429] * len(names) + [200]


@pytest.mark.parametrize(
    ("trusted", "client"),
    [
        ("", "127.0.0.1"),
        ("127.0.0.1", "192.0.2.7"),
        ("10.0.0.0/8, 127.0.0.0/8", "192.0.2.7"),
        ("10.0.0.0/8", "127.0.0.1"),
        ("*", "192.0.2.7"),
    ],
)
def test_a_refusal_has_a_line_that_names_the_client_of_a_proxy_that_is_trusted(
    trusted: str, client: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "plumbline.access")
    with connected(access_log=True, forwarded_allow_ips=trusted) as connection:
        connection.sendall(head("x-forwarded-for: 192.0.2.7\r\n", length=0))
        read(connection, 1)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "plumbline.access"]
    assert re.match(
        rf"POST {CHAT} 429 request_id=req_.* client={re.escape(client)} error=rate_limit_exceeded$", line
    )


def test_what_is_wrong_with_a_request_comes_before_that_there_is_no_room() -> None:
    with connected(api_keys=("one",)) as connection:
        key = "authorization: Bearer one\r\n"
        for more in ("", f"{key}host: u\r\n", f"{key}content-encoding: gzip\r\n", key):
            connection.sendall(head(more, length=0))
        statuses = [status for status, _, _ in read(connection, 4)]
    assert statuses == [401, 400, 415, 429]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/completions", {"prompt": ["a", "b", "c"]}),
        ("/v1/completions", {"n": 3}),
        ("/v1/completions", {"n": 2, "use_beam_search": True}),
        ("/v1/responses", {"background": True}),
    ],
)
async def test_an_answer_that_has_begun_or_that_nobody_waits_for_waits_for_its_turn(
    path: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """One sequence at a time, 12 ms a token, and nobody may wait for more than 100 ms."""
    engine = tiny_engine(max_num_seqs=1)
    forward = engine._keeper.core._runner.forward  # type: ignore[attr-defined]

    def slow(inputs: Any) -> None:
        time.sleep(0.012)
        forward(inputs)

    engine._keeper.core._runner.forward = slow  # type: ignore[attr-defined]
    engine.admission.max_queue_seconds = 0.1
    async with serving(served(engine), store=str(tmp_path / "kept.db")) as server:
        hindered = {"prompt": "x", "model": "test-model", "max_tokens": 16, "ignore_eos": True}
        other = None
        if "background" in more:
            let = hold_steps(engine)
            other = asyncio.create_task(server.post("/v1/completions", hindered))
            await until(lambda: engine.stats().num_running)
        size = (
            {"max_output_tokens": 16} if path == "/v1/responses" else {"max_tokens": 12, "ignore_eos": True}
        )
        answer = await server.post(path, {**BODIES[path], **size, **more})
        assert answer.status == 200, answer.error
        if other is not None:
            await asyncio.sleep(0.1)
            let.set()
            assert (await other).status == 200

            async def ended() -> str:
                return str((await server.get(f"{path}/{answer.json['id']}")).json["status"])

            while (status := await ended()) in ("queued", "in_progress"):
                await asyncio.sleep(0.01)
            assert status in ("completed", "incomplete")

"""Test that the proxy forwards everything unchanged, and that its exchanges are judged."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from example_servers.good_server import MODEL, app, serving
from example_servers.proxied_servers import CHUNKED, GET, between, loops, replays, talk
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline_conformance.cli import main
from plumbline_conformance.console.terminal import console
from plumbline_conformance.reports.conclude import Outputs
from plumbline_conformance.transcript.exchange import Exchange, Transcript
from plumbline_conformance.watch.live import Tally, judge_live
from plumbline_conformance.watch.process import Inbox, Outbox, Passing
from plumbline_conformance.watch.proxy import Proxy
from plumbline_conformance.watch.watcher import Watcher
from plumbline_conformance.watch.watching import run_watch

EVENTS = b"".join(b'data: {"n": %d, "text": "\xf0\x9f\x8c\x8a"}\n\n' % number for number in range(500))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 4000), max_size=10))
def test_hundreds_of_events_pass_byte_for_byte(pieces: list[int]) -> None:
    events = [EVENTS[start : start + 40] for start in range(0, len(EVENTS), 40)]
    wire = CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in events) + b"0\r\n\r\n"

    with between(replays(wire, pieces)) as (port, _, seen):
        assert talk(port, GET) == wire

    [exchange] = seen
    assert exchange.error is None
    assert exchange.body == EVENTS
    assert len(exchange.events) == 500
    assert exchange.url.endswith("/v1/models?x=1")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.0 404 Not Found\r\ncontent-type: text/html\r\n\r\n<p>",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\ncut",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\ncut",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n\x81\x02hi",
    ],
)
def test_answers_of_every_kind_pass_byte_for_byte(answer: bytes) -> None:
    with between(replays(answer)) as (port, _, seen):
        assert talk(port, GET) == answer

    [exchange] = seen
    assert (exchange.error is None) == (b"cut" not in answer and b" 101 " not in answer)


def test_a_packed_answer_passes_packed_and_is_seen_unpacked() -> None:
    packed = gzip.compress(b'{"object": "list"}')
    answer = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed

    with between(replays(answer)) as (port, _, seen):
        assert talk(port, GET) == answer
    assert seen[0].json == {"object": "list"}

    with between(replays(answer.replace(b"gzip", b"br"))) as (port, _, seen):
        assert talk(port, GET) == answer.replace(b"gzip", b"br")
    assert "packed as br" in str(seen[0].error)


def test_what_is_kept_is_bounded_and_what_passes_is_not() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100_000

    with between(replays(answer), keep=1000) as (port, _, seen):
        assert talk(port, GET) == answer

    assert len(seen[0].body) == 1000
    assert "longer than 1000" in str(seen[0].error)


def test_bodies_and_later_requests_of_a_connection_arrive_as_they_were_sent() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            body = (
                await reader.readexactly(3)
                if b"chunked" not in head
                else await reader.readuntil(b"0\r\n\r\n")
            )
            answer = head + body
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)
        writer.close()

    one = b"POST /a HTTP/1.1\r\nhost: me\r\ncontent-length: 3\r\n\r\n\x00\xff\n"
    two = b"POST /b HTTP/1.1\r\nhost: me\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    with between(echo) as (port, behind, seen):
        answer = talk(port, one + two + one)

    host = b"127.0.0.1:%d" % behind
    assert [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200 OK\r\n")[1:]] == [
        request.replace(b"host: me", b"host: " + host) for request in (one, two, one)
    ]
    assert [exchange.request_body for exchange in seen] == [b"\x00\xff\n", b"hi", b"\x00\xff\n"]


def test_a_client_that_leaves_ends_the_stream_behind() -> None:
    left = threading.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        assert await reader.read(1) == b""
        left.set()
        writer.close()

    async def leave(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    with between(endless) as (port, _, seen):
        asyncio.run(leave(port))
        assert left.wait(10)
    assert seen[0].error


def test_a_server_that_is_not_there_is_reported() -> None:
    with loops() as run:
        proxy = Proxy("http://127.0.0.1:1", lambda exchange: None)
        front = run(proxy.start("127.0.0.1", 0))
        answer = talk(front.sockets[0].getsockname()[1], GET)
        run(proxy.stop())
        front.close()

    assert answer.startswith(b"HTTP/1.1 502")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "upstream_unreachable"


@pytest.mark.parametrize(
    "upstream", ["http://user:pass-word@h", "ftp://user:pass-word@h", "http://h/€", "http://ü/"]
)
def test_an_upstream_that_cannot_be_is_refused(upstream: str) -> None:
    with pytest.raises(ValueError, match="URL") as raised:
        Proxy(upstream, lambda exchange: None)
    assert "pass-word" not in str(raised.value)


def test_a_refused_upload_gets_its_answer() -> None:
    """Closing while the client still sends would drop the answer."""

    async def ask() -> bytes:
        proxy = Proxy("http://127.0.0.1:1", lambda exchange: None)
        front = await proxy.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*front.sockets[0].getsockname())
        writer.write(b"POST / HTTP/1.1\r\ncontent-length: 30000000\r\n\r\n")
        for _ in range(300):
            writer.write(b"x" * 100_000)
            await writer.drain()
        answer = await asyncio.wait_for(reader.read(-1), 10)
        writer.close()
        await proxy.stop()
        front.close()
        return answer

    assert asyncio.run(ask()).startswith(b"HTTP/1.1 502")


def test_who_has_left_keeps_no_place() -> None:
    """Neither while waiting for a free connection nor while connecting to a server that does not answer."""

    async def leave() -> int:
        proxy = Proxy("http://127.0.0.1:1", lambda exchange: None, connections=1)

        async def never(*_: object, **__: object) -> None:
            await asyncio.get_running_loop().create_future()

        front = await proxy.start("127.0.0.1", 0)
        asyncio.get_running_loop().create_connection = never  # type: ignore[method-assign, assignment]
        for _ in range(3):
            with socket.create_connection(front.sockets[0].getsockname()[:2]):
                await asyncio.sleep(0.05)
        for _ in range(100):
            if not proxy._tasks:
                break
            await asyncio.sleep(0.05)
        front.close()
        return len(proxy._tasks)

    assert asyncio.run(leave()) == 0


def test_a_tally_does_not_grow_with_the_traffic() -> None:
    tally = Tally()
    for number in range(300):
        exchange = Exchange(
            method="GET",
            url=f"/v1/models?{number}",
            request_headers={},
            request_body=b"",
            status=200,
            headers=[("content-type", "application/json")],
        )
        seen = Transcript(scenario="watch/models", exchanges=[exchange])
        tally.add(seen, judge_live(exchange))

    [finding] = [one for one in tally.findings() if one.verdict == "fail"]
    assert "300 fail" in str(finding.reason)
    assert sum(len(seen.exchanges) for seen in tally.transcripts()) <= 5
    assert len(tally.recent) < 20


def test_what_cannot_be_judged_in_time_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting messages are sent as soon as the judge reads."""
    monkeypatch.setattr("plumbline_conformance.watch.process._WAITING", 1300)
    ours, theirs = socket.socketpair()
    watcher = Watcher(Inbox(ours))

    async def send() -> None:
        outbox = Outbox()
        await asyncio.get_running_loop().create_unix_connection(lambda: outbox, sock=theirs)
        outbox.pause_writing()
        for number in range(5):
            exchange = Exchange(method="GET", url=f"/{number}", request_headers={}, request_body=b"x" * 400)
            outbox.take(exchange)
        outbox.send(Passing(0, outbox.unjudged, last=True))
        outbox.resume_writing()
        await outbox.close()

    with watcher:
        asyncio.run(send())

    assert (watcher.tally.exchanges, watcher.tally.unjudged, watcher.failure) == (2, 3, None)


@contextmanager
def watched(
    upstream: str, outputs: Outputs, recording: Path | None = None
) -> Iterator[tuple[str, list[int]]]:
    """Run `plumbline watch` on a thread; yield its address, and its exit status after the end."""
    stop, up, ports, status = threading.Event(), threading.Event(), [], []

    def ready(port: int) -> None:
        ports.append(port)
        up.set()

    def run() -> None:
        status.append(
            run_watch(upstream, ":0", outputs, out=console(), recording=recording, stop=stop, ready=ready)
        )

    thread = threading.Thread(target=run)
    thread.start()
    assert up.wait(20)
    try:
        yield f"http://127.0.0.1:{ports[0]}/v1", status
    finally:
        stop.set()
        thread.join()


KEY = "sk-of-a-client-0123"


def test_watching_reports_as_checking_does_and_replays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, first, second = (tmp_path / name for name in ("run.jsonl", "a.json", "b.json"))
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    with serving(app()) as upstream, watched(upstream, Outputs(json=first), run) as (base_url, status):
        client = httpx2.Client(base_url=base_url, headers={"authorization": f"Bearer {KEY}"})
        with client:
            for body in (
                ask,
                {**ask, "stream": True},
                {**ask, "n": 0},
                {**ask, "n": 2, "stream": True},
                {**ask, "stop": "never"},
            ):
                through = client.post("/chat/completions", json=body)
                assert through.headers["x-request-id"]
            client.get("/models")
    assert status == [0], capsys.readouterr().out
    out = capsys.readouterr().out
    assert "6 exchanges\n" in out

    assert main(["judge", str(run), "--json", str(second)]) == 0

    reports = [json.loads(path.read_text("utf-8")) for path in (first, second)]
    assert [report.pop("seconds") is None for report in reports] == [False, True]
    assert reports[0] == reports[1]
    assert len(reports[0]["results"]) >= 12
    assert KEY not in run.read_text("utf-8")


def test_watching_a_broken_server_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    with (
        between(broken) as (_, behind, _seen),
        watched(f"http://127.0.0.1:{behind}", Outputs()) as (base_url, status),
    ):
        httpx2.post(f"{base_url}/chat/completions", json={})

    assert status == [1]
    out = capsys.readouterr().out
    assert "fail chat/text/shape" in out
    assert "see it   curl" in out


@pytest.mark.parametrize("option", [["nonsense"], ["http://h", "--listen", "x:y"]])
def test_wrong_addresses_are_reported(option: list[str]) -> None:
    assert main(["watch", *option]) == 2

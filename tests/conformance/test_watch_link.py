"""A link hands on what it is given, whatever it is, and sees the same exchange however it came."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proxied import CHUNKED, GET, between, replays, talk

from plumbline_conformance.commands import console
from plumbline_conformance.outcome import Outputs
from plumbline_conformance.transcript import Exchange
from plumbline_conformance.watch import run_watch
from plumbline_conformance.watch.link import Link
from plumbline_conformance.watch.proxy import Proxy


class Wire(asyncio.Transport):
    """What was written, and whether more may come."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = self.paused = self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False


def linked() -> tuple[Link, Wire, Wire, list[Exchange]]:
    """A link with its wires to the client and to the server, and what was seen."""
    seen: list[Exchange] = []
    link = Link(Proxy("http://there", seen.append))
    front, back = Wire(), Wire()
    link.front.connection_made(front)
    link.back.connection_made(back)
    link.begin()
    return link, front, back, seen


def pieces(data: bytes, cuts: set[int]) -> list[bytes]:
    """The data, cut at these places."""
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


ASKED = b"POST /v1/x HTTP/1.1\r\nhost: me\r\ncontent-length: 4\r\n\r\nabcd"
ANSWERED = b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"3\r\none\r\n4\r\ntwo!\r\n0\r\nx: y\r\n\r\n"
places = st.sets(st.integers(0, 200), max_size=12)


@given(asked=places, answered=places, early=st.booleans())
def test_however_it_is_cut_the_same_passes_and_the_same_is_seen(
    asked: set[int], answered: set[int], early: bool
) -> None:
    """Two requests one after the other; the second one may come before the answer to the first."""
    link, front, back, seen = linked()
    there = ASKED.replace(b"host: me", b"host: there")
    for piece in pieces(ASKED + ASKED if early else ASKED, asked):
        link.front.data_received(piece)
    assert back.written == there
    for piece in pieces(ANSWERED, answered):
        link.back.data_received(piece)
    if not early:
        for piece in pieces(ASKED, asked):
            link.front.data_received(piece)
    for piece in pieces(ANSWERED, answered):
        link.back.data_received(piece)

    assert (front.written, back.written) == (2 * ANSWERED, 2 * there)
    assert [(one.request_body, one.status, one.body, one.error) for one in seen] == [
        (b"abcd", 200, b"onetwo!", None)
    ] * 2
    assert not front.closed


@given(st.binary(max_size=200), st.binary(max_size=200), places)
def test_what_makes_no_sense_passes_as_it_is(asked: bytes, answered: bytes, cuts: set[int]) -> None:
    """Beyond the host of a head, no byte of a client or of a server is lost or changed, and neither is refused."""
    link, front, back, seen = linked()
    link.front.data_received(b"POST /v1/x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
    before = back.written
    for piece in pieces(b"zz\r\n" + asked, cuts):
        link.front.data_received(piece)
    for piece in pieces(b"HTTP/1.1 what\r\n\r\n" + answered, cuts):
        link.back.data_received(piece)

    assert back.written == before + b"zz\r\n" + asked
    assert front.written == b"HTTP/1.1 what\r\n\r\n" + answered
    assert not seen
    link.stop()
    assert "no size of a chunk" in str(seen[0].error)


@pytest.mark.parametrize(
    "start", [b"\x16\x03\x01 no HTTP\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n", b"PRI\r\n\r\n", b"x" * 100_000]
)
def test_what_is_no_request_passes_and_is_not_seen(start: bytes) -> None:
    link, front, back, seen = linked()

    link.front.data_received(start)
    link.front.data_received(b"more")
    link.back.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    assert (back.written, front.written) == (start + b"more", b"HTTP/1.1 400 Bad Request\r\n\r\n")
    link.stop()
    assert seen == []


def test_a_broken_answer_arrives_as_it_was_sent() -> None:
    answer = CHUNKED + b"3\r\none\r\nnonsense\r\n" + b"x" * 1000

    with between(replays(answer)) as (port, _, seen):
        assert talk(port, GET) == answer

    assert (seen[0].body, seen[0].error) == (b"", "no size of a chunk: b'nonsense'")


def test_nobody_is_read_from_while_the_other_side_takes_nothing() -> None:
    link, front, back, _ = linked()
    link.front.pause_writing()
    assert (front.paused, back.paused) == (False, True)
    link.front.resume_writing()
    link.back.pause_writing()
    assert (front.paused, back.paused) == (True, False)

    link.front.data_received(ASKED + b"y" * 100_000)
    link.back.resume_writing()
    assert front.paused, "the next request waits for the answer, and what follows it outside"
    link.back.data_received(ANSWERED)
    assert not front.paused


def test_who_has_said_all_may_still_listen() -> None:
    link, front, back, seen = linked()
    link.front.data_received(ASKED)

    assert link.front.eof_received()
    assert back.ended
    assert not front.closed
    link.back.data_received(ANSWERED)

    assert front.written == ANSWERED
    assert front.closed
    assert seen[0].error is None


def test_who_hangs_up_is_named() -> None:
    said = []
    for act in (
        lambda link: link.front.connection_lost(None),
        lambda link: link.back.connection_lost(None),
        lambda link: link.stop(),
    ):
        link, front, back, seen = linked()
        link.front.data_received(ASKED)
        link.back.data_received(CHUNKED + b"3\r\none\r\n")
        act(link)
        said += [exchange.error for exchange in seen]
        assert (front.closed, back.closed) == (True, True)

    assert said == [
        "the client left before the end of the answer",
        "the server closed the connection before the end of its answer",
        "the proxy was stopped",
    ]


def _watching(*more: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "plumbline_conformance.cli", "watch", "--upstream", "http://127.0.0.1:1"]
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [*command, "--listen", ":0", *more], stdout=subprocess.PIPE, text=True, env=variables
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    return process, int(said.split(",")[0].rpartition(":")[2])


def test_the_proxy_does_not_outlive_the_judge() -> None:
    process, port = _watching()
    socket.create_connection(("127.0.0.1", port)).close()
    process.kill()
    process.communicate()

    late = time.monotonic() + 20
    while time.monotonic() < late:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.05)
    raise AssertionError("the port is still open")


def test_an_interruption_writes_the_reports(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    process, port = _watching("--json", str(report))
    assert talk(port, GET).startswith(b"HTTP/1.1 502")
    process.send_signal(signal.SIGINT)

    out, _ = process.communicate(timeout=20)

    assert "0 exchanges" in out
    assert report.is_file()


def test_a_proxy_that_dies_or_cannot_listen_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from plumbline_conformance.watch import run

    started = []

    class Watched(run.Apart):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            started.append(self)

    monkeypatch.setattr(run, "Apart", Watched)

    def kill(port: int) -> None:
        started[0]._process.kill()

    assert (
        run_watch("http://127.0.0.1:1", ":0", Outputs(), out=console(), stop=threading.Event(), ready=kill)
        == 2
    )
    assert "ended before it was told to" in capsys.readouterr().out

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run_watch("http://127.0.0.1:1", f":{port}", Outputs(), out=console()) == 2
    assert "in use" in capsys.readouterr().out

"""Servers that do their worst on the wire: the judge ends in bounded time, with verdicts and an exit status."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from plumbline_conformance.case import SCENARIOS, Target
from plumbline_conformance.cli import check
from plumbline_conformance.judge import record

Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
LINE = 10 * 1024 * 1024


@contextmanager
def hostile(behave: Behaviour) -> Iterator[str]:
    """Serve connections with this behaviour; gives the base URL."""
    started = threading.Event()
    place: list[int] = []
    stop: list[Callable[[], object]] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await behave(writer)
            await writer.drain()
        writer.close()

    async def serve() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        place.append(server.sockets[0].getsockname()[1])
        stop.append(lambda: loop.call_soon_threadsafe(ended.set))
        started.set()
        await ended.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    started.wait()
    try:
        yield f"http://127.0.0.1:{place[0]}/v1"
    finally:
        stop[0]()
        thread.join()


async def closes_at_once(_: asyncio.StreamWriter) -> None:
    """No answer."""


async def closes_in_the_middle(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")


async def closes_in_a_chunk(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nhalf")


async def speaks_no_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16\x03\x01 hello\r\n\r\n")


async def never_answers(_: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def never_ends(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM)
    while True:
        writer.write(b'data: {"choices": []}\n\n')
        await writer.drain()
        await asyncio.sleep(0.01)


async def says_more_than_it_said(writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{"a": 1}{}')


async def sends_an_endless_line(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM + b"data: " + b"x" * LINE)


async def sends_what_is_not_gzip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nnope")


async def sends_control_characters(writer: asyncio.StreamWriter) -> None:
    body = b'{"error": {"message": "\\u001b[31m[/bold] \\ud800", "type": "x", "param": null, "code": null}}'
    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


UNREACHABLE = [closes_at_once, speaks_no_http, never_answers]
TRUNCATING = [closes_in_the_middle, closes_in_a_chunk, never_ends, sends_what_is_not_gzip]
WRONG = [says_more_than_it_said, sends_an_endless_line, sends_control_characters]


def judged(behave: Behaviour, *ids: str) -> tuple[int, float]:
    with hostile(behave) as base_url:
        began = time.monotonic()
        status = check(Target(base_url=base_url, model="m"), ids, timeout=0.4)
        return status, time.monotonic() - began


@pytest.mark.parametrize("behave", UNREACHABLE)
def test_a_server_without_answers_cannot_be_judged(
    behave: Behaviour, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of the suite, yet no longer than a few time-outs."""
    status, seconds = judged(behave)

    assert status == 2
    assert "cannot be reached" in capsys.readouterr().out
    assert seconds < 4


@pytest.mark.parametrize("behave", TRUNCATING)
def test_truncated_answers_accuse_nobody(behave: Behaviour, capsys: pytest.CaptureFixture[str]) -> None:
    status, seconds = judged(behave, "chat/stream-text", "errors/broken-json")

    assert status == 2
    assert "inconclusive" in capsys.readouterr().out
    assert seconds < 4


@pytest.mark.parametrize("behave", WRONG)
def test_wrong_answers_are_violations(behave: Behaviour, capsys: pytest.CaptureFixture[str]) -> None:
    status, seconds = judged(behave, "chat/stream-text", "models")

    assert status == 1
    assert "\x1b[31m" not in capsys.readouterr().out
    assert seconds < 10


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "nonsense", "http://", "http://[/v1", "ftp://x/"])
def test_a_wrong_address_cannot_be_judged(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(Target(base_url=url, model="m"), ["chat"], timeout=1) == 2
    assert "cannot be reached" in capsys.readouterr().out


def test_a_key_that_cannot_be_sent_is_said() -> None:
    assert check(Target(base_url="http://127.0.0.1:1/v1", model="m", api_key="schlüssel\n"), ["chat"]) == 2


def test_a_body_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline_conformance.judge._MAX_BODY", 1_000_000)
    with hostile(sends_an_endless_line) as base_url:
        [seen] = asyncio.run(record([SCENARIOS["chat/text"]], Target(base_url=base_url, model="m")))

    assert "longer than" in str(seen.exchanges[0].error)

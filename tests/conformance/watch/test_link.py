"""Test that a link forwards all bytes unchanged, and records the same exchange however they are cut."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise

import pytest
from example_servers.proxied_servers import CHUNKED, GET, between, replays, talk
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline_conformance.recording.redaction import redacted_exchange
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.watch.link import Link
from plumbline_conformance.watch.proxy import Proxy


class Wire(asyncio.Transport):
    """Record writes and EOF of a transport."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = self.paused = self.ended = False
        self.plain = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return self.plain

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False


def linked() -> tuple[Link, Wire, Wire, list[Exchange]]:
    """Return a link with transports to client and server, and the recorded exchanges."""
    seen: list[Exchange] = []
    link = Link(Proxy("http://there", seen.append), lambda: None)
    front, back = Wire(), Wire()
    link.front.connection_made(front)
    link.back.connection_made(back)
    link.begin()
    return link, front, back, seen


def pieces(data: bytes, cuts: set[int]) -> list[bytes]:
    """Return the data, cut at these offsets."""
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


ASKED = b"POST /v1/x HTTP/1.1\r\nhost: me\r\ncontent-length: 4\r\n\r\nabcd"
ANSWERED = b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"3\r\none\r\n4\r\ntwo!\r\n0\r\nx: y\r\n\r\n"
places = st.sets(st.integers(0, 200), max_size=12)


@given(asked=places, answered=places, early=st.booleans())
def test_however_it_is_cut_the_same_passes_and_the_same_is_seen(
    asked: set[int], answered: set[int], early: bool
) -> None:
    """Generate two requests; the second may come before the answer to the first."""
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
    """Except for the host, no byte of client or server is lost or changed."""
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
    assert "invalid chunk size" in str(seen[0].error)


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 300_000), min_size=1, max_size=40), uvloop=st.booleans())
def test_what_finds_no_room_is_sent_in_its_turn(sizes: list[int], uvloop: bool) -> None:
    """The client reads nothing until everything has been written."""
    data = b"".join(bytes([number]) * size for number, size in enumerate(sizes))
    ours, theirs = socket.socketpair()

    def read() -> bytes:
        return b"".join(iter(lambda: theirs.recv(65536), b""))

    async def write() -> bytes:
        end = Link(Proxy("http://there", lambda exchange: None), lambda: None).front
        await asyncio.get_running_loop().create_unix_connection(lambda: end, sock=ours)
        start = 0
        for size in sizes:
            end.write(data[start : start + size])
            start += size
        end.finish()
        return await asyncio.to_thread(read)

    factory = pytest.importorskip("uvloop").new_event_loop if uvloop else None
    with asyncio.Runner(loop_factory=factory) as runner, theirs:
        assert runner.run(write()) == data


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

    assert (seen[0].body, seen[0].error) == (b"", "invalid chunk size: b'nonsense'")


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


def test_a_client_that_closed_its_side_still_gets_the_answer() -> None:
    link, front, back, seen = linked()
    link.front.data_received(ASKED)

    assert link.front.eof_received()
    assert back.ended
    assert not front.closed
    link.back.data_received(ANSWERED)

    assert front.written == ANSWERED
    assert (front.closed, seen[0].error) == (True, None)


def _left(link: Link) -> None:
    link.front.connection_lost(None)


def _cancelled(link: Link) -> None:
    """The client closes, then the server."""
    link.front.eof_received()
    link.back.eof_received()
    link.back.connection_lost(None)


def _hung_up(link: Link) -> None:
    link.back.eof_received()
    link.back.connection_lost(None)


def _broke(link: Link) -> None:
    link.back.connection_lost(ConnectionResetError("reset"))


def test_who_hangs_up_is_named() -> None:
    errors = []
    for act in (_left, _cancelled, _hung_up, _broke, Link.stop):
        link, front, back, seen = linked()
        link.front.data_received(ASKED)
        link.back.data_received(CHUNKED + b"3\r\none\r\n")
        act(link)
        errors += [exchange.error for exchange in seen]
        assert (front.closed, back.closed) == (True, True)

    assert errors == [
        "the client left before the end of the answer",
        "the client left before the end of the answer",
        "the server closed the connection before the end of its answer",
        "the connection to the server broke: reset",
        "the proxy was stopped",
    ]


UNBOUNDED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def test_an_answer_that_ends_with_its_connection_is_whole_only_if_the_server_ended_it() -> None:
    """An answer that is cut because the client left or the connection broke is not judged."""
    errors = []
    for act in (_cancelled, _hung_up, _broke):
        link, _, _, seen = linked()
        link.front.data_received(ASKED)
        link.back.data_received(UNBOUNDED + b'data: {"half":')
        act(link)
        errors += [exchange.error for exchange in seen]

    assert errors == [
        "the client left before the end of the answer",
        None,
        "the connection to the server broke: reset",
    ]


def test_an_answer_may_come_before_the_end_of_its_request() -> None:
    """For example a 401 to an upload: the rest is forwarded, and the connection stays open."""
    link, front, back, seen = linked()
    link.front.data_received(ASKED[:-2])
    link.back.data_received(ANSWERED)
    link.front.data_received(ASKED[-2:] + ASKED)
    link.back.data_received(ANSWERED)

    assert back.written == 2 * ASKED.replace(b"host: me", b"host: there")
    assert (front.written, front.closed) == (2 * ANSWERED, False)
    assert [exchange.error for exchange in seen] == [
        "the server answered before the request was complete",
        None,
    ]


def test_who_is_silent_gets_an_answer_that_makes_no_sense_whole() -> None:
    link, front, _, _ = linked()
    link.front.data_received(ASKED)
    link.front.eof_received()
    link.back.data_received(CHUNKED + b"zz\r\nstart ")
    link.back.data_received(b"and the rest")

    assert front.written == CHUNKED + b"zz\r\nstart and the rest"


def test_who_is_silent_towards_a_server_behind_tls_gets_its_answer() -> None:
    link, front, back, seen = linked()
    back.plain = False
    link.front.data_received(ASKED)
    assert link.front.eof_received()
    assert not back.closed
    link.back.data_received(ANSWERED)

    assert (front.written, front.closed, back.closed) == (ANSWERED, True, True)
    assert seen[0].error is None


@pytest.mark.parametrize(
    "start",
    [b"GET / HTTP/1.1\nHost: x\n\n", b"\x16\x03\x01\x00\xa5", b"GET / HTTP/1.1\r\nHost: x\n"],
)
def test_what_no_server_has_to_wait_for_passes_at_once(start: bytes) -> None:
    link, _, back, _ = linked()

    link.front.data_received(start)

    assert back.written == start


def test_an_answer_with_bare_line_feeds_blocks_nothing() -> None:
    link, front, back, seen = linked()
    link.front.data_received(ASKED + ASKED)
    link.back.data_received(b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok")

    assert front.written.endswith(b"ok")
    assert back.written == ASKED.replace(b"host: me", b"host: there") + ASKED
    link.stop()
    assert seen[0].error == "a response without an end of its head"


def test_a_tunnel_is_none_of_our_business() -> None:
    link, front, back, seen = linked()
    link.front.data_received(b"CONNECT h:443 HTTP/1.1\r\nhost: h:443\r\n\r\n")
    link.back.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    link.front.data_received(b"\x16\x03")
    link.back.data_received(b"\x16\x04")

    assert (back.written[-2:], front.written[-2:]) == (b"\x16\x03", b"\x16\x04")
    link.stop()
    assert seen[0].error == "a tunnel: not judged"


@pytest.mark.parametrize(
    ("head", "closed"),
    [
        (b"HTTP/1.0 200 OK\r\n", True),
        (b"HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\n", False),
        (b"HTTP/1.1 200 OK\r\n", False),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n", True),
    ],
)
def test_a_connection_lives_until_either_side_closes_it(head: bytes, closed: bool) -> None:
    link, front, _, _ = linked()
    link.front.data_received(ASKED)
    link.back.data_received(head + b"content-length: 2\r\n\r\nok")

    assert front.closed == closed


@pytest.mark.parametrize(
    "odd", [b"HTTP/1.1 200 OK\r\ncontent-length: %s" % (b"9" * 5000), b"HTTP/1.1 " + b"9" * 30]
)
def test_numbers_beyond_all_bounds_pass(odd: bytes) -> None:
    link, front, _, seen = linked()
    link.front.data_received(ASKED)
    link.back.data_received(odd + b"\r\n\r\n")
    link.back.data_received(b"what follows")
    link.stop()

    assert front.written == odd + b"\r\n\r\nwhat follows"
    assert seen[0].error is not None


def test_a_body_packed_in_transfer_is_not_taken_for_its_content() -> None:
    link, _, _, seen = linked()
    link.front.data_received(ASKED)
    link.back.data_received(CHUNKED.replace(b"chunked", b"gzip, chunked") + b"3\r\none\r\n0\r\n\r\n")

    assert "packed as gzip in transfer" in str(seen[0].error)


def test_keys_that_are_sent_twice_are_covered_both() -> None:
    link, _, _, seen = linked()
    link.front.data_received(
        b"GET /v1/models HTTP/1.1\r\nx-api-key: sk-first-111111\r\nX-Api-Key: sk-second-2222\r\n\r\n"
    )
    link.back.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\nsk-first-111111 sk-second-2222")

    covered = redacted_exchange(seen[0])
    assert seen[0].body == b"sk-first-111111 sk-second-2222"
    assert b"first" not in covered.body
    assert "second" not in str(covered)


@pytest.mark.parametrize(
    ("target", "sent"),
    [
        ("/v1/x", "/api/v1/x"),
        ("/api", "/api"),
        ("/api?a", "/api?a"),
        ("*", "*"),
        ("http://h/v1", "http://h/v1"),
        ("/apix", "/api/apix"),
    ],
)
def test_only_paths_get_a_prefix(target: str, sent: str) -> None:
    link = Link(Proxy("http://there/api", lambda exchange: None), lambda: None)
    back = Wire()
    link.front.connection_made(Wire())
    link.back.connection_made(back)
    link.begin()

    link.front.data_received(b"OPTIONS %s HTTP/1.1\r\n\r\n" % target.encode())

    assert back.written.split()[1].decode() == sent

"""The parser gets no more of a request than the limits, and a request within them as it was sent.

Laws:
    1. However bytes are cut, the same pieces in sum are passed on, up to the same refusal.
    2. A head or trailers are passed on whole, and within the limits; no more than the limits waits for the rest.
    3. The guard and the parser agree on where a request ends.
    4. Requests within the limits are passed on as they are, and one at a time.
    5. An upgrade that is not to WebSocket is an ordinary request with its body (RFC 9110, section 7.8).
"""

from __future__ import annotations

from collections.abc import Callable

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline.contract.wire.errors import ApiError
from plumbline.server.start.connections.request_guard import (
    MAX_CHUNK_LINE,
    MAX_HEAD,
    MAX_HEADERS,
    MAX_REQUEST_LINE,
    MAX_TRAILERS,
    RequestGuard,
)

TOKENS = st.text("abcdefgh-", min_size=1, max_size=8).map(str.encode)
VALUES = st.text("abc ,;=/0", max_size=12).map(lambda text: text.strip().encode())


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A legal request."""
    headers = [b"x-%s: %s\r\n" % pair for pair in draw(st.lists(st.tuples(TOKENS, VALUES), max_size=4))]
    body = b""
    match draw(st.sampled_from(["none", "sized", "chunked"])):
        case "sized":
            body = draw(st.binary(max_size=40))
            headers.append(b"content-length: %d\r\n" % len(body))
        case "chunked":
            extension = draw(st.sampled_from([b"", b";a=b"]))
            for chunk in draw(st.lists(st.binary(min_size=1, max_size=20), max_size=4)):
                body += b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk)
            body += b"0\r\n" + draw(st.sampled_from([b"", b"x-t: 1\r\n"])) + b"\r\n"
            headers.append(b"transfer-encoding: chunked\r\n")
    method = draw(st.sampled_from([b"GET", b"POST", b"DELETE"]))
    return (
        b"%s /v1/%s HTTP/1.1\r\nhost: localhost\r\n%s\r\n" % (method, draw(TOKENS), b"".join(headers)) + body
    )


NOISE = [
    b"\r\n",
    b"\n",
    b" ",
    b":",
    b"0",
    b"5\r\n",
    b"GET / HTTP/1.1\r\n",
    b"host: a\r\n",
    b"\x00",
    b"a" * 70,
]
NOISE += [
    b"transfer-encoding: chunked\r\n",
    b"content-length: 3\r\n",
    b"upgrade: h2c\r\nconnection: upgrade\r\n",
]
BYTES = st.one_of(
    st.lists(st.sampled_from(NOISE), max_size=12).map(b"".join),
    st.lists(requests(), min_size=1, max_size=3).map(b"".join),
    st.tuples(requests(), st.sampled_from(NOISE), st.integers(0, 200)).map(
        lambda drawn: drawn[0][: drawn[2]] + drawn[1] + drawn[0][drawn[2] :]
    ),
)
CUTS = st.lists(st.integers(1, 30), min_size=1, max_size=40)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Cut bytes into pieces of these sizes, over and over."""
    found, at, index = [], 0, 0
    while at < len(data):
        found.append(data[at : at + sizes[index % len(sizes)]])
        at, index = at + len(found[-1]), index + 1
    return found


class Parser:
    """Counts what llhttp finds."""

    def __init__(self) -> None:
        self.complete = True
        self.requests = 0
        self._parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        """Parse bytes."""
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.complete = False

    def on_message_complete(self) -> None:
        """End a request."""
        self.complete = True
        self.requests += 1


def passed(pieces: list[bytes]) -> tuple[list[bytes], int]:
    """Return what a guard passes on of the pieces, and the status of its or the parser's refusal, or 0."""
    guard, found, bare = RequestGuard(), [], Parser()
    try:
        for piece in pieces:
            guard.add(piece)
            while (taken := guard.take()) is not None:
                found.append(taken)
                bare.feed(taken)
                assert guard.between is bare.complete  # Law 3.
            assert guard.held <= MAX_HEAD + len(piece)
    except ApiError as error:
        return found, error.status
    except httptools.HttpParserUpgrade:
        return found, 101
    except httptools.HttpParserError:
        return found, 400
    return found, 0


@settings(max_examples=EXPLORED or 200)
@example(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 3, [1])
@given(BYTES, CUTS)
def test_how_bytes_are_cut_changes_nothing(data: bytes, sizes: list[int]) -> None:
    """Laws 1 and 3."""
    whole, status = passed([data])
    pieces, other = passed(cut(data, sizes))
    assert status == other
    if status in (0, 101):
        assert b"".join(whole) == b"".join(pieces)


@settings(max_examples=EXPLORED or 200)
@given(st.lists(requests(), min_size=1, max_size=4), CUTS)
def test_legal_requests_are_passed_on_as_they_are(sent: list[bytes], sizes: list[int]) -> None:
    """Law 4."""
    pieces, status = passed(cut(b"".join(sent), sizes))
    assert status == 0
    assert b"".join(pieces) == b"".join(sent)
    assert sum(piece.startswith((b"GET", b"POST", b"DELETE")) for piece in pieces) >= len(sent)
    assert not any(piece.count(b"HTTP/1.1\r\nhost") > 1 for piece in pieces)


HEAD = b"POST / HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
ENDLESS = {
    "value": (HEAD + b"x: ", b"a", 431),
    "name": (HEAD + b"x", b"a", 431),
    "headers": (HEAD, b"a:b\r\n", 431),
    "target": (b"GET /", b"a", 414),
    "method": (b"G", b"A", 400),
    "extension": (CHUNKED + b"5;", b"a", 400),
    "size": (CHUNKED, b"0", 400),
    "trailers": (CHUNKED + b"0\r\n", b"a:b\r\n", 431),
    "trailer": (CHUNKED + b"0\r\nx: ", b"a", 431),
}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("size", [1, 700, 65_536])
def test_what_never_ends_is_refused_before_the_parser_gets_it(name: str, size: int) -> None:
    """Law 2."""
    begin, endless, status = ENDLESS[name]
    begun = passed([begin])[0]
    count = 2 * MAX_HEAD // len(endless)
    pieces, found = passed(cut(begin + endless * count, [size]))
    assert found == status
    assert b"".join(pieces) == b"".join(begun)


def sized(begin: bytes, size: int, end: bytes) -> bytes:
    """Fill up to a size."""
    return begin + b"a" * (size - len(begin)) + end


LIMITS: dict[str, tuple[Callable[[int], bytes], int]] = {
    "target": (
        lambda more: sized(b"GET /", MAX_REQUEST_LINE - 9 + more, b" HTTP/1.1\r\nhost: a\r\n\r\n"),
        414,
    ),
    "bytes": (lambda more: sized(HEAD + b"x: ", MAX_HEAD - 4 + more, b"\r\n\r\n"), 431),
    "lines": (lambda more: HEAD + b"a: b\r\n" * (MAX_HEADERS - 1 + more) + b"\r\n", 431),
    "trailers": (lambda more: CHUNKED + b"0\r\n" + sized(b"x: ", MAX_TRAILERS - 4 + more, b"\r\n\r\n"), 431),
    "chunk": (lambda more: CHUNKED + sized(b"1;", MAX_CHUNK_LINE - 2 + more, b"\r\na\r\n0\r\n\r\n"), 400),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_limits_are_exact(name: str) -> None:
    make, status = LIMITS[name]
    assert passed([make(0)])[1] == 0
    assert passed([make(1)])[1] == status


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /\r\nhost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nhost: a\n\n", 400),
        (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n", 501),
        (HEAD + b"transfer-encoding: chunked, gzip\r\n\r\n", 400),
        (HEAD + b"transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n", 400),
        (HEAD + b"content-length: 1\r\ncontent-length: 1\r\n\r\n", 400),
        (HEAD + b"content-length: +1\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (CHUNKED + b"x\r\n", 400),
        (CHUNKED + b"1\r\nabc", 400),
    ],
)
def test_what_has_no_valid_framing_is_refused(head: bytes, status: int) -> None:
    assert passed([head])[1] == status
    assert passed(cut(head, [1]))[1] == status


@pytest.mark.parametrize("upgrade", [b"h2c", b"foo/2", b"h2c, websocket", b"TLS/1.0"])
def test_an_unknown_upgrade_is_an_ordinary_request(upgrade: bytes) -> None:
    """Law 5."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\nUpgrade: %s\r\n" % upgrade
    pieces, status = passed([HEAD + offer + b"content-length: 2\r\n\r\n{}" + HEAD + b"\r\n"])
    assert status == 0
    assert b"".join(pieces).count(b"{}") == 1
    assert b"upgrade:" not in b"".join(pieces).lower()

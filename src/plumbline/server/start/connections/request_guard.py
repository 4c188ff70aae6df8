"""Bound what a client makes the HTTP parser hold, before the parser gets it.

llhttp has no limit on headers, targets, trailers or chunk extensions, and joins the pieces of a header in quadratic
time. The guard gives it a head or the trailers only when they are complete and within the limits, and never two
requests at once. It follows the framing of RFC 9112 in its strict form, without I/O:

    state     gives the parser                 next state
    HEAD      the head, whole                  SIZED, CHUNKED, UPGRADED, or HEAD if there is no body
    SIZED     bytes up to Content-Length       HEAD
    CHUNKED   whole size lines, and data       TRAILERS after the chunk of size 0
    TRAILERS  the trailers, whole              HEAD
    UPGRADED  nothing; see `rest`              UPGRADED
"""

from __future__ import annotations

import re
from enum import Enum, auto

from plumbline.contract.wire.errors import ApiError

__all__ = [
    "CHUNKS",
    "MAX_CHUNK_LINE",
    "MAX_HEAD",
    "MAX_HEADERS",
    "MAX_REQUEST_LINE",
    "MAX_TRAILERS",
    "RequestGuard",
]

MAX_REQUEST_LINE = 16 * 1024
"""Bytes; beyond it a 414. RFC 9112, section 3, recommends 8,000 at least."""
MAX_HEAD = 64 * 1024
"""Bytes of the request line and the headers; beyond it a 431, as with h11."""
MAX_HEADERS = 128
"""Header lines, as for the handshake of a WebSocket (`websockets`)."""
MAX_TRAILERS = 16 * 1024
"""Bytes of trailers, of which there may be `MAX_HEADERS`."""
MAX_CHUNK_LINE = 256
"""Bytes of the size of a chunk and its extensions; beyond it a 400. Clients send no extensions."""
MAX_EMPTY = 64
"""Bytes of empty lines before a request."""
CHUNKS = 64
"""Chunks in one piece at most."""

_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n")
_BEGIN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}( |\Z)")
"""A method, as far as it has come."""
_LENGTH = re.compile(rb"[0-9]{1,18}")
_FRAMING = re.compile(rb"\n(content-length|transfer-encoding|upgrade|connection):([^\r\n]*)", re.IGNORECASE)
"""The headers that decide where a request ends."""
_UPGRADE = re.compile(rb"\r\n(?i:upgrade):[^\r\n]*")


class _State(Enum):
    HEAD = auto()
    SIZED = auto()
    CHUNKED = auto()
    TRAILERS = auto()
    UPGRADED = auto()


class RequestGuard:
    """The bytes of one connection that the parser has not got."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._state = _State.HEAD
        self._empty = 0
        """Bytes of empty lines before the request."""
        self._searched = 0
        """Bytes of the buffer in which the end of a head or of trailers was looked for."""
        self._left = 0
        """Bytes of the body, or of the chunk and the line break after it, that have not come."""
        self.chunks = 0
        """Chunks in the pieces that `take` has returned."""

    @property
    def held(self) -> int:
        """The bytes that wait."""
        return len(self._buffer)

    @property
    def between(self) -> bool:
        """Whether the last request is complete."""
        return self._state is _State.HEAD

    @property
    def in_head(self) -> bool:
        """Whether a head has begun, and is not complete or was not taken."""
        return self._state is _State.HEAD and bool(self._buffer)

    def rest(self) -> bytes:
        """Return the bytes after the head of an upgrade, which are of another protocol."""
        found = bytes(self._buffer)
        self._buffer.clear()
        return found

    def add(self, data: bytes) -> None:
        """Append what the client sent."""
        self._buffer += data
        if self._state is _State.HEAD and self._buffer.startswith((b"\r", b"\n")):
            self._skip_empty_lines()

    def take(self) -> bytes | None:
        """Return the next bytes for the parser, or None until more have come.

        A head is returned alone, so a caller can leave it until the last request is answered.

        Raises:
            ApiError: the request has no valid framing, or exceeds a limit; the connection must be closed.
        """
        if self._state is _State.HEAD:
            return self._take_head()
        if self._state is _State.SIZED:
            return self._take_sized()
        if self._state is _State.CHUNKED:
            return self._take_chunks() or self._take_trailers()
        return self._take_trailers()

    def _cut(self, size: int) -> bytes:
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._searched = 0
        return found

    def _take_head(self) -> bytes | None:
        buffer = self._buffer
        if not buffer:
            return None
        if not _BEGIN.match(buffer, 0, 33):  # A handshake of TLS, say, has no line that ends.
            raise _invalid("It does not begin with a method.")
        start = max(0, self._searched - 3)
        end = buffer.find(b"\r\n\r\n", start) + 4
        known = end if end > 3 else len(buffer)
        lines = _check_lines(buffer, known)
        line_end = buffer.find(b"\r\n", 0, known)
        if (known if line_end < 0 else line_end) > MAX_REQUEST_LINE:
            raise ApiError(
                414,
                f"The request line has more than {MAX_REQUEST_LINE} bytes. Shorten the URL.",
                code="uri_too_long",
            )
        if known > MAX_HEAD or lines > MAX_HEADERS + 2:
            raise _too_large("headers", MAX_HEAD)
        if end == 3:
            self._searched = len(buffer)
            return None
        head = self._cut(end)
        self._state, self._left, head = _framing(head)
        if self._state is _State.HEAD:
            self._begin()
        return head

    def _take_sized(self) -> bytes | None:
        if not self._buffer:
            return None
        found = self._cut(self._left)
        self._left -= len(found)
        if not self._left:
            self._begin()
        return found

    def _take_chunks(self) -> bytes | None:
        """Return whole size lines and what there is of data: one piece, because clients may send thousands."""
        buffer, at, size, most = self._buffer, 0, len(self._buffer), self.chunks + CHUNKS
        while self._state is _State.CHUNKED and at < size and self.chunks < most:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
                if not self._left and buffer[at + step - 1] != 0x0A:
                    raise _invalid("A chunk of the body is longer than its size.")
                at += step
                continue
            line = _CHUNK.match(buffer, at, at + MAX_CHUNK_LINE)
            if line is None:
                if size - at >= MAX_CHUNK_LINE or b"\n" in buffer[at:]:
                    raise _invalid(
                        f"The size of a chunk is not hexadecimal, or has over {MAX_CHUNK_LINE} bytes."
                    )
                break
            at = line.end()
            self.chunks += 1
            length = int(line[1], 16)
            if length:
                self._left = length + 2
            else:
                self._state = _State.TRAILERS
        return self._cut(at) if at else None

    def _take_trailers(self) -> bytes | None:
        if self._state is not _State.TRAILERS or not self._buffer:
            return None
        buffer = self._buffer
        start = max(0, self._searched - 3)
        if buffer.startswith(b"\r\n"):
            end = 2
        else:
            end = buffer.find(b"\r\n\r\n", start) + 4
        known = end if end != 3 else len(buffer)
        lines = _check_lines(buffer, known)
        if known > MAX_TRAILERS or lines > MAX_HEADERS + 1:
            raise _too_large("trailers", MAX_TRAILERS)
        if end == 3:
            self._searched = len(buffer)
            return None
        found = self._cut(end)
        self._begin()
        return found

    def _begin(self) -> None:
        self._state = _State.HEAD
        self._empty = 0
        self._skip_empty_lines()

    def _skip_empty_lines(self) -> None:
        """Ignore a few before a request (RFC 9112, section 2.2); bytes beyond them are no method."""
        begin = bytes(self._buffer[: MAX_EMPTY - self._empty])
        size = len(begin) - len(begin.lstrip(b"\r\n"))
        self._empty += size
        del self._buffer[:size]


def _framing(head: bytes) -> tuple[_State, int, bytes]:
    """Return how the body of a request is framed, its length, and the head as the parser gets it.

    Raises:
        ApiError: 400 or 501, as RFC 9112, section 6.3, demands.
    """
    first = head[: head.index(b"\r\n")]
    if not first.rpartition(b" ")[2].startswith(b"HTTP/1."):
        raise _invalid("The request line does not end with a version of HTTP/1.")  # HTTP/0.9 had none.
    if first.startswith(b"CONNECT "):
        raise _invalid("The server is not a proxy: it has no method CONNECT.")
    found: dict[bytes, list[bytes]] = {}
    for name, value in _FRAMING.findall(head):
        found.setdefault(name.lower(), []).append(value.strip().lower())
    upgrades, options = found.get(b"upgrade"), _listed(found.get(b"connection", []))
    if upgrades:
        if upgrades == [b"websocket"] and b"upgrade" in options:
            return _State.UPGRADED, 0, head
        # RFC 9110, section 7.8: a server may ignore any other, and llhttp would end the request after its head. The
        # HTTP client of the JDK offers h2c with each request.
        head = _UPGRADE.sub(b"", head)
    state, length = _body(_listed(found.get(b"transfer-encoding", [])), found.get(b"content-length", []))
    return state, length, head


def _listed(values: list[bytes]) -> list[bytes]:
    return [each.strip() for value in values for each in value.split(b",")]


def _body(codings: list[bytes], lengths: list[bytes]) -> tuple[_State, int]:
    """Return how a body is framed, and its length (RFC 9112, section 6.3)."""
    if codings:
        if codings[-1] != b"chunked" or lengths:
            raise _invalid(
                "The request has no Transfer-Encoding that ends with chunked, or a Content-Length too."
            )
        if len(codings) > 1:
            raise ApiError(
                501,
                "The server knows no Transfer-Encoding but chunked. Send the body uncompressed.",
                code="unsupported_transfer_encoding",
            )
        return _State.CHUNKED, 0
    if not lengths:
        return _State.HEAD, 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise _invalid("The request has no valid Content-Length.")
    length = int(lengths[0])
    return (_State.SIZED if length else _State.HEAD), length


def _check_lines(buffer: bytearray, size: int) -> int:
    """Return the number of line ends; each is CR and LF, or a client that sends others would wait until a timeout."""
    lines = buffer.count(b"\n", 0, size)
    if lines != buffer.count(b"\r\n", 0, size):
        raise _invalid("A line of the headers does not end with CR and LF.")
    return lines


def _invalid(problem: str) -> ApiError:
    return ApiError(400, f"The request is not valid HTTP/1.1. {problem}", code="invalid_http")


def _too_large(what: str, size: int) -> ApiError:
    return ApiError(
        431,
        f"The {what} of the request have more than {size} bytes or {MAX_HEADERS} lines.",
        code="headers_too_large",
    )

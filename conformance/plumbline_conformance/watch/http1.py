"""Parse HTTP/1.1 as far as needed to find the end of a message. No I/O.

The proxy forwards the bytes that it read; this parser only serves the recording, and finds the start of the
next message.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BodyFramer", "Malformed", "MessageHead", "bare", "body_of_request", "body_of_response"]

_LONGEST_LINE = 8192
_LONGEST_LENGTH = 18
"""Digits."""


class Malformed(Exception):  # noqa: N818 - the name describes the message
    """The bytes are not valid HTTP/1.1."""


class MessageHead:
    """The first line and the headers of a message."""

    def __init__(self, raw: bytes) -> None:
        if bare(raw):
            raise Malformed("a line that ends without a carriage return")
        self._lines = raw.removesuffix(b"\r\n\r\n").decode("latin-1").split("\r\n")
        self.first = self._lines[0].split(" ", 2)
        if len(self.first) < 2:
            raise Malformed(f"invalid first line: {self._lines[0][:80]!r}")
        self.headers: list[tuple[str, str]] = []
        for line in self._lines[1:]:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise Malformed(f"invalid header: {line[:80]!r}")
            # Strip only these: other characters that Python strips may be part of a UTF-8 character.
            self.headers.append((name, value.strip(" \t")))

    def get(self, name: str) -> str | None:
        """Return the first header of this name."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def has(self, name: str, word: str) -> bool:
        """Return whether a comma-separated header has this word."""
        values = [value for key, value in self.headers if key.lower() == name]
        return word in {part.strip().lower() for value in values for part in value.split(",")}

    @property
    def status(self) -> int:
        """The status of a response."""
        code = self.first[1]
        if not (len(code) == 3 and code.isascii() and code.isdigit()):
            raise Malformed(f"invalid status: {code[:20]!r}")
        return int(code)

    def encode(self, replaced: Sequence[tuple[str, str]] = (), target: str | None = None) -> bytes:
        """Return the bytes of the head, with these headers and the request target replaced."""
        values = {name.lower(): value for name, value in replaced}
        lines = [self._lines[0] if target is None else " ".join([self.first[0], target, *self.first[2:]])]
        for (name, _), line in zip(self.headers, self._lines[1:], strict=True):
            value = values.get(name.lower())
            lines.append(line if value is None else f"{name}: {value}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def bare(raw: bytes) -> bool:
    """Return whether a line of a head ends without a carriage return, which HTTP/1.1 forbids."""
    return raw.count(b"\n") != raw.count(b"\r\n")


class BodyFramer:
    """Find the end of a body: by length, by the last chunk, or by the end of the connection."""

    def __init__(self, *, length: int | None = None, chunked: bool = False) -> None:
        self._left = length
        self._chunked = chunked
        self._line = b""
        self._state = "size"
        self.done = length == 0 and not chunked
        self.until_close = length is None and not chunked

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Process received bytes; return their payload, and the bytes of the next message.

        Raises:
            Malformed: the chunked encoding is invalid.
        """
        if self.until_close:
            return data, b""
        if not self._chunked:
            assert self._left is not None
            taken, rest = data[: self._left], data[self._left :]
            self._left -= len(taken)
            self.done = not self._left
            return taken, rest
        payload: list[bytes] = []
        if self._state == "size" and not self._line:
            data = self._whole(data, payload)
        while data and not self.done:
            data = self._step(data, payload)
        return payload[0] if len(payload) == 1 else b"".join(payload), data

    def _whole(self, data: bytes, payload: list[bytes]) -> bytes:
        """Process complete chunks, as most events are, at once; return the rest."""
        place = 0
        while (end := data.find(b"\r\n", place)) > 0:
            try:
                size = int(data[place:end], 16)
            except ValueError:
                break
            stop = end + 2 + size
            if size <= 0 or data[stop : stop + 2] != b"\r\n":
                break
            payload.append(data[end + 2 : stop])
            place = stop + 2
        return data[place:]

    def _step(self, data: bytes, payload: list[bytes]) -> bytes:
        if self._state == "data":
            assert self._left is not None
            taken, rest = data[: self._left], data[self._left :]
            payload.append(taken)
            self._left -= len(taken)
            if not self._left:
                self._state = "end"
            return rest
        end = data.find(b"\n")
        self._line += data if end < 0 else data[:end]
        if len(self._line) > _LONGEST_LINE:
            raise Malformed("a chunk line without an end")
        if end < 0:
            return b""
        line, self._line = self._line.removesuffix(b"\r"), b""
        self._after(line)
        return data[end + 1 :]

    def _after(self, line: bytes) -> None:
        match self._state:
            case "size":
                digits = line.partition(b";")[0].strip()
                try:
                    self._left = int(digits, 16)
                except ValueError:
                    raise Malformed(f"invalid chunk size: {digits[:20]!r}") from None
                if self._left < 0:
                    raise Malformed("a negative chunk size")
                self._state = "data" if self._left else "trailers"
            case "end":
                if line:
                    raise Malformed("a chunk longer than its size")
                self._state = "size"
            case _:
                self.done = not line


def body_of_request(head: MessageHead) -> BodyFramer:
    """Return the body framing of a request; without a length it has no body."""
    if head.has("transfer-encoding", "chunked"):
        return BodyFramer(chunked=True)
    return BodyFramer(length=_length(head) or 0)


def body_of_response(head: MessageHead, method: str) -> BodyFramer:
    """Return the body framing of a response; without a length it ends with the connection."""
    if method == "HEAD" or head.status in (204, 304) or 100 <= head.status < 200:
        return BodyFramer(length=0)
    if head.has("transfer-encoding", "chunked"):
        return BodyFramer(chunked=True)
    return BodyFramer(length=_length(head))


def _length(head: MessageHead) -> int | None:
    value = head.get("content-length")
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < _LONGEST_LENGTH):
        raise Malformed(f"invalid length: {value[:20]!r}")
    return int(value)

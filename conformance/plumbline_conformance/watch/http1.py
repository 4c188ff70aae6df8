"""As much of HTTP/1.1 as it takes to know where a message ends. Without I/O: bytes in, payload out.

The proxy hands on the very bytes that it read; what is found here is only for the recording, and for knowing when the
next message begins.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Body", "Head", "Malformed", "body_of_request", "body_of_response"]

_LONGEST_LINE = 8192


class Malformed(Exception):  # noqa: N818 - it says what the message is
    """These bytes are no HTTP/1.1."""


class Head:
    """The first line and the headers of a message."""

    def __init__(self, raw: bytes) -> None:
        lines = raw.removesuffix(b"\r\n\r\n").decode("latin-1").split("\r\n")
        parts = lines[0].split(" ", 2)
        if len(parts) < 2:
            raise Malformed(f"no first line: {lines[0][:80]!r}")
        self.first = parts
        self.headers: list[tuple[str, str]] = []
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise Malformed(f"no header: {line[:80]!r}")
            self.headers.append((name, value.strip()))

    def get(self, name: str) -> str | None:
        """The first header of this name."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def has(self, name: str, word: str) -> bool:
        """Whether a comma-separated header has this word."""
        values = [value for key, value in self.headers if key.lower() == name]
        return word in {part.strip().lower() for value in values for part in value.split(",")}

    @property
    def status(self) -> int:
        """Of a response."""
        try:
            return int(self.first[1])
        except ValueError:
            raise Malformed(f"no status: {self.first[1][:20]!r}") from None

    def raw(self, replaced: Sequence[tuple[str, str]] = (), target: str | None = None) -> bytes:
        """The head again, with the values of some headers and the target of a request replaced."""
        values = {name.lower(): value for name, value in replaced}
        first = [self.first[0], target if target is not None else self.first[1], *self.first[2:]]
        lines = [" ".join(first)]
        lines += [f"{name}: {values.get(name.lower(), value)}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


class Body:
    """Where a body ends: after so many bytes, after its last chunk, or where the connection does."""

    def __init__(self, *, length: int | None = None, chunked: bool = False) -> None:
        self._left = length
        self._chunked = chunked
        self._line = b""
        self._state = "size"
        self.done = length == 0 and not chunked
        self.until_close = length is None and not chunked

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Take what was read; gives the payload in it, and what belongs to the next message.

        Raises:
            Malformed: the chunks are none.
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
        """Take the chunks that have come whole, as those of events nearly always do; gives the rest."""
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
            raise Malformed("a chunk without an end of its line")
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
                    raise Malformed(f"no size of a chunk: {digits[:20]!r}") from None
                if self._left < 0:
                    raise Malformed("a chunk of a negative size")
                self._state = "data" if self._left else "trailers"
            case "end":
                if line:
                    raise Malformed("a chunk that is longer than it says")
                self._state = "size"
            case _:
                self.done = not line


def body_of_request(head: Head) -> Body:
    """A request without a length has no body."""
    if head.has("transfer-encoding", "chunked"):
        return Body(chunked=True)
    return Body(length=_length(head) or 0)


def body_of_response(head: Head, method: str) -> Body:
    """A response without a length ends with its connection."""
    if method == "HEAD" or head.status in (204, 304) or 100 <= head.status < 200:
        return Body(length=0)
    if head.has("transfer-encoding", "chunked"):
        return Body(chunked=True)
    return Body(length=_length(head))


def _length(head: Head) -> int | None:
    value = head.get("content-length")
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()):
        raise Malformed(f"no length: {value[:20]!r}")
    return int(value)

"""Track one exchange: find the ends of its messages and keep a bounded copy. No I/O.

This does not affect forwarding: if the bytes are not valid HTTP/1.1, the copy ends with the reason, and the bytes are
still forwarded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from plumbline_conformance.client.compression import Unpacked
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.watch.http1 import (
    BodyFramer,
    Malformed,
    MessageHead,
    bare,
    body_of_request,
    body_of_response,
)

__all__ = ["LONGEST_HEAD", "WatchedTurn"]

LONGEST_HEAD = 64 * 1024
"""Bytes; more than servers accept as the head of a message."""


class WatchedTurn:
    """Collect a request and its response.

    Args:
        head: the head of the request.
        url: the URL that it is forwarded to.
        keep: maximum bytes to keep of the request's body and of the response's.

    Raises:
        Malformed: the request is not HTTP/1.1, or has no valid length.
    """

    def __init__(self, head: MessageHead, url: str, keep: int) -> None:
        if not head.first[-1].startswith("HTTP/1."):
            raise Malformed(f"not an HTTP/1.1 request: {head.first[-1][:20]!r}")
        self.exchange = Exchange(
            method=head.first[0], url=url, request_headers=_by_name(head.headers), request_body=b""
        )
        self._began = time.monotonic()
        self._keep = keep
        self._last = head.has("connection", "close")
        self._request_framing = body_of_request(head)
        self._request = Unpacked(_coding(head), keep)
        self._request_pieces: list[bytes] = []
        # Two lists instead of pairs, which the garbage collector would traverse while all traffic waits.
        self._moments: list[float] = []
        self._contents: list[bytes] = []
        self._head = b""
        self._body: BodyFramer | None = None
        self._response: Unpacked | None = None
        self.opaque = False
        """Whether the connection is no longer HTTP, in both directions."""

    @property
    def request_sent(self) -> bool:
        """Whether the request has been sent completely."""
        return self._request_framing.done

    @property
    def done(self) -> bool:
        """Whether the response has arrived completely."""
        return self._body is not None and self._body.done

    @property
    def last(self) -> bool:
        """Whether the connection must end after the response."""
        return self._last

    def ask(self, data: bytes) -> bytes:
        """Process bytes of the client; return the bytes of its next request."""
        try:
            payload, rest = self._request_framing.feed(data)
        except Malformed as error:
            self._give_up(f"the request: {error}")
            return b""
        if payload and (content := self._request.feed(payload)):
            self._request_pieces.append(content)
        return rest

    def answer(self, data: bytes) -> None:
        """Process bytes of the server."""
        if self.opaque:
            return
        if self._body is None:
            self._head += data
            data = self._heads()
        if self._body is None or self._response is None:
            return
        try:
            payload, _ = self._body.feed(data)
        except Malformed as error:
            self._give_up(str(error))
            return
        if payload and not self._response.ended:
            self._keep_answer(self._response, payload)

    def _keep_answer(self, answered: Unpacked, payload: bytes) -> None:
        # Truncate to microseconds; `round` would take longer than everything else here.
        moment = int(1e6 * (time.monotonic() - self._began)) / 1e6
        if answered.packed:
            answered.keep(self.exchange, moment, payload)
        elif content := answered.feed(payload):
            self._moments.append(moment)
            self._contents.append(content)

    def _heads(self) -> bytes:
        """Read the complete heads, all but the last of which are interim; return the start of the body."""
        while not self.opaque:
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if not end:
                if len(head) > LONGEST_HEAD or bare(head):
                    self._give_up("a response without an end of its head")
                break
            self._head = rest
            try:
                if self._begins(MessageHead(head + end)):
                    self._head = b""
                    return rest
            except Malformed as error:
                self._give_up(str(error))
        return b""

    def _begins(self, head: MessageHead) -> bool:
        """Process a head; return whether a body follows, even an empty one."""
        if head.status == 101:
            self.exchange.status = 101
            self._give_up("upgraded: not judged")
            return False
        if head.status < 200:
            return False
        self.exchange.status = head.status
        self.exchange.headers = head.headers
        if self.exchange.method == "CONNECT" and head.status < 300:
            self._give_up("a tunnel: not judged")
            return False
        self._body = body_of_response(head, self.exchange.method)
        self._response = Unpacked(_coding(head), self._keep)
        old = head.first[0] == "HTTP/1.0" and not head.has("connection", "keep-alive")
        self._last = self._last or old or self._body.until_close or head.has("connection", "close")
        return True

    def _give_up(self, why: str) -> None:
        self.opaque = True
        self.exchange.error = self.exchange.error or why

    def end(self, why: str | None = None, *, closed: bool = False) -> Exchange:
        """End the exchange and return it.

        Args:
            why: the reason why the connections ended before the end of the response.
            closed: whether the server closed its connection cleanly, which ends some responses.
        """
        exchange = self.exchange
        exchange.request_body = b"".join(self._request_pieces)
        exchange.frames += zip(self._moments, self._contents, strict=True)
        whole = self.done or (closed and self._body is not None and self._body.until_close)
        if not whole:
            exchange.error = exchange.error or why
        if self._response is not None:
            self._response.settle(exchange)
            exchange.error = exchange.error or self._response.why
        if self._request.why is not None:
            exchange.error = exchange.error or f"the request: {self._request.why}"
        if not self.request_sent:
            exchange.error = exchange.error or "the server answered before the request was complete"
        return exchange


def _coding(head: MessageHead) -> str | None:
    """Return the coding of a body; a transfer coding such as gzip is returned as unsupported."""
    codings = [value for name, value in head.headers if name.lower() == "transfer-encoding"]
    found = [part.strip().lower() for value in codings for part in value.split(",")]
    packed = [part for part in found if part not in ("", "chunked", "identity")]
    return f"{packed[0]} in transfer" if packed else head.get("content-encoding")


def _by_name(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the headers as a dictionary, joining repeated ones."""
    found: dict[str, str] = {}
    known: dict[str, str] = {}
    for name, value in headers:
        first = known.setdefault(name.lower(), name)
        between = "; " if name.lower() == "cookie" else ", "
        found[first] = value if first not in found else found[first] + between + value
    return found

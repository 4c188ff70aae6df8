"""Serve recorded answers on loopback: the same status, headers and frames, without delays.

It speaks just enough HTTP/1.1 for one request per connection. The connection ends a whole body; a body that was cut
when it was recorded is sent in chunked encoding without its last chunk.
"""

from __future__ import annotations

import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["Replay", "replaying"]

_FRAMING = {"connection", "content-encoding", "content-length", "keep-alive", "trailer", "transfer-encoding"}
"""Headers about the recorded transport, which the replay does not repeat. Recorded frames are decompressed."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_SECONDS = 10.0
"""Seconds that a client may take to send its request."""
_MOST_HEAD = 64 * 1024


class Replay:
    """The exchange to answer with, and how many requests came for it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._exchange: Exchange | None = None
        self.asked = 0
        """Requests since the exchange was chosen."""

    def choose(self, exchange: Exchange) -> str:
        """Answer with this exchange from now on; return the base URL."""
        self._exchange, self.asked = exchange, 0
        return f"http://127.0.0.1:{self._port}/v1"

    def parts(self) -> Iterator[bytes]:
        """Yield the bytes of the answer."""
        exchange = self._exchange
        assert exchange is not None
        self.asked += 1
        cut = exchange.error is not None
        yield _head(exchange, cut)
        for _, frame in exchange.frames:
            if frame:
                yield b"%x\r\n%b\r\n" % (len(frame), frame) if cut else frame


def _head(exchange: Exchange, cut: bool) -> bytes:
    lines = [f"HTTP/1.1 {exchange.status} Recorded", "connection: close"]
    lines += ["transfer-encoding: chunked"] if cut else []
    lines += [
        f"{name}: {value.strip()}"
        for name, value in exchange.headers
        if name.lower() not in _FRAMING and _TOKEN.fullmatch(name) and _VALUE.fullmatch(value)
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "replace")


class _Handler(socketserver.StreamRequestHandler):
    timeout = _SECONDS
    server: _Server

    def handle(self) -> None:
        """Read any request and send the chosen answer."""
        with suppress(OSError, ValueError):
            length, read = 0, 0
            while (line := self.rfile.readline(_MOST_HEAD)).strip():
                read += len(line)
                if read > _MOST_HEAD:
                    return
                name, _, value = line.partition(b":")
                if name.strip().lower() == b"content-length":
                    length = int(value)
            while length > 0 and (part := self.rfile.read(min(length, 1 << 20))):
                length -= len(part)
            for part in self.server.replay.parts():
                self.wfile.write(part)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    replay: Replay


@contextmanager
def replaying() -> Iterator[Replay]:
    """Run the server until the block ends."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.replay = Replay(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.replay
        finally:
            server.shutdown()
            thread.join()

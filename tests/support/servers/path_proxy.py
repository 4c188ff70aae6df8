"""A proxy that serves a server below a path, as operators put one beside other things."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from support.servers.live import Live

__all__ = ["below_a_path"]


@contextmanager
def below_a_path(prefix: str, server: Live) -> Iterator[int]:
    """Serve `server` below `prefix` while the block runs; yields the port. Each answer closes its connection."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def _pass_on(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            kept = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            connection.request(self.command, self.path.removeprefix(prefix), body, kept)
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            while part := answer.read1(65536):
                self.wfile.write(part)
                self.wfile.flush()
            connection.close()

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy.server_address[1]
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()

"""Run the MCP server that a judged server may call (`check --mcp HOST:PORT`).

It speaks streamable HTTP without sessions, as the specification of MCP allows: each request of JSON-RPC has one answer
as JSON. Its results depend on the arguments alone, so a recording can be judged without this server.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from plumbline_conformance.checks.tools import MCP_PATH, MCP_TOOLS, mcp_result
from plumbline_conformance.suite.scenario import Target

__all__ = ["mcp_server"]

_NEWEST = "2025-06-18"
_VERSIONS = ("2025-11-25", _NEWEST, "2025-03-26")
_NO_METHOD = -32601
_LONGEST = 1 << 20
"""Bytes of a request."""
Json = dict[str, Any]


@contextmanager
def mcp_server(target: Target) -> Iterator[None]:
    """Serve at the address of the target, if it has one, until the block ends.

    Raises:
        OSError: the address is in use or not of this machine.
    """
    if target.mcp is None:
        yield
        return
    host, _, port = target.mcp.rpartition(":")
    try:
        server = (_IPv6Server if ":" in host else _Server)((host.strip("[]"), int(port)), _Handler)
    except OSError as error:
        raise OSError(f"no MCP server can listen at {target.mcp} (--mcp): {error.strerror}") from None
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # A judged server may keep its connections open.


class _IPv6Server(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_POST(self) -> None:
        text = self._body()
        if self.path != MCP_PATH:
            self._answer(404, None)
            return
        try:
            message = json.loads(text)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            self._answer(400, None)
        elif "id" not in message:
            self._answer(202, None)
        else:
            self._answer(200, {"jsonrpc": "2.0", "id": message["id"], **_answered(message)})

    def do_GET(self) -> None:
        self._answer(405, None)  # The server never begins a message.

    def do_DELETE(self) -> None:
        self._answer(405, None)  # There are no sessions to end.

    def _body(self) -> bytes:
        """Return the body of the request; empty if it cannot be read, and then the connection ends.

        A body is read whatever the answer is: a client that keeps its connection would else get an answer to the body
        of a refused request (`/not-there`, by which scenarios ask for a lost server) in place of its next one.
        """
        length = self.headers.get("content-length") or ""
        if length.isascii() and length.isdigit() and int(length) <= _LONGEST:
            return self.rfile.read(int(length))
        self.close_connection = True
        return b""

    def _answer(self, status: int, value: Json | None) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        if value is not None:
            self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def _answered(message: Json) -> Json:
    """Return the result or the error of a request."""
    found = message.get("params")
    params: Json = found if isinstance(found, dict) else {}
    match message.get("method"):
        case "initialize":
            wanted = params.get("protocolVersion")
            version = wanted if wanted in _VERSIONS else _NEWEST
            server = {"name": "plumbline", "version": "1"}
            return {
                "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
            }
        case "ping":
            return {"result": {}}
        case "tools/list":
            return {"result": {"tools": MCP_TOOLS}}
        case "tools/call":
            given = params.get("arguments")
            text, failed = mcp_result(str(params.get("name")), given if isinstance(given, dict) else {})
            return {"result": {"content": [{"type": "text", "text": text}], "isError": failed}}
    return {"error": {"code": _NO_METHOD, "message": "there is no such method"}}

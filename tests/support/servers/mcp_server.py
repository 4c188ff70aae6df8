"""An MCP server of the official SDK on loopback, for tests."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

__all__ = ["McpHost", "running_mcp_server"]


class McpHost:
    """A running MCP server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.calls: list[tuple[str, dict[str, Any]]] = []
        """The calls that it was asked for."""
        self.headers: list[dict[str, str]] = []
        """The headers of all requests."""
        self.methods: list[str] = []
        self.delay = 0.0
        """Seconds that the tool `slow` takes."""

    @property
    def host(self) -> str:
        """What `--allow-mcp` has to name."""
        return f"127.0.0.1:{self.port}"

    def tool(self, **fields: Any) -> dict[str, Any]:
        """Return the tool of a request for this server."""
        return {
            "type": "mcp",
            "server_label": "box",
            "server_url": f"http://{self.host}/mcp",
            "require_approval": "never",
            **fields,
        }


@asynccontextmanager
async def running_mcp_server() -> AsyncIterator[McpHost]:
    """Run a server with a few tools."""
    listener = socket.create_server(("127.0.0.1", 0))
    found = McpHost(listener.getsockname()[1])
    root = logging.getLogger()
    handlers = list(root.handlers)
    server = MCPServer("box", log_level="CRITICAL")
    root.handlers[:] = handlers  # The SDK adds one.

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        found.calls.append(("add", {"a": a, "b": b}))
        return str(a + b)

    @server.tool()
    def fail(reason: str) -> str:
        """Fail."""
        found.calls.append(("fail", {"reason": reason}))
        raise ToolError(reason)

    @server.tool()
    def long(size: int) -> str:
        """Return a long text."""
        found.calls.append(("long", {"size": size}))
        return "x" * size

    @server.tool()
    async def slow() -> str:
        """Take a while."""
        found.calls.append(("slow", {}))
        await asyncio.sleep(found.delay)
        return "done"

    @server.tool()
    def secrets() -> str:
        """Return the headers that came last."""
        found.calls.append(("secrets", {}))
        return str(found.headers[-1])

    app = server.streamable_http_app()

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            found.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
            found.methods.append(scope["method"])
        await app(scope, receive, send)

    config = uvicorn.Config(watched, log_level="critical", lifespan="on")
    running = uvicorn.Server(config)
    running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(running.serve(sockets=[listener]))
    while not running.started:
        await asyncio.sleep(0.01)
    try:
        yield found
    finally:
        running.should_exit = True
        await task
        listener.close()

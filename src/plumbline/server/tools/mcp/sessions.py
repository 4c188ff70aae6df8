"""Keep one session with each MCP server of an answer, list its tools and call them.

The SDK's sessions belong to the task that opened them, and the steps of an answer run in different tasks. So each
session has a task of its own, which does one thing after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import httpx2
import msgspec
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from plumbline.answer.remote_tools import RemoteError, RemoteResult, RemoteServer, RemoteTool
from plumbline.answer.structured_output.schema_repair import repaired
from plumbline.server.addresses import Resolver
from plumbline.server.tools.mcp.hosts import AllowedHosts
from plumbline.server.tools.mcp.results import Redaction, read_result, read_tool
from plumbline.server.tools.mcp.transport import MAX_BYTES, PinnedTransport, http_client
from plumbline.server.tools.port import RemoteFailureError

__all__ = ["MAX_LIST_BYTES", "MAX_TOOLS", "McpCaller", "McpLimits"]

MAX_TOOLS = 512
"""Tools of one MCP server."""
MAX_LIST_BYTES = 1024 * 1024
"""Bytes of these tools as JSON. A request with the most servers can then be continued (`MAX_CONTEXT_BYTES`)."""
_MAX_PAGES = 64
_MAX_CANCELS = 3
_INTERNAL_ERROR = -32603

_log = logging.getLogger("plumbline.tools")

T = TypeVar("T")


class McpLimits(msgspec.Struct, frozen=True):
    """How long an MCP server may take, in seconds."""

    connect: float = 10.0
    listing: float = 30.0
    """Connecting and listing all tools."""
    call: float = 120.0
    close: float = 2.0


class McpCaller:
    """Lists and calls the tools of MCP servers.

    Args:
        hosts: the hosts that may be called.
        limits: the time limits.
    """

    def __init__(self, hosts: AllowedHosts, limits: McpLimits | None = None) -> None:
        self._hosts = hosts
        self._resolver = Resolver(hosts.connects)
        self._limits = limits or McpLimits()
        self._closing: set[asyncio.Task[None]] = set()
        for name in ("mcp", "httpx2", "httpcore2"):
            # They log URLs and what servers send, which may be credentials. All failures become errors of items.
            logging.getLogger(name).setLevel(logging.CRITICAL)

    @asynccontextmanager
    async def sessions(self) -> AsyncIterator[McpSessions]:
        """Open sessions as they are needed, and close them at the end."""
        found = McpSessions(self._hosts, self._resolver, self._limits)
        try:
            yield found
        finally:
            # The task of a request that is cancelled cannot wait for anything, so another one closes the sessions.
            closing = asyncio.create_task(found.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            await asyncio.shield(closing)


class McpSessions:
    """The sessions of one answer."""

    def __init__(self, hosts: AllowedHosts, resolver: Resolver, limits: McpLimits) -> None:
        self._hosts = hosts
        self._resolver = resolver
        self._limits = limits
        self._sessions: dict[str, _Session] = {}

    async def tools(self, server: RemoteServer) -> tuple[RemoteTool, ...]:
        """List the tools of a server that the request allows.

        Raises:
            RemoteFailureError: it does not answer in time, or its list is too long or wrong.
        """
        redaction = Redaction(server)
        found: list[RemoteTool] = []

        async def work(client: Client) -> None:
            cursor: str | None = None
            for _ in range(_MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                read = (read_tool(tool, redaction) for tool in page.tools)
                found.extend(tool for tool in read if server.allowed.matches(tool))
                _check_size(found)
                cursor = page.next_cursor
                if cursor is None:
                    return
            raise _wrong(f"The list of tools has more than {_MAX_PAGES} pages.")

        await self._session(server).do(work, self._limits.listing)
        return tuple(map(_checked, found))

    async def call(self, server: RemoteServer, name: str, arguments: dict[str, Any]) -> RemoteResult:
        """Call a tool. A failure of any kind is also a result."""
        redaction = Redaction(server)

        async def work(client: Client) -> RemoteResult:
            return read_result(await client.call_tool(name, arguments), redaction)

        try:
            return await self._session(server).do(work, self._limits.call)
        except RemoteFailureError as failure:
            return RemoteResult(error=failure.error)

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(session.close() for session in self._sessions.values()))

    def _session(self, server: RemoteServer) -> _Session:
        found = self._sessions.get(server.label)
        if found is None or found.ended:
            found = _Session(server, self._hosts, self._resolver, self._limits)
            self._sessions[server.label] = found
        return found


class _Session:
    """One session, in a task of its own."""

    def __init__(
        self, server: RemoteServer, hosts: AllowedHosts, resolver: Resolver, limits: McpLimits
    ) -> None:
        self._server = server
        self._limits = limits
        self._transport = PinnedTransport(hosts, resolver, limits.connect, max(limits.listing, limits.call))
        self._inbox: asyncio.Queue[tuple[Callable[[Client], Awaitable[Any]], asyncio.Future[Any]] | None]
        self._inbox = asyncio.Queue()
        self._busy = True
        """Whether the task does something; it begins with connecting."""
        self._task = asyncio.create_task(self._run())

    @property
    def ended(self) -> bool:
        """Whether the session cannot be used any more."""
        return self._task.done()

    async def do(self, work: Callable[[Client], Awaitable[T]], seconds: float) -> T:
        """Let the session's task do something.

        Raises:
            RemoteFailureError: it failed, or took longer than these seconds. Then the session has ended.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((work, answer))
        try:
            waited: set[asyncio.Future[Any]] = {answer, self._task}
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if self._task.done():
                raise self._task.exception() or RuntimeError("the session ended")
        except Exception as error:
            failure = self._failure(error)
            # What went wrong in words is for the client: it may have what users wrote.
            _log.warning("An MCP server failed: %s error %d", failure.error.kind, failure.error.code)
            raise failure from None  # The cause may have credentials in its text.
        finally:
            answer.cancel()
        await self._cancel()
        _log.warning("An MCP server did not answer within %g seconds", seconds)
        raise RemoteFailureError(
            RemoteError("http", self._sentence(f"did not answer within {seconds:g} seconds"), 504)
        )

    async def close(self) -> None:
        """End the session, and let the server know unless it is busy or that takes too long."""
        if not self._busy:
            self._inbox.put_nowait(None)
            await asyncio.wait({self._task}, timeout=self._limits.close)
        await self._cancel()

    async def _cancel(self) -> None:
        for _ in range(_MAX_CANCELS):  # The first one may only begin the end of the session with the server.
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=self._limits.close)
            if self._task.done():
                break

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(http_client(self._server, self._transport))
            streams = streamable_http_client(self._server.url, http_client=http, max_sse_event_size=MAX_BYTES)
            client = await stack.enter_async_context(Client(streams, cache=None))
            while (item := await self._next()) is not None:
                work, answer = item
                try:
                    result = await work(client)
                except Exception as error:
                    if not answer.done():
                        answer.set_exception(error)
                else:
                    if not answer.done():
                        answer.set_result(result)

    async def _next(self) -> tuple[Callable[[Client], Awaitable[Any]], asyncio.Future[Any]] | None:
        self._busy = False
        item = await self._inbox.get()
        self._busy = True
        return item

    def _failure(self, error: BaseException) -> RemoteFailureError:
        """Return the failure for an exception, in words that have no credentials."""
        if isinstance(error, RemoteFailureError):
            return error
        if self._transport.problem is not None:
            return RemoteFailureError(RemoteError("http", self._sentence(self._transport.problem), 502))
        causes = list(_causes(error))
        refusal = next((cause for cause in causes if isinstance(cause, MCPError)), None)
        reason = "" if refusal is None else Redaction(self._server).text(refusal.error.message)
        status = self._transport.status
        if 300 <= status < 400:  # The reason has the place, which may be a credential.
            text = self._sentence(
                f"answered with status {status}: it leads to another place. Name that one instead"
            )
            return RemoteFailureError(RemoteError("http", text, status))
        if status >= 400:
            text = self._sentence(f"answered with status {status}") + (f" {reason}" if reason else "")
            return RemoteFailureError(RemoteError("http", text, status))
        if refusal is not None:
            return RemoteFailureError(RemoteError("protocol", reason, refusal.error.code))
        if any(isinstance(cause, httpx2.HTTPError | OSError) for cause in causes):
            return RemoteFailureError(RemoteError("http", self._sentence("cannot be reached"), 502))
        text = self._sentence("answered with what the protocol does not define")
        return RemoteFailureError(RemoteError("protocol", text, _INTERNAL_ERROR))

    def _sentence(self, problem: str) -> str:
        return f"The MCP server '{self._server.label}' {problem}."


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, and those that it stands for."""
    yield error
    for one in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _causes(one)


def _check_size(tools: list[RemoteTool]) -> None:
    if len(tools) > MAX_TOOLS or len(msgspec.json.encode(tools)) > MAX_LIST_BYTES:
        raise _wrong(
            f"The list has more than {MAX_TOOLS} tools or {MAX_LIST_BYTES} bytes. Name those that are needed in "
            "'allowed_tools'."
        )


def _checked(tool: RemoteTool) -> RemoteTool:
    schema, violation = repaired(tool.input_schema)
    if violation is not None:
        raise _wrong(
            f"The input schema of the tool '{tool.name}' is wrong: {violation}. Leave the tool out with "
            "'allowed_tools'."
        )
    return tool if schema is tool.input_schema else msgspec.structs.replace(tool, input_schema=schema)


def _wrong(text: str) -> RemoteFailureError:
    return RemoteFailureError(RemoteError("protocol", text, _INTERNAL_ERROR))

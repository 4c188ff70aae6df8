"""Define how the rounds of an answer reach the tools of remote servers."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from plumbline.answer.remote_tools import RemoteError, RemoteResult, RemoteServer, RemoteTool

__all__ = ["RemoteCaller", "RemoteFailureError", "RemoteSessions"]


class RemoteFailureError(Exception):
    """A remote server cannot be used; `error` is fit for the client."""

    def __init__(self, error: RemoteError) -> None:
        super().__init__(error.message)
        self.error = error


class RemoteSessions(Protocol):
    """The connections of one answer to remote servers."""

    async def tools(self, server: RemoteServer) -> tuple[RemoteTool, ...]:
        """List the tools of a server that the request allows.

        Raises:
            RemoteFailureError: there is no list.
        """
        ...

    async def call(self, server: RemoteServer, name: str, arguments: dict[str, Any]) -> RemoteResult:
        """Call a tool. A failure is also a result."""
        ...


class RemoteCaller(Protocol):
    """Opens connections to remote servers."""

    def sessions(self) -> AbstractAsyncContextManager[RemoteSessions]:
        """Return the connections of one answer; they are closed at the end."""
        ...

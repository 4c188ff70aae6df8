"""Decide which MCP servers requests may use, and give access to them (`--allow-mcp`)."""

from __future__ import annotations

from urllib.parse import urlsplit

from plumbline.answer.remote_tools import RemoteTools
from plumbline.contract.wire.errors import invalid_request
from plumbline.server.settings import Settings
from plumbline.server.tools.mcp.hosts import AllowedHosts
from plumbline.server.tools.port import RemoteCaller

__all__ = ["RemoteAccess"]


class RemoteAccess:
    """The MCP servers that requests may use."""

    def __init__(self, settings: Settings) -> None:
        self._hosts = AllowedHosts(settings.allow_mcp)
        self._caller = self._built()

    @property
    def caller(self) -> RemoteCaller:
        """The client that calls the servers which `check` accepted."""
        assert self._caller is not None
        return self._caller

    def _built(self) -> RemoteCaller | None:
        if not self._hosts:
            return None
        # Importing the client takes half a second, which a server without MCP does not pay.
        from plumbline.server.tools.mcp.sessions import McpCaller

        return McpCaller(self._hosts)

    def check(self, remote: RemoteTools) -> None:
        """Refuse servers that are not allowed (TOOL-21).

        Raises:
            ApiError: 400 naming the field and the option.
        """
        for server in remote.servers:
            if not self._hosts.allows(server.url):
                host = urlsplit(server.url).netloc  # It has no user and no password.
                field = f"{server.field}.server_url"
                raise invalid_request(
                    f"'{field}' names the host '{host}', whose MCP servers this server does not call. Whoever runs it "
                    f"can allow that with --allow-mcp {host}.",
                    field,
                    "unsupported_value",
                )

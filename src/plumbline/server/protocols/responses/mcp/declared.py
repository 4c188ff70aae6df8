"""Read the MCP servers of a request (TOOL-21)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from plumbline.answer.remote_tools import ANY_TOOL, RemoteServer, ToolFilter, shown_name
from plumbline.answer.turn import ToolChoice
from plumbline.contract._generated.tools import MCPTool, MCPToolApprovalFilter, MCPToolFilter
from plumbline.contract.wire.errors import (
    invalid_request,
    missing_required_parameter,
    unsupported_parameter,
    unsupported_value,
)
from plumbline.server.protocols.common.fields import given, or_default
from plumbline.server.protocols.common.tools.tool_choice import check_names
from plumbline.server.protocols.responses.client_tools.search import shows_at_once

__all__ = ["MAX_SERVERS", "public_url", "read_servers", "remote_choice"]

MAX_SERVERS = 16
"""MCP servers of one request."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OWN_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "last-event-id",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that the server sets itself. With `host` a client could reach other hosts of the same address."""


def read_servers(tools: Sequence[Any]) -> tuple[RemoteServer, ...]:
    """Return the MCP servers among the tools of a request.

    Raises:
        ApiError: 400 naming the field of a server that is not described well, or of what this server does not support.
    """
    at_once = shows_at_once(tools)
    found = [
        _server(tool, f"tools[{index}]", at_once)
        for index, tool in enumerate(tools)
        if isinstance(tool, MCPTool)
    ]
    if len(found) > MAX_SERVERS:
        raise invalid_request(
            f"'tools' has {len(found)} MCP servers; this server uses at most {MAX_SERVERS} in one request.",
            "tools",
        )
    check_names([(server.label, f"{server.field}.server_label") for server in found])
    return tuple(found)


def remote_choice(
    entries: Sequence[tuple[str, Mapping[str, Any]]], servers: Sequence[RemoteServer], choice: ToolChoice
) -> ToolChoice:
    """Add tools of MCP servers to those that a choice names.

    Args:
        entries: the members `server_label` and `name` of each tool, with its field in the request.
        servers: the servers of the request.
        choice: the choice among other tools.

    Raises:
        ApiError: 400 for a server that the request does not have (TOOL-08).
    """
    labels = {server.label for server in servers}
    names, all_of = list(choice.names or ()), []
    for where, entry in entries:
        label, name = entry.get("server_label"), entry.get("name")
        if label not in labels:
            raise invalid_request(
                f"'{where}' names the MCP server '{label}', which is not in 'tools'.", where
            )
        if isinstance(name, str):
            names.append(shown_name(label, name))
        else:
            all_of.append(label)
    return replace(choice, names=tuple(names), servers=tuple(all_of))


def public_url(url: str) -> str:
    """Return a URL as a response shows it: without its path and query, which may be a credential."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _server(tool: MCPTool, where: str, at_once: bool) -> RemoteServer:
    for name in ("connector_id", "tunnel_id"):
        if given(getattr(tool, name)):
            raise unsupported_parameter(
                f"{where}.{name}",
                "is not supported: it belongs to OpenAI's service. Send 'server_url' instead",
            )
    if tool.defer_loading is True and not at_once:
        reason = "needs a 'tool_search' without 'execution: client', which shows the tools at once"
        raise unsupported_value(f"{where}.defer_loading", True, reason)
    callers = or_default(tool.allowed_callers, None)
    if callers is not None and "direct" not in callers:
        raise unsupported_value(f"{where}.allowed_callers", callers, "must contain 'direct'")
    if not tool.server_label:
        raise invalid_request(
            f"'{where}.server_label' must not be empty.", f"{where}.server_label", "invalid_value"
        )
    always, never = _approval(or_default(tool.require_approval, None))
    return RemoteServer(
        label=tool.server_label,
        url=_url(tool, where),
        headers=dict(_headers(tool, where)),
        description=or_default(tool.server_description, None),
        allowed=_filter(or_default(tool.allowed_tools, None)),
        always=always,
        never=never,
        field=where,
    )


def _url(tool: MCPTool, where: str) -> str:
    url = or_default(tool.server_url, None)
    if url is None:
        raise missing_required_parameter(f"{where}.server_url")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = parts = None
    if parts is None or not host or parts.scheme not in ("http", "https") or not url.isascii():
        reason = "it must be a URL with http or https and a host"
    elif "@" in parts.netloc:
        reason = "it must not have a user or a password. Send them in 'authorization' or 'headers'"
    elif any(char <= " " or char == "\x7f" for char in url):
        reason = "it must not have spaces or control characters"
    else:
        return url.partition("#")[0]
    field = f"{where}.server_url"
    raise invalid_request(
        f"Invalid '{field}': {reason}.", field, "invalid_value"
    )  # The URL may be a credential.


def _headers(tool: MCPTool, where: str) -> Iterator[tuple[str, str]]:
    """Yield the headers for a server, with the token among them."""
    given_headers = or_default(tool.headers, None) or {}
    names = {name.lower() for name in given_headers}
    token = or_default(tool.authorization, None)
    if token is not None and "authorization" in names:
        raise invalid_request(
            f"Mutually exclusive parameters: '{where}.authorization' and the header 'Authorization' of "
            f"'{where}.headers'. Send one of them.",
            f"{where}.authorization",
            "mutually_exclusive_parameters",
        )
    if token is not None and not _HEADER_VALUE.fullmatch(token):
        raise _no_header(f"{where}.authorization", "it cannot be sent in a header")
    if len(names) < len(given_headers):
        raise _no_header(f"{where}.headers", "two headers have the same name")
    for name, value in given_headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise _no_header(f"{where}.headers", "a name or a value cannot be sent in a header")
        if name.lower() in _OWN_HEADERS or name.lower().startswith(("mcp-", "proxy-")):
            raise _no_header(f"{where}.headers", f"the server sets the header '{name}' itself")
        yield name.lower(), value
    if token is not None:
        yield "authorization", f"Bearer {token}"


def _no_header(field: str, reason: str) -> Exception:
    return invalid_request(f"Invalid '{field}': {reason}.", field, "invalid_value")


def _filter(value: list[str] | MCPToolFilter | None) -> ToolFilter:
    if value is None:
        return ANY_TOOL
    if isinstance(value, list):
        return ToolFilter(frozenset(value))
    names = or_default(value.tool_names, None)
    return ToolFilter(None if names is None else frozenset(names), or_default(value.read_only, None))


def _approval(value: str | MCPToolApprovalFilter | None) -> tuple[ToolFilter | None, ToolFilter | None]:
    """Return which tools always need approval, and which never do; by default all do."""
    if value is None or value == "always":
        return ANY_TOOL, None
    if isinstance(value, str):
        return None, ANY_TOOL
    always, never = or_default(value.always, None), or_default(value.never, None)
    return None if always is None else _filter(always), None if never is None else _filter(never)

"""Define the tools of remote servers, independent of any API and of the protocol that calls them.

The server calls these tools itself, for the model. Today MCP servers have such tools (`plumbline.server.tools.mcp`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

__all__ = [
    "ANY_TOOL",
    "ApprovedCall",
    "Offered",
    "RemoteError",
    "RemoteResult",
    "RemoteServer",
    "RemoteTool",
    "RemoteTools",
    "ToolFilter",
    "approval_text",
    "content_text",
    "offered_tools",
    "result_text",
    "shown_name",
]

_LONGEST_NAME = 64
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_DIGEST = 8


class RemoteTool(msgspec.Struct, frozen=True, array_like=True):
    """A tool as its server describes it."""

    name: str
    description: str | None
    input_schema: dict[str, Any]
    annotations: dict[str, Any] | None = None

    @property
    def read_only(self) -> bool:
        """Whether its annotations declare it read-only."""
        return self.annotations is not None and self.annotations.get("readOnlyHint") is True


class ToolFilter(msgspec.Struct, frozen=True):
    """Chooses tools: those that meet every member that is set."""

    names: frozenset[str] | None = None
    read_only: bool | None = None

    def matches(self, tool: RemoteTool) -> bool:
        """Return whether a tool is chosen."""
        return (self.names is None or tool.name in self.names) and self.read_only in (None, tool.read_only)


ANY_TOOL = ToolFilter()


class RemoteServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server with tools, as a request names it."""

    label: str
    url: str
    """With the scheme http or https, and without a user or password."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Sent with every request to it; they may be credentials."""
    description: str | None = None
    allowed: ToolFilter = ANY_TOOL
    """The tools that the model sees."""
    always: ToolFilter | None = None
    """The tools that need approval."""
    never: ToolFilter | None = None
    """The tools that need none."""
    field: str
    """Its field in the request, for errors."""

    def __repr__(self) -> str:
        """Leave out what may be a credential, because logs show representations."""
        return f"RemoteServer(label={self.label!r})"

    def needs_approval(self, tool: RemoteTool) -> bool:
        """Return whether a call of a tool needs approval: it does unless the request says otherwise."""
        if self.always is not None and self.always.matches(tool):
            return True
        if self.never is not None:
            return not self.never.matches(tool)
        return self.always is None


class RemoteError(msgspec.Struct, frozen=True, array_like=True):
    """Why a call failed."""

    kind: Literal["protocol", "tool", "http"]
    """The server refused the call, the tool failed, or the server was not reached."""
    message: str
    code: int = 0
    """The code of JSON-RPC or the HTTP status; 0 if the tool failed."""
    content: Any = None
    """The content that a failed tool returned."""


class RemoteResult(msgspec.Struct, frozen=True):
    """The result of a call: text, or an error."""

    output: str | None = None
    error: RemoteError | None = None


class ApprovedCall(msgspec.Struct, frozen=True):
    """A call that the client has approved and that has not been made."""

    server: str
    name: str
    arguments: str
    approval_id: str


class RemoteTools(msgspec.Struct, frozen=True, kw_only=True):
    """The remote servers of a request, with the state of their tools in its context."""

    servers: tuple[RemoteServer, ...]
    listed: Mapping[str, tuple[RemoteTool, ...]] = msgspec.field(default_factory=dict)
    """The tools that are in the context, by the label of their server."""
    approved: tuple[ApprovedCall, ...] = ()
    max_calls: int | None = None
    """The client's limit of calls in one answer."""


def shown_name(label: str, name: str) -> str:
    """Return the name under which a model sees a tool: `LABEL__NAME`.

    It depends on nothing else, so that a call in the history has the name that the model wrote. A name that dialects
    do not allow, or that another label and name could have, gets a digest, so that two tools never have the same one.
    """
    joined = f"{label}__{name}"
    legal = _NOT_IN_NAMES.sub("_", joined)
    divides_once = not ("__" in label or "__" in name or label.endswith("_") or name.startswith("_"))
    if legal == joined and divides_once and len(joined) <= _LONGEST_NAME:
        return joined
    digest = hashlib.sha256(f"{label}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{legal[: _LONGEST_NAME - _DIGEST - 1]}_{digest}"


Offered: TypeAlias = Mapping[str, tuple[RemoteServer, RemoteTool]]
"""The tools that a model may call, by the names that it sees."""


def offered_tools(remote: RemoteTools, listed: Mapping[str, Sequence[RemoteTool]]) -> Offered:
    """Return the tools of a request's servers that the request allows.

    Args:
        remote: the request's servers.
        listed: the tools of each server that is listed, by its label.
    """
    return {
        shown_name(server.label, tool.name): (server, tool)
        for server in remote.servers
        for tool in listed.get(server.label, ())
        if server.allowed.matches(tool)
    }


def result_text(result: RemoteResult) -> str:
    """Return the text of a result or an error for the model."""
    if result.error is None:
        return result.output or ""
    return f"The call failed: {result.error.message}"


def approval_text(reason: str | None) -> str:
    """Return the text for the model that replaces the result of a declined call."""
    text = "The user declined this call."
    return f"{text} The reason: {reason}" if reason else text


def content_text(content: Any) -> str:
    """Return the text of what a tool returned: its parts of text, or all of it as JSON."""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    found = [text for text in texts if isinstance(text, str)]
    return "\n".join(found) if found else json.dumps(content, ensure_ascii=False, default=str)

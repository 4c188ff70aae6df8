"""Read what an MCP server returned into tools and results, without the credentials that it was sent."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from plumbline.answer.remote_tools import (
    RemoteError,
    RemoteResult,
    RemoteServer,
    RemoteTool,
    content_text,
)

__all__ = ["MAX_RESULT_CHARS", "Redaction", "read_result", "read_tool"]

MAX_RESULT_CHARS = 1024 * 1024
"""Characters of one result."""

_SHORTEST_SECRET = 8
"""Shorter values, such as `1` or `true`, would be found everywhere."""
_REDACTED = "[redacted]"


class Redaction:
    """Leaves the credentials of a server out of what it sends: its answers are stored and logged, they must not be.

    Args:
        server: the server; all its headers, and the values of the query of its URL, are taken for credentials.
    """

    def __init__(self, server: RemoteServer) -> None:
        values = {*server.headers.values(), *(value for _, value in parse_qsl(urlsplit(server.url).query))}
        values |= {value.partition(" ")[2] for value in server.headers.values()}
        self._secrets = sorted(
            (value for value in values if len(value) >= _SHORTEST_SECRET), key=len, reverse=True
        )

    def text(self, text: str) -> str:
        """Return a text without credentials."""
        for secret in self._secrets:
            text = text.replace(secret, _REDACTED)
        return text

    def value(self, value: Any) -> Any:
        """Return a JSON value without credentials."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.text(name): self.value(member) for name, member in value.items()}
            case list():
                return [self.value(member) for member in value]
            case int() | float() if self.text(str(value)) != str(value):
                return _REDACTED
            case _:
                return value


def read_tool(tool: Any, redaction: Redaction) -> RemoteTool:
    """Return a tool of the SDK's `Tool`."""
    annotations = None if tool.annotations is None else _plain(tool.annotations)
    return RemoteTool(
        tool.name,
        None if tool.description is None else redaction.text(tool.description),
        redaction.value(dict(tool.input_schema)),
        None if annotations is None else redaction.value(annotations),
    )


def read_result(result: Any, redaction: Redaction) -> RemoteResult:
    """Return the result of the SDK's `CallToolResult`: the text of its parts, with files left out."""
    content = redaction.value([_part(_plain(part)) for part in result.content])
    text = content_text(content) if content else ""
    structured = getattr(result, "structured_content", None)
    if not content and structured is not None:
        text = json.dumps(redaction.value(structured), ensure_ascii=False)
    if len(text) > MAX_RESULT_CHARS:
        return RemoteResult(
            error=RemoteError("protocol", f"The result has more than {MAX_RESULT_CHARS} characters.", -32603)
        )
    if result.is_error:
        return RemoteResult(error=RemoteError("tool", text, content=content))
    return RemoteResult(text)


def _plain(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part as text: models here do not read the files of tools."""
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    resource = part.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return {"type": "text", "text": resource["text"]}
    described = resource if isinstance(resource, dict) else part
    names = (part.get("type"), described.get("mimeType"), described.get("uri"), described.get("name"))
    return {"type": "text", "text": f"[{' '.join(str(name) for name in names if name)}]"}

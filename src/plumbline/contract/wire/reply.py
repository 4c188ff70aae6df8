"""Define what an operation answers with, and turn it into an HTTP response.

A service returns one of three replies and does not know the framework; only `respond` uses Litestar's response classes.
Prime a stream before wrapping it in an `EventReply`: once the response has begun, a failure cannot become a status
(HTTP-12).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from litestar.response import Response, Stream

__all__ = ["EventReply", "JsonReply", "RawReply", "Reply", "respond"]

# Proxies must neither cache nor buffer a stream (HTTP-15). The content type is set here because the framework would add
# a charset, and some clients compare the type as a whole.
STREAM_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


@dataclass(frozen=True, slots=True)
class JsonReply:
    """An encoded JSON body (HTTP-01)."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventReply:
    """A stream of framed server-sent events, one write each (HTTP-02, SSE-02)."""

    events: AsyncIterator[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RawReply:
    """A body that is not JSON: metrics, YAML."""

    body: bytes
    media_type: str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Reply: TypeAlias = JsonReply | EventReply | RawReply


def respond(reply: Reply) -> Response[bytes] | Stream:
    """Turn a reply into the framework's response."""
    match reply:
        case JsonReply(body, status, headers):
            return Response(body, status_code=status, headers=dict(headers), media_type="application/json")
        case EventReply(events, headers):
            return Stream(events, headers={**STREAM_HEADERS, **headers}, media_type="text/event-stream")
        case RawReply(body, media_type, status, headers):
            return Response(body, status_code=status, headers=dict(headers), media_type=media_type)

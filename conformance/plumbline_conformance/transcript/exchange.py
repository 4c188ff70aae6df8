"""Store the bytes of exchanges with their arrival times; decode them on demand."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import msgspec

from plumbline_conformance.transcript.sse import Event, load_json, parse_blocks, parse_events

__all__ = [
    "CLOSED",
    "LATER",
    "NO_HANDSHAKE",
    "PIPE_CLOSED",
    "PIPE_SILENT",
    "UNABLE",
    "Exchange",
    "Transcript",
    "in_attempt",
]

LATER = frozenset({429, 503, 529})
"""Statuses of a server that asks to send the request again later; 529 is Anthropic's. They break no rule."""
UNABLE = LATER | {408, 502, 504}
"""Statuses of a server or gateway that cannot answer now. They break no rule either, but are not retried."""
_LATER_TYPES = frozenset(
    {"overloaded_error", "rate_limit_error", "rate_limit_exceeded", "server_is_overloaded", "slow_down"}
)
"""The same in the error event of a stream, which has its status already, by `type` or `code`."""

CLOSED = "closed in the middle of a turn"
"""How `error` begins if the server closed a WebSocket before the end of a turn."""
PIPE_CLOSED = "the connection was closed after the first of two answers"
PIPE_SILENT = "no answer to the second of two requests"
"""How `error` begins for a request that was sent right after another one on its connection."""
NO_HANDSHAKE = "no handshake"
"""How `error` begins if the server answered the handshake of a WebSocket with nothing readable."""


class Exchange(msgspec.Struct, kw_only=True, dict=True):
    """One request and everything that the server sent back."""

    name: str = ""
    """The name of its request, unique within the scenario; empty for the only request of one, and in live traffic."""
    method: str
    url: str
    request_headers: dict[str, str]
    request_body: bytes
    status: int = 0
    """0 if there was no response; `error` has the reason."""
    headers: list[tuple[str, str]] = msgspec.field(default_factory=list)
    frames: list[tuple[float, bytes]] = msgspec.field(default_factory=list)
    """(seconds since the request, bytes) of each read; decompressed if the body was compressed."""
    packed: list[tuple[float, bytes]] | msgspec.UnsetType = msgspec.UNSET
    """The same before decompression, if the body was compressed."""
    error: str | None = None
    busy: list[int] | msgspec.UnsetType = msgspec.UNSET
    """The statuses of earlier tries that a busy server answered; 0 for a connection that failed."""
    binary: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether a message of a WebSocket was binary."""
    dropped: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the connection broke twice, while the server lived: the request was sent again, and this is the second
    exchange."""
    endless: float | msgspec.UnsetType = msgspec.UNSET
    """Seconds without an event at the end of an answer that did not end, twice, while the server answered another
    request. This is the second exchange."""
    unavailable: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the status was 503 twice, the second time alone, while the server answered another request."""
    version: str | msgspec.UnsetType = msgspec.UNSET
    """The version of HTTP of the request, if it is not the usual one."""
    unreadable: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether no client can read the answer, as `error` says: the body is not what its headers say, or the frames of a
    WebSocket are none."""

    @cached_property
    def path(self) -> str:
        """Return the path of the URL; empty if it is not a URL."""
        try:
            return urlsplit(self.url).path
        except ValueError:
            return ""

    @cached_property
    def request_json(self) -> Any:
        """Return the request body as JSON, or None if it is not JSON."""
        return load_json(self.request_body)

    @cached_property
    def body(self) -> bytes:
        """Return all bytes of the response body."""
        return b"".join(frame for _, frame in self.frames)

    @cached_property
    def json(self) -> Any:
        """Return the response body as JSON, or None if it is not JSON."""
        return load_json(self.body)

    @cached_property
    def events(self) -> list[Event]:
        """Return the response body as server-sent events."""
        return parse_events(self.body)

    @cached_property
    def blocks(self) -> list[Event]:
        """Return all blocks of fields, also those that clients do not dispatch."""
        return parse_blocks(self.body)

    @cached_property
    def chunks(self) -> list[Any]:
        """Return the JSON of every event but `[DONE]`, or of every WebSocket message; None if one is not JSON."""
        if self.method == "WEBSOCKET":
            return [load_json(frame) for _, frame in self.frames]
        return [event.json for event in self.events if event.data != "[DONE]"]

    @cached_property
    def failure(self) -> tuple[int, Any] | None:
        """Return the first error event and its place among `chunks`."""
        for number, event in enumerate(self.chunks if b"data:" in self.body else ()):
            if isinstance(event, dict) and (
                event.get("error") or event.get("type") in ("error", "response.failed")
            ):
                return number, event
        return None

    @cached_property
    def asks_for_later(self) -> bool:
        """Return whether the server is busy and asks to send the request again: by its status, or by an error event."""
        if self.status in LATER:
            return True
        event = self.failure[1] if self.status == 200 and self.failure else {}
        found = event.get("response") if event.get("type") == "response.failed" else event
        error = found.get("error") if isinstance(found, dict) else None
        kinds = [one.get(key) for one in (error, event) if isinstance(one, dict) for key in ("type", "code")]
        return any(isinstance(kind, str) and kind in _LATER_TYPES for kind in kinds)

    def header(self, name: str) -> str | None:
        """Return the first header with this lower-case name."""
        return next((value for key, value in self.headers if key.lower() == name), None)


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """The exchanges of one scenario, in order."""

    scenario: str
    exchanges: list[Exchange]
    skipped: str | None = None
    """Why the scenario was not run; the exchanges are then the evidence for the reason."""
    lacks: str = ""
    """The missing capability, if that is the reason."""
    again: list[list[Exchange]] = msgspec.field(default_factory=list)
    """The exchanges of each further attempt."""
    died: int | None = None
    """The index of the exchange during which the server died: the last one of `exchanges`."""
    mute: Exchange | None = None
    """The refusal of a request that the server had answered before, if it is still running but no longer serves."""
    beside: list[str] = msgspec.field(default_factory=list)
    """The other requests that were in flight when it died."""
    defect: str = ""
    """The traceback of a defect of the judge that ended the scenario."""

    @property
    def attempts(self) -> list[Transcript]:
        """Return each attempt as a separate transcript, in order."""
        every = [self.exchanges, *self.again]
        return [Transcript(scenario=self.scenario, exchanges=exchanges) for exchanges in every]

    @property
    def everything(self) -> list[Exchange]:
        """Return the exchanges of all attempts, with the names that the problems of a report use."""
        further = [
            msgspec.structs.replace(exchange, name=in_attempt(exchange.name, attempt))
            for attempt, exchanges in enumerate(self.again, 2)
            for exchange in exchanges
        ]
        return [*self.exchanges, *further]


def in_attempt(name: str, attempt: int) -> str:
    """Return the name of an exchange, with the number of its attempt if that is not the first.

    >>> in_attempt("deleted", 2)
    'deleted, attempt 2'
    """
    return name if attempt == 1 else f"{name}, attempt {attempt}" if name else f"attempt {attempt}"

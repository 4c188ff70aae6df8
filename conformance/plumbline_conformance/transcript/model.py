"""What was seen on the wire: bytes with the time they came, decoded late."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec

from plumbline_conformance.transcript.sse import Event, load_json, parse_events

__all__ = ["CLOSED", "Exchange", "Transcript"]

CLOSED = "closed in the middle of a turn"
"""How `error` begins where the server ended a WebSocket before the end of a turn."""


class Exchange(msgspec.Struct, kw_only=True, dict=True):
    """One request and everything that came back."""

    method: str
    url: str
    request_headers: dict[str, str]
    request_body: bytes
    status: int = 0
    """0 if there was no response at all; `error` says why."""
    headers: list[tuple[str, str]] = msgspec.field(default_factory=list)
    frames: list[tuple[float, bytes]] = msgspec.field(default_factory=list)
    """(seconds since the request, bytes) of each read; of a body that came compressed, what the bytes unpack to."""
    packed: list[tuple[float, bytes]] | msgspec.UnsetType = msgspec.UNSET
    """The same as it came, where it was compressed."""
    error: str | None = None
    busy: list[int] | msgspec.UnsetType = msgspec.UNSET
    """The statuses of earlier tries, where the server said that it was busy; 0 where no connection was made."""

    @cached_property
    def request_json(self) -> Any:
        """What was asked, as JSON, or None if it is none."""
        return load_json(self.request_body)

    @cached_property
    def body(self) -> bytes:
        """All bytes of the response."""
        return b"".join(frame for _, frame in self.frames)

    @cached_property
    def json(self) -> Any:
        """The body as JSON, or None if it is none."""
        return load_json(self.body)

    @cached_property
    def events(self) -> list[Event]:
        """The body as server-sent events."""
        return parse_events(self.body)

    @cached_property
    def chunks(self) -> list[Any]:
        """The JSON of every event but `[DONE]`, or of every message of a WebSocket; None where it does not parse."""
        if self.method == "WEBSOCKET":
            return [load_json(frame) for _, frame in self.frames]
        return [event.json for event in self.events if event.data != "[DONE]"]

    @cached_property
    def failure(self) -> tuple[int, Any] | None:
        """The first event that says that there is no answer, and its place among `chunks`."""
        for number, event in enumerate(self.chunks if b"data:" in self.body else ()):
            if isinstance(event, dict) and (
                event.get("error") or event.get("type") in ("error", "response.failed")
            ):
                return number, event
        return None

    def header(self, name: str) -> str | None:
        """The first header of this name."""
        return next((value for key, value in self.headers if key.lower() == name), None)


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """The exchanges of one scenario, in order."""

    scenario: str
    exchanges: list[Exchange]
    skipped: str | None = None
    """Why the scenario was not run; the exchanges are then those that showed the reason."""
    lacks: str = ""
    """The capability that the target has not got, where that is why."""
    again: list[list[Exchange]] = msgspec.field(default_factory=list)
    """Further attempts at the same scenario, each with all of its exchanges."""

    @property
    def attempts(self) -> list[Transcript]:
        """Every attempt as a transcript of its own, the first one first."""
        every = [self.exchanges, *self.again]
        return [Transcript(scenario=self.scenario, exchanges=exchanges) for exchanges in every]

    @property
    def everything(self) -> list[Exchange]:
        """The exchanges of all attempts: what `Problem.exchange` counts."""
        return [exchange for exchanges in (self.exchanges, *self.again) for exchange in exchanges]

    @property
    def last(self) -> Exchange:
        """The exchange that most checks look at."""
        return self.exchanges[-1]

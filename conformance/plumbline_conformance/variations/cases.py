"""List every case: the variations of formats and contract, those of the connection, and answers that fail."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from plumbline_conformance.variations.contract import CONTRACT
from plumbline_conformance.variations.formats import FORMATS, Change

__all__ = ["CASES", "PLAIN", "FrameCuts", "LegalAnswer", "Sending"]


class FrameCuts(msgspec.Struct, frozen=True, kw_only=True):
    """How the messages of a WebSocket are cut."""

    fragment: int = 0
    """Bytes of each fragment; 0 for messages of one frame."""
    empty: bool = False
    """Whether empty fragments stand before, between and after the others."""
    control: bool = False
    """Whether a ping or a pong follows each frame."""
    packet: int = 0
    """Bytes of each packet; 0 for a packet per message."""
    together: bool = False
    """Whether all messages of a turn come at once."""
    close: bool = False
    """Whether the server closes the connection after the turn, without a status."""


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer is sent over its connection."""

    framing: str = "chunked"
    """`chunked`, `length`, or `close`: the end of the connection is that of the answer (RFC 9112, 6.3)."""
    before: bytes = b""
    """Bytes before the answer: an interim response."""
    extension: bytes = b""
    """An extension of every chunk (RFC 9112, 7.1.1)."""
    trailer: bytes = b""
    """Fields after the last chunk (RFC 9112, 7.1.2)."""
    frames: FrameCuts = FrameCuts()
    wait: float = 0.0
    """Seconds before the answer."""
    between: float = 0.0
    """Seconds between two pieces."""
    fails: str = ""
    """What ends the answer: `event` for an error event, `status` for status 500, `cut` for a lost connection."""


class LegalAnswer(msgspec.Struct, frozen=True):
    """One legal way to answer."""

    allowed_by: str
    name: str
    change: Change
    sending: Sending = Sending()

    @property
    def slug(self) -> str:
        """The name as it stands in a URL."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.group} {self.name}".lower()).strip("-")

    @property
    def group(self) -> str:
        """The kind of the variation, in a word."""
        known = {"WHATWG HTML 9.2": "sse", HTTP: "http", "RFC 8259": "json", WEBSOCKET: "websocket"}
        return known.get(self.allowed_by, "contract")

    @property
    def fails(self) -> bool:
        """Whether the client must report an error."""
        return bool(self.sending.fails)


HTTP = "RFC 9110/9112"
WEBSOCKET = "RFC 6455"
_CONNECTION: Sequence[tuple[str, Sending]] = (
    ("a body with its length", Sending(framing="length")),
    ("a body that ends with the connection", Sending(framing="close")),
    ("an interim response", Sending(before=b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n")),
    ("extensions of chunks", Sending(extension=b';name="a value"')),
    ("fields after the body", Sending(trailer=b"x-checksum: 0\r\n")),
    ("a slow start", Sending(wait=1.5)),
    ("pauses between pieces", Sending(between=0.02)),
)
_FRAMES: Sequence[tuple[str, FrameCuts]] = (
    ("messages in fragments", FrameCuts(fragment=50)),
    ("fragments of a byte", FrameCuts(fragment=1)),  # They end within characters.
    ("empty fragments", FrameCuts(fragment=50, empty=True)),
    ("pings and pongs between messages", FrameCuts(control=True)),
    ("pings and pongs between fragments", FrameCuts(fragment=50, control=True)),
    ("a packet for each byte", FrameCuts(packet=1)),
    ("a packet for a turn", FrameCuts(together=True)),
    ("a close after the answer", FrameCuts(close=True)),
)
_FAILURES: Sequence[tuple[str, str, Sending]] = (
    ("OpenAI's API", "an error event in a stream of status 200", Sending(fails="event")),
    ("OpenAI's API", "status 500", Sending(fails="status")),
    (HTTP, "a connection that is lost", Sending(fails="cut")),
)


_NO_ANSWER = "a block of empty data"
"""SSE allows it, but it is an event without JSON, which no API has; the judge warns of it (SSE-03)."""
PLAIN = LegalAnswer("OpenAI's API", "no variation", lambda exchange: exchange)
CASES: tuple[LegalAnswer, ...] = (
    PLAIN,
    *(
        LegalAnswer(one.allowed_by, one.name, one.change)
        for one in (*FORMATS, *CONTRACT)
        if one.name != _NO_ANSWER
    ),
    *(LegalAnswer(HTTP, name, PLAIN.change, sending) for name, sending in _CONNECTION),
    *(LegalAnswer(WEBSOCKET, name, PLAIN.change, Sending(frames=frames)) for name, frames in _FRAMES),
    *(LegalAnswer(allowed_by, name, PLAIN.change, sending) for allowed_by, name, sending in _FAILURES),
)
"""All cases; the first changes nothing."""

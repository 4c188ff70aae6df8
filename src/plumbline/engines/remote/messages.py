"""Define the messages between an engine's process and the processes that use it, and their frames.

A frame is the length of its body (four bytes, big-endian) and the body, one message in MessagePack. The connection is
a Unix socket that only this user can open, so both sides trust each other; the bound on a frame finds errors.
"""

from __future__ import annotations

import asyncio
from typing import Generic, Literal, TypeVar

import msgspec

from plumbline.engines.port import EngineInfo, EngineStats, GenerateRequest, MediaPrompt, TokenChunk

__all__ = [
    "MAX_FRAME",
    "Abort",
    "AbortNamed",
    "Arrived",
    "Arriving",
    "CheckGrammar",
    "Checked",
    "Chunks",
    "Connection",
    "Expand",
    "Expanded",
    "FrameError",
    "FromHost",
    "Generate",
    "Hello",
    "LoadAdapter",
    "Refused",
    "Room",
    "Statistics",
    "ToHost",
    "UnloadAdapter",
    "Unread",
]

MAX_FRAME = 256 * 1024 * 1024
"""Bytes of a frame's body. The largest message is a request with a prompt of a million tokens, about 5 MB, or
with files of `--max-media-bytes`."""

_LENGTH = 4
_READ = 256 * 1024
"""Bytes to read at a time. A frame has the chunks of one step; a process that lags reads many frames at once."""
_BEHIND = 4 * 1024 * 1024
"""Unread bytes from which on a side counts as lagging. A stopped process must not fill the memory of others."""

M = TypeVar("M")


class FrameError(Exception):
    """The other side sent something that is not a frame of this connection."""


class Generate(msgspec.Struct, tag="g", array_like=True, frozen=True):
    """Continue a sequence; its chunks come under `stream`, which this connection has not used before."""

    stream: int
    request: GenerateRequest


class Abort(msgspec.Struct, tag="a", array_like=True, frozen=True):
    """End a stream that is no longer read, and free what it holds. No chunk needs to follow."""

    stream: int


class AbortNamed(msgspec.Struct, tag="n", array_like=True, frozen=True):
    """End a stream with a last chunk of reason `abort`."""

    stream: int


class Unread(msgspec.Struct, tag="u", array_like=True, frozen=True):
    """Pause or resume sending the chunks of a stream: its reader lags far behind, or has caught up."""

    stream: int
    far_behind: bool


class CheckGrammar(msgspec.Struct, tag="c", array_like=True, frozen=True):
    """Compile a grammar; the answer is `Checked` or `Refused` under `stream`."""

    stream: int
    grammar: str
    client: str


class Expand(msgspec.Struct, tag="e", array_like=True, frozen=True):
    """Expand a prompt with files; the answer is `Expanded` or `Refused` under `stream`."""

    stream: int
    prompt: MediaPrompt


class LoadAdapter(msgspec.Struct, tag="l", array_like=True, frozen=True):
    """Load an adapter; the answer is `Checked` or `Refused` under `stream`."""

    stream: int
    name: str
    folder: str


class UnloadAdapter(msgspec.Struct, tag="m", array_like=True, frozen=True):
    """Unload an adapter; the answer is `Checked` under `stream`, once no request uses it."""

    stream: int
    name: str


class Arriving(msgspec.Struct, tag="i", array_like=True, frozen=True):
    """A request of a client is being prepared."""

    number: int
    client: str


class Arrived(msgspec.Struct, tag="j", array_like=True, frozen=True):
    """The request of an `Arriving` is prepared, or will not come."""

    number: int


ToHost = (
    Generate
    | Abort
    | AbortNamed
    | Unread
    | CheckGrammar
    | Expand
    | LoadAdapter
    | UnloadAdapter
    | Arriving
    | Arrived
)


class Hello(msgspec.Struct, tag="h", array_like=True, frozen=True):
    """The first message of the host."""

    info: EngineInfo
    user: int = 0
    """The number of this connection."""
    process: int = 0
    """The number of the engine's process (`history.py`)."""


class Chunks(msgspec.Struct, tag="k", array_like=True, frozen=True):
    """Chunks of any streams in the order in which the engine made them."""

    items: list[tuple[int, TokenChunk]]


class Checked(msgspec.Struct, tag="o", array_like=True, frozen=True):
    """The grammar is fine, or the adapter is loaded or unloaded."""

    stream: int


class Expanded(msgspec.Struct, tag="x", array_like=True, frozen=True):
    """The tokens of a prompt with files."""

    stream: int
    token_ids: list[int]


class Refused(msgspec.Struct, tag="r", array_like=True, frozen=True):
    """The engine refused the request, grammar or adapter of this stream with one of the errors of the port."""

    stream: int
    kind: Literal["refused", "full", "closed"]
    message: str
    param: str | None = None
    retry_after: int = 1
    code: str | None = None


class Room(msgspec.Struct, array_like=True, frozen=True):
    """How many more requests of a client there is room for, and how the one after them would be refused."""

    count: int
    message: str
    retry_after: int


class Statistics(msgspec.Struct, tag="s", array_like=True, frozen=True):
    """The engine's counters, sent a few times a second, and where room is short."""

    stats: EngineStats
    rooms: dict[str, Room] = {}
    """Of clients that have less than others."""
    others: Room | None = None
    """Of all other clients; None if there is plenty."""
    arrivals: int = 0
    """The number of the latest `Arriving` that is counted here."""


FromHost = Hello | Chunks | Checked | Expanded | Refused | Statistics


class Connection(Generic[M]):
    """One side of a connection: send messages of any kind, receive messages of one kind.

    Args:
        reader: what the other side sends.
        writer: what goes to it.
        kind: the type, or union of types, of the messages that are received.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: object) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._encoder = msgspec.msgpack.Encoder()
        self._unread = bytearray()

    def send(self, message: object) -> None:
        """Send a message, without waiting for the other side to read it. Does nothing on a closed connection.

        Raises:
            FrameError: the message is larger than a frame may be.
        """
        body = self._encoder.encode(message)
        if len(body) > MAX_FRAME:
            raise FrameError(f"a message of {len(body)} bytes is too large for another process")
        if not self._writer.is_closing():
            self._writer.write(len(body).to_bytes(_LENGTH, "big") + body)

    @property
    def is_behind(self) -> bool:
        """Whether the other side has much left to read."""
        return self._writer.transport.get_write_buffer_size() > _BEHIND

    async def drained(self) -> None:
        """Wait until the other side has read most of what was sent.

        Raises:
            ConnectionError: the connection is lost.
        """
        await self._writer.drain()

    async def receive(self) -> list[M]:
        """Return the messages that have come, at least one; none at the end of the connection.

        Raises:
            FrameError: the other side sent something else.
        """
        while not (found := self._complete()):
            try:
                data = await self._reader.read(_READ)
            except ConnectionError:
                return []
            if not data:
                return []
            self._unread += data
        return found

    def close(self) -> None:
        """End the connection; what was sent before still arrives."""
        self._writer.close()

    def _complete(self) -> list[M]:
        """Take the whole frames from what was read."""
        found: list[M] = []
        unread, at = self._unread, 0
        while len(unread) - at >= _LENGTH:
            size = int.from_bytes(unread[at : at + _LENGTH], "big")
            if size > MAX_FRAME:
                raise FrameError(f"a frame claims {size} bytes")
            end = at + _LENGTH + size
            if len(unread) < end:
                break
            try:
                found.append(self._decoder.decode(memoryview(unread)[at + _LENGTH : end]))
            except msgspec.MsgspecError as error:
                raise FrameError(f"a frame is not a message of this connection: {error}") from error
            at = end
        del unread[:at]
        return found

"""Send messages between processes: frames of MessagePack on a Unix socket.

A frame is the length of its body (four bytes, big-endian) and the body, one message in MessagePack. Only this user can
open the socket, so both sides trust each other; the bound on a frame finds errors.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

import msgspec

__all__ = ["MAX_FRAME", "Connection", "FrameError"]

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

"""Send scripted turns over a WebSocket, with messages and frames cut in every way that RFC 6455 allows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.transcript.sse import load_json
from plumbline_conformance.variations.cases import FrameCuts, LegalAnswer
from plumbline_conformance.variations.formats import changed

__all__ = ["converse", "messages_of"]

_PING = b"still here"
_MOST = 65_536
_CLOSING = 5.0
"""Seconds in which a client must answer a close."""
_ERROR = {
    "type": "error",
    "status": 500,
    "error": {"code": "server_error", "message": "The engine failed.", "type": "server_error", "param": None},
}
"""The error of Open Responses' WebSocket transport (WS-07)."""


def messages_of(case: LegalAnswer, exchange: Exchange) -> list[bytes]:
    """Return the messages of a turn: the events of a scripted stream, varied as the case says.

    What changes the bytes of SSE or of HTTP has no counterpart here.
    """
    if case.group == "contract":
        exchange = case.change(exchange)
    events = [event for event in exchange.chunks if isinstance(event, dict)]
    texts = [json.dumps(event, ensure_ascii=False).encode() for event in events]
    if case.group == "json":
        varied = case.change(changed(exchange, method="WEBSOCKET", frames=[(0.0, text) for text in texts]))
        texts = [text for _, text in varied.frames]
    return texts


class _Connection:
    """One WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, case: LegalAnswer) -> None:
        self._reader = reader
        self._writer = writer
        self._case = case
        self._protocol = ServerProtocol()
        self._message = bytearray()

    async def opened(self, head: bytes) -> bool:
        """Answer the handshake; return whether there is a connection."""
        self._protocol.receive_data(head)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                fails = self._case.sending.fails == "status"
                refusal = self._protocol.reject(500, json.dumps(_ERROR)) if fails else None
                self._protocol.send_response(refusal or self._protocol.accept(event))
        await self.flush()
        return self._protocol.state is State.OPEN

    async def received(self) -> list[Any]:
        """Return the JSON of the messages that come next; nothing at the end of the connection."""
        while self._protocol.state is State.OPEN:
            data = await self._reader.read(_MOST)
            if not data:
                return []
            self._protocol.receive_data(data)
            frames = [event for event in self._protocol.events_received() if isinstance(event, Frame)]
            await self.flush()  # Pongs, and the answer to a close.
            if found := [load_json(message) for frame in frames for message in self._joined(frame)]:
                return found
        return []

    def _joined(self, frame: Frame) -> Iterator[bytes]:
        if frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._message += frame.data
            if frame.fin:
                yield bytes(self._message)
                self._message.clear()

    def put(self, message: bytes, how: FrameCuts) -> None:
        """Frame a message."""
        size = how.fragment or max(1, len(message))
        parts = [message[start : start + size] for start in range(0, len(message), size)] or [b""]
        if how.empty:
            parts = [b"", *(piece for part in parts for piece in (part, b""))]
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            if number == 0:
                self._protocol.send_text(part, fin=last)
            else:
                self._protocol.send_continuation(part, fin=last)
            if how.control:
                # A pong that answers nothing is a heartbeat (RFC 6455, section 5.5.3).
                (self._protocol.send_pong if number % 2 else self._protocol.send_ping)(_PING)

    async def flush(self, packet: int = 0) -> None:
        """Write what is to be sent, in packets of so many bytes; 0 for all at once."""
        data = b"".join(self._protocol.data_to_send())
        size = packet or max(1, len(data))
        for start in range(0, len(data), size):
            self._writer.write(data[start : start + size])
            await self._writer.drain()
            if packet:
                await asyncio.sleep(0)

    async def closed(self) -> None:
        """Wait for the client's close after the server's: the connection ends after both (RFC 6455, section 5.5.1)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                while self._protocol.close_sent and not self._protocol.close_rcvd:
                    data = await self._reader.read(_MOST)
                    if not data:
                        return
                    self._protocol.receive_data(data)

    async def turn(self, exchange: Exchange) -> bool:
        """Send the messages of a turn; return whether another one may follow."""
        sending = self._case.sending
        messages = messages_of(self._case, exchange)
        if sending.fails:
            messages = messages[: len(messages) // 2]
        if sending.fails == "event":
            messages.append(json.dumps(_ERROR).encode())
        await asyncio.sleep(sending.wait)
        for message in messages:
            self.put(message, sending.frames)
            if not sending.frames.together:
                await self.flush(sending.frames.packet)
                await asyncio.sleep(sending.between)
        if sending.frames.close and not sending.fails:
            self._protocol.send_close()
        await self.flush(sending.frames.packet)
        return sending.fails != "cut" and not sending.frames.close


async def converse(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    head: bytes,
    case: LegalAnswer,
    ask: Callable[[dict[str, Any]], Exchange],
) -> None:
    """Answer the turns of a client until either side ends the connection.

    Args:
        reader: what the client sends after the handshake.
        writer: the other direction.
        head: the request of the handshake.
        case: how the turns are answered.
        ask: returns the scripted exchange of a `response.create`, whose answer is a stream.
    """
    connection = _Connection(reader, writer, case)
    try:
        if not await connection.opened(head):
            return
        while found := await connection.received():
            for value in found:
                asked = value if isinstance(value, dict) else {}
                if not await connection.turn(ask({**asked, "stream": True})):
                    await connection.closed()
                    return
    except (ConnectionClosed, InvalidState):
        return

"""Serve Responses over a WebSocket: turns one after the other on one connection (WS-01 to WS-09).

The client sends `{"type": "response.create", …}` with the fields of a request; the server sends the events of a stream,
one JSON object in each text frame. An error is an event, too, and leaves the connection open.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from typing import Any

import msgspec
from litestar import WebSocket, websocket
from litestar.di import NamedDependency
from litestar.exceptions import WebSocketDisconnect
from litestar.params import SkipValidation

from plumbline._generated.responses import CreateResponse
from plumbline.server.failures import as_api_error
from plumbline.server.responses.latest_turn import LatestTurn
from plumbline.server.service import PlumblineService
from plumbline.server.streams import closing_streams
from plumbline.wire.call import Call, new_request_id
from plumbline.wire.decode import decode, encode
from plumbline.wire.errors import ApiError, error_object, unparsable_body, unsupported_value

__all__ = ["MAX_CONNECTION_SECONDS", "responses_socket"]

MAX_CONNECTION_SECONDS = 60 * 60
"""After this long a connection takes no further turn (WS-08)."""
_MAX_IDLE_SECONDS = 15 * 60
_MAX_WAITING = 16
"""Messages that are read ahead of their turn."""
_NOT_OF_THE_REQUEST = ("type", "stream", "stream_options", "background")
"""Members of the client's event that are dropped: the event's own, and those that clients must not send (WS-02)."""

_LIMIT_REACHED = ApiError(
    400, "A WebSocket lasts an hour. Open a new one.", code="websocket_connection_limit_reached"
)

_event = msgspec.json.Decoder(dict[str, msgspec.Raw])


@websocket("/v1/responses")
async def responses_socket(
    socket: WebSocket[Any, Any, Any], api: NamedDependency[SkipValidation[PlumblineService]]
) -> None:
    """Answer the turns of one connection."""
    await socket.accept()
    await _Connection(socket, api).run()


class _Connection:
    """One WebSocket, from its handshake to its end."""

    def __init__(self, socket: WebSocket[Any, Any, Any], api: PlumblineService) -> None:
        self._socket = socket
        self._api = api
        self._latest = LatestTurn()
        self._waiting: asyncio.Queue[str | bytes] = asyncio.Queue(_MAX_WAITING)
        self._gone = asyncio.Event()

    async def run(self) -> None:
        """Take turns until the client leaves, is idle for too long, or has had its time."""
        reader = asyncio.create_task(self._read())
        try:
            async with asyncio.timeout(MAX_CONNECTION_SECONDS) as limit:
                while (text := await self._next()) is not None:
                    await self._turn(text)
        except TimeoutError:
            if not limit.expired():
                raise
            await self._send_error(_LIMIT_REACHED)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if not self._gone.is_set():
            await self._socket.close()

    async def _read(self) -> None:
        """Read ahead, so that a client that leaves in the middle of a turn is noticed (HTTP-11)."""
        try:
            while True:
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect":
                    break
                text = message.get("text") or message.get("bytes")
                await self._waiting.put(text if isinstance(text, str | bytes) else "")
        except WebSocketDisconnect:
            pass
        finally:
            self._gone.set()

    async def _next(self) -> str | bytes | None:
        """Return the next message; None if the client has left, or sends nothing for too long."""
        got = asyncio.ensure_future(self._waiting.get())
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait({got, gone}, timeout=_MAX_IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return got.result() if got.done() else None
        finally:
            for task in (got, gone):
                task.cancel()
            await asyncio.gather(got, gone, return_exceptions=True)

    async def _turn(self, text: str | bytes) -> None:
        try:
            async with closing_streams():
                request = _read_event(text)
                async with aclosing(
                    self._api.answer_on_socket(request, self._call(), self._latest)
                ) as events:
                    async for event in events:
                        await self._send(encode(event))
                        if self._gone.is_set():
                            return
        except ApiError as error:
            await self._send_error(error)
        except Exception as error:
            await self._send_error(as_api_error(error))

    def _call(self) -> Call:
        """Return a call for one turn, which is over when the connection is."""

        async def receive() -> dict[str, str]:
            await self._gone.wait()
            return {"type": "http.disconnect"}

        headers = self._socket.headers
        scheme, _, key = headers.get("authorization", "").partition(" ")
        request_id = new_request_id()
        return Call(
            request_id=request_id,
            work_id=request_id,
            headers=headers,
            api_key=key.strip() or None if scheme.lower() == "bearer" else None,
            _receive=receive,
            peer=self._socket.client.host if self._socket.client is not None else "",
        )

    async def _send(self, body: bytes) -> None:
        if not self._gone.is_set():
            with contextlib.suppress(WebSocketDisconnect):
                await self._socket.send_data(body.decode(), mode="text")

    async def _send_error(self, error: ApiError) -> None:
        """Send an error as an event (WS-07)."""
        found = error_object(error)
        found["code"] = found["code"] or found["type"]
        await self._send(msgspec.json.encode({"type": "error", "status": error.status, "error": found}))


def _read_event(text: str | bytes) -> CreateResponse:
    """Read the request of a client's event.

    Raises:
        ApiError: 400 for other events, and as for a request over HTTP.
    """
    try:
        members = _event.decode(text)
        kind = msgspec.json.decode(members.get("type", b"null"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unparsable_body(str(error).partition(" - at ")[0]) from None
    if kind != "response.create":
        raise unsupported_value("type", kind, "is not a client event; send 'response.create'")
    for name in _NOT_OF_THE_REQUEST:
        members.pop(name, None)
    return decode(CreateResponse, msgspec.json.encode(members))

"""Serve Responses over a WebSocket: turns on the lanes of one connection (WS-01 to WS-10).

The client sends `{"type": "response.create", …}` with the fields of a request; the server sends the events of a stream,
one JSON object in each text frame. An error is also an event, and leaves the connection open.

Turns with the same `stream_id`, or without one, take place one after the other; those of different lanes at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections import deque
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec
from litestar import WebSocket, websocket
from litestar.di import NamedDependency
from litestar.exceptions import WebSocketDisconnect
from litestar.params import SkipValidation

from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.call import TRACE, Call, fact_headers, new_request_id
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.errors import (
    ApiError,
    error_object,
    invalid_api_key,
    invalid_type,
    invalid_value,
    unparsable_body,
    unsupported_value,
)
from plumbline.contract.wire.incoming import (
    HELD_FOR,
    IGNORED,
    LENIENT,
    STRICT,
    ReadBody,
    error_of_body,
    ignored_fields,
    read_body,
    read_skipping_tools,
)
from plumbline.contract.wire.large_bodies import LARGE_BODIES, LargeBodies
from plumbline.server.http.failures import as_api_error
from plumbline.server.http.streams import closing_streams
from plumbline.server.limits.draining import DRAINING, Draining
from plumbline.server.limits.held_bytes import HeldMessage
from plumbline.server.limits.keys import KEYS, KeyRing, as_sent
from plumbline.server.limits.rates import RATES, Rates
from plumbline.server.responses.latest_turns import LatestTurns
from plumbline.server.service import PlumblineService

__all__ = ["MAX_CONNECTION_SECONDS", "responses_socket"]

MAX_CONNECTION_SECONDS = 60 * 60
"""After this long a connection takes no further turn (WS-08)."""
_MAX_IDLE_SECONDS = 15 * 60
_MAX_LANES = 16
"""Lanes of one connection with turns at the same time, and turns that it remembers. A lane ends with its last turn."""
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_NOT_OF_THE_REQUEST = ("type", "stream_id", "stream", "stream_options", "background", "generate")
"""Members of the client's event that are dropped: the event's own, and those that clients must not send (WS-02)."""

_LIMIT_REACHED = ApiError(
    400, "A WebSocket lasts an hour. Open a new one.", code="websocket_connection_limit_reached"
)
_TOO_MANY_LANES = ApiError(
    400,
    f"A WebSocket runs turns on {_MAX_LANES} lanes at once. Wait for a turn to end, or open another connection.",
    param="stream_id",
    code="websocket_stream_limit_reached",
)

_event = msgspec.json.Decoder(dict[str, msgspec.Raw])


@websocket("/v1/responses")
async def responses_socket(
    socket: WebSocket[Any, Any, Any], api: NamedDependency[SkipValidation[PlumblineService]]
) -> None:
    """Answer the turns of one connection."""
    await socket.accept()
    await _Connection(socket, api).run()


class _Message(NamedTuple):
    """What the client sent, as far as it decides the lane."""

    lane: str | None
    members: dict[str, msgspec.Raw] | ApiError
    """The members of its event, or what is wrong with it."""
    held: HeldMessage


class _Connection:
    """One WebSocket, from its handshake to its end.

    The transport bounds what it reads ahead by the messages that are not ended, so `_read` always waits for the next
    event and learns at once that the client has left (HTTP-11).
    """

    def __init__(self, socket: WebSocket[Any, Any, Any], api: PlumblineService) -> None:
        self._socket = socket
        self._api = api
        self._lenient = bool(socket.app.state.get(LENIENT, False))
        self._strict = bool(socket.app.state.get(STRICT, False))
        self._large_bodies: LargeBodies = socket.app.state[LARGE_BODIES]
        self._client: str = socket.scope["state"].get(HELD_FOR, "")
        self._rates: Rates = socket.app.state[RATES]
        self._keys: KeyRing = socket.app.state[KEYS]
        self._draining: Draining = socket.app.state[DRAINING]
        self._latest = LatestTurns(_MAX_LANES)
        self._lanes: dict[str | None, deque[_Message]] = {}
        """The messages that wait, by lane. A lane is there while a turn of it runs."""
        self._gone = asyncio.Event()
        self._sending = asyncio.Lock()

    async def run(self) -> None:
        """Take turns until the client leaves, is idle for too long, or has had its time."""
        try:
            async with asyncio.timeout(MAX_CONNECTION_SECONDS) as limit, asyncio.TaskGroup() as group:
                lanes: set[asyncio.Task[None]] = set()
                await self._read(group, lanes)
                for task in lanes:  # Nobody reads their turns.
                    task.cancel()
        except TimeoutError:
            if not limit.expired():
                raise
            await self._send_error(_LIMIT_REACHED)
        if not self._gone.is_set():
            await self._socket.close()

    async def _read(self, group: asyncio.TaskGroup, lanes: set[asyncio.Task[None]]) -> None:
        """Give each message to its lane; ends when the client has left, or sends nothing and waits for nothing."""
        while (event := await self._next()) is not None:
            text = event.get("text") or event.get("bytes")
            held = event.get("held") or HeldMessage(0, lambda _: None)
            message = _read_message(text if isinstance(text, str | bytes) else "", held)
            if (refusal := _refused_steering(message)) is not None:
                held.end()
                await self._send(refusal, None)
                continue
            waiting = self._lanes.get(message.lane)
            if waiting is not None:
                waiting.append(message)
            elif len(self._lanes) == _MAX_LANES:
                held.end()
                await self._send_error(_TOO_MANY_LANES, message.lane)
            else:
                # A lane begins with a message if none of its turns is running (WS-04, WS-10).
                self._lanes[message.lane] = deque([message])
                task = group.create_task(self._run_lane(message.lane))
                lanes.add(task)
                task.add_done_callback(lanes.discard)

    async def _next(self) -> Mapping[str, Any] | None:
        while True:
            try:
                async with asyncio.timeout(_MAX_IDLE_SECONDS) as idle:
                    event = await self._socket.receive()
            except TimeoutError:
                if not idle.expired():
                    raise
                if not self._lanes:
                    return None
                continue
            except WebSocketDisconnect:
                self._gone.set()
                return None
            if event["type"] == "websocket.disconnect":
                self._gone.set()
                return None
            return event

    async def _run_lane(self, lane: str | None) -> None:
        """Take the turns of a lane, one after the other."""
        waiting = self._lanes[lane]
        try:
            while waiting and not self._gone.is_set():
                message = waiting.popleft()
                message.held.begin()
                try:
                    await self._turn(message)
                finally:
                    message.held.end()
        finally:
            del self._lanes[lane]
            while waiting:
                waiting.popleft().held.end()

    async def _turn(self, message: _Message) -> None:
        was_read = b""
        call = self._call()
        try:
            async with closing_streams():
                read, body = await read_skipping_tools(_read_request(message), call.facts, self._read_body)
                was_read, request = body, read.request
                call.beside = functools.partial(self._large_bodies.run, self._client), len(body)
                if read.unknown:
                    call.facts[IGNORED] = ignored_fields(
                        CreateResponse, read.unknown, call.request_id, strict=self._strict
                    )
                self._check(call)
                events = self._api.answer_on_socket(
                    request, call, self._latest, message.lane, generate=_generates(message)
                )
                with self._draining.counted():
                    async with self._rates.admitted(as_sent(call.api_key or "")), aclosing(events):
                        facts: Mapping[str, Any] = call.facts
                        async for event in events:
                            await self._send(_with_headers(encode(event), facts), message.lane)
                            facts = {}
                            if self._gone.is_set():
                                return
        except ApiError as error:
            # A variable with the error would be a cycle, by its traceback, and keep the message.
            if was_read:
                error = error_of_body(error, CreateResponse, was_read, lenient=self._lenient)
            await self._send_error(error, message.lane)
        except Exception as error:
            await self._send_error(as_api_error(error), message.lane)

    async def _read_body(self, body: bytes) -> ReadBody[CreateResponse]:
        work = functools.partial(read_body, CreateResponse, body, lenient=self._lenient)
        return await self._large_bodies.run(self._client, len(body), work)

    def _check(self, call: Call) -> None:
        """Refuse a turn that would be refused as a request by now: a connection lasts an hour.

        Raises:
            ApiError: 401 for a key that was taken away, or 503 if the server stops.
        """
        if not self._keys.open and not self._keys.has(as_sent(call.api_key or "")):
            raise invalid_api_key()
        if (error := self._draining.refusal) is not None:
            raise error

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
            trace=self._socket.scope["state"].get(TRACE),
        )

    async def _send(self, event: bytes, lane: str | None) -> None:
        """Send an event, which names the lane that it belongs to (WS-10)."""
        if lane is not None:
            event = b'%b,"stream_id":"%b"}' % (event[:-1], lane.encode())
        async with self._sending:
            if not self._gone.is_set():
                # uvicorn raises an OSError of its own.
                with contextlib.suppress(WebSocketDisconnect, OSError):
                    await self._socket.send_data(event.decode(), mode="text")

    async def _send_error(self, error: ApiError, lane: str | None = None) -> None:
        """Send an error as an event (WS-07)."""
        found = error_object(error)
        found["code"] = found["code"] or found["type"]
        event = {"type": "error", "status": error.status, "error": found}
        await self._send(msgspec.json.encode(event), lane)


def _read_message(text: str | bytes, held: HeldMessage) -> _Message:
    """Read the members of a client's event and its lane. What is wrong is told in the lane without a name."""
    try:
        members = _event.decode(text)
        lane = msgspec.json.decode(members.get("stream_id", b"null"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _Message(None, unparsable_body(str(error).partition(" - at ")[0]), held)
    if lane is not None and not (isinstance(lane, str) and _STREAM_ID.fullmatch(lane)):
        return _Message(None, invalid_value("stream_id", lane), held)
    return _Message(lane, members, held)


def _refused_steering(message: _Message) -> bytes | None:
    """Return the event that refuses a `response.steer`, with the input that it had (WS-12); None for other events."""
    members = message.members
    if isinstance(members, ApiError) or bytes(members.get("type", b"")) != b'"response.steer"':
        return None
    kept = ("input", "previous_response_id")
    error = {
        "type": "invalid_request_error",
        "code": "steering_not_supported",
        "message": "This server does not steer responses; send the input with the next 'response.create'.",
    }
    steer = {name: members.get(name, msgspec.Raw(b"null")) for name in kept}
    event = {"type": "response.steer.failed", "error": error, "sequence_number": 0, "steer": steer}
    return msgspec.json.encode(event)


def _with_headers(event: bytes, facts: Mapping[str, Any]) -> bytes:
    """Return the first event of a turn with what an answer to HTTP has in headers."""
    headers = fact_headers(facts)
    if IGNORED in facts:
        headers["x-plumbline-ignored"] = facts[IGNORED]
    return b'%b,"x_headers":%b}' % (event[:-1], msgspec.json.encode(headers)) if headers else event


def _generates(message: _Message) -> bool:
    """Return whether the model is to answer (WS-11).

    Raises:
        ApiError: 400 for a value that is not a boolean.
    """
    assert not isinstance(message.members, ApiError), "its request was read"
    value = msgspec.json.decode(message.members.get("generate", b"null"))
    if value is not None and not isinstance(value, bool):
        raise invalid_type("generate", "a boolean", value)
    return value is not False


def _read_request(message: _Message) -> bytes:
    """Return the body of the request in a client's event.

    Raises:
        ApiError: 400 for other events.
    """
    members = message.members
    if isinstance(members, ApiError):
        raise members
    try:
        kind = msgspec.json.decode(members.get("type", b"null"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unparsable_body(str(error).partition(" - at ")[0]) from None
    if kind != "response.create":
        raise unsupported_value("type", kind, "is not a client event; send 'response.create'")
    rest = {name: value for name, value in members.items() if name not in _NOT_OF_THE_REQUEST}
    return msgspec.json.encode(rest)

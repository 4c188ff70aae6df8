"""Requests on the wire, and everything that comes back: this module and `websocket` alone open connections."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from plumbline_conformance.client.busy_retry import BusyRetry
from plumbline_conformance.client.compression import ACCEPTED, Unpacked
from plumbline_conformance.client.target_input import joined
from plumbline_conformance.client.websocket import Sockets, message_of
from plumbline_conformance.suite.model import SEED, Request, Target
from plumbline_conformance.transcript.model import Exchange

__all__ = ["Conversation", "conversations", "exchange_of", "sender"]

_MAX_BODY = 32 * 1024 * 1024
"""A server that never stops talking is cut off here."""
_MAX_TOTAL = 256 * 1024 * 1024
"""Of all bodies together: beyond it nothing is kept."""
_PATIENCE_WITH_LATENESS = 12
"""After so many answers that did not end in time, the rest is not asked for."""
_PATIENCE_WITH_SILENCE = 4
"""After so many requests without any answer, and none with one, the rest is not sent."""

Send = Callable[[Request], Awaitable[Exchange]]


class Conversation:
    """What one scenario sends: its requests share its WebSockets, and nothing else."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._sockets = Sockets()

    async def send(self, request: Request) -> Exchange:
        """One exchange, after a while where the server is busy. It never raises."""
        waited = False

        async def ask() -> Exchange:
            nonlocal waited
            once = msgspec.structs.replace(request, pause=0.0) if waited else request
            waited = True
            return await self._wire.send(once, self._sockets)

        return await self._wire.retry.send(request.path, ask)

    async def __aenter__(self) -> Conversation:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sockets.close()


@asynccontextmanager
async def conversations(
    target: Target, patience: float, left: Callable[[], float] = lambda: math.inf
) -> AsyncGenerator[Callable[[], Conversation], None]:
    """What makes conversations with this target.

    Args:
        target: whom they are with.
        patience: seconds after which an exchange ends.
        left: seconds that all of them may still take; a busy server is not waited for beyond them.
    """
    headers = {"user-agent": "plumbline-conformance", "accept-encoding": ACCEPTED}
    if target.api_key is not None:
        headers["authorization"] = f"Bearer {target.api_key}"
    # A connection for each request: what a server does to one after a crash must not be taken for its next answer.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=patience, headers=headers, limits=limits) as client:
        wire = _Wire(client, target, patience, BusyRetry(left))
        yield lambda: Conversation(wire)


@asynccontextmanager
async def sender(target: Target, patience: float) -> AsyncGenerator[Send, None]:
    """A function that sends a request to this target, and gives up after so many seconds. It never raises."""
    async with conversations(target, patience) as begin, begin() as conversation:
        yield conversation.send


def exchange_of(target: Target, request: Request) -> Exchange:
    """The exchange that a request begins: what is sent, and no answer yet."""
    url = joined(target.base_url, request.path)
    headers = dict(request.headers)
    if request.method == "WEBSOCKET":
        messages = request.json if isinstance(request.json, list) else [request.json]
        sent = [request.content] if request.content is not None else [message_of(one) for one in messages]
        # One message a line: JSON as we write it has no line feeds of its own.
        body, url = b"\n".join(sent), f"ws{url.removeprefix('http')}"
    elif request.method in ("GET", "DELETE"):
        body = b""
    elif request.content is not None:
        body = request.content
    else:
        body = json.dumps(_seeded(target, _limited(target, request))).encode()
        headers["content-type"] = "application/json"
    return Exchange(method=request.method, url=url, request_headers=headers, request_body=body)


def _limited(target: Target, request: Request) -> Any:
    """The body of a request, with the limit under the name that the target takes.

    A limit that nothing accepts keeps its name: it is what the request is about, and what is to be named as wrong.
    """
    body = request.json
    if target.limit == "max_tokens" or request.path != "/chat/completions" or not isinstance(body, dict):
        return body
    limit = body.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        return body
    rest = {name: value for name, value in body.items() if name != "max_tokens"}
    return rest if rest.get(target.limit) is not None else {**rest, target.limit: limit}


def _seeded(target: Target, body: Any) -> Any:
    """The body with the target's seed where a scenario says the usual one: another value is what it is about."""
    if target.seed == SEED or not isinstance(body, dict) or type(seed := body.get("seed")) is not int:
        return body
    return {**body, "seed": target.seed} if seed == SEED else body


class _Wire:
    """Sends requests and keeps everything that comes back."""

    def __init__(self, client: httpx.AsyncClient, target: Target, patience: float, retry: BusyRetry) -> None:
        self._client = client
        self._target = target
        self._patience = patience
        self.retry = retry
        self._heard = False
        self._silences = 0
        self._late = 0
        self._total = 0

    async def send(self, request: Request, sockets: Sockets) -> Exchange:
        """One exchange; what goes wrong is noted in it, not raised."""
        exchange = exchange_of(self._target, request)
        if not self._heard and self._silences >= _PATIENCE_WITH_SILENCE:
            exchange.error = "not sent: the server has answered nothing so far"
            return exchange
        if self._late >= _PATIENCE_WITH_LATENESS:
            exchange.error = f"not sent: {self._late} answers did not end in time"
            return exchange
        if request.pause:
            await asyncio.sleep(request.pause)
        started = time.monotonic()
        try:
            _ = urlsplit(
                exchange.url
            ).port  # One that does not exist is a ValueError here, and a crash below.
            async with asyncio.timeout(self._patience):
                if request.method == "WEBSOCKET":
                    headers = {**_plain(self._client.headers), **exchange.request_headers}
                    room = min(_MAX_BODY, _MAX_TOTAL - self._total)
                    await sockets.exchange(exchange, request, headers, started, room)
                else:
                    await self._exchange(exchange, started)
        except (TimeoutError, httpx.TimeoutException) as error:
            self._late += 1
            exchange.error = f"{type(error).__name__}: no end after {self._patience:g} seconds"
        except httpx.LocalProtocolError as error:
            # Of a header that cannot be sent httpx shows the value, in a form in which nobody would find a key again.
            said = str(error)
            why = "a header that cannot be sent" if "header" in said.lower() else said
            exchange.error = f"{type(error).__name__}: {why}"
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            httpx.StreamError,
            OSError,
            ValueError,
            OverflowError,
        ) as error:
            exchange.error = f"{type(error).__name__}: {error}".rstrip(": ")
        if request.method == "WEBSOCKET":
            self._total += sum(len(frame) for _, frame in exchange.frames)
        self._heard = self._heard or exchange.status != 0
        self._silences += exchange.status == 0
        return exchange

    async def _exchange(self, exchange: Exchange, started: float) -> None:
        async with self._client.stream(
            exchange.method, exchange.url, content=exchange.request_body, headers=exchange.request_headers
        ) as answer:
            exchange.status = answer.status_code
            exchange.headers = list(answer.headers.multi_items())
            room = min(_MAX_BODY, _MAX_TOTAL - self._total)
            body = Unpacked(exchange.header("content-encoding"), room)
            try:
                async for part in answer.aiter_raw():
                    body.keep(exchange, time.monotonic() - started, part)
                    if body.ended:
                        break
            finally:
                body.settle(exchange)
                # Packed bytes are fewer than what they unpack to, or the body was cut.
                self._total += sum(len(frame) for _, frame in exchange.frames)
            exchange.error = body.why
            if body.cut and room < _MAX_BODY:
                exchange.error = f"all bodies together are longer than {_MAX_TOTAL} bytes"


def _plain(headers: httpx.Headers) -> dict[str, str]:
    """Of the headers of every request those that a handshake takes as well."""
    return {name: value for name, value in headers.items() if name in ("authorization", "user-agent")}

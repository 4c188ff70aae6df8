"""Send requests and record everything that the server sends; only this module and `websocket` connect."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec

from plumbline_conformance.client import http10, pipeline
from plumbline_conformance.client.busy_retry import BusyRetry
from plumbline_conformance.client.compression import ACCEPTED, Unpacked
from plumbline_conformance.client.target_input import joined
from plumbline_conformance.client.websocket import Sockets, message_of
from plumbline_conformance.suite.scenario import SEED, Request, Target
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["Conversation", "conversations", "exchange_of", "sender"]

_MAX_BODY = 32 * 1024 * 1024
"""Bytes after which an endless answer is cut."""
_MAX_TOTAL = 256 * 1024 * 1024
"""Bytes of all bodies of a run; beyond this limit no bodies are kept."""
_LEAST_PATIENCE = 60.0
"""Seconds after which a server that answers nothing more may be called dead."""
_PATIENCE_WITH_LATENESS = 12
"""After this many answers that did not end in time, no more requests are sent."""
_PATIENCE_WITH_SILENCE = 4
"""After this many requests without any answer, no more requests are sent."""

Send = Callable[[Request], Awaitable[Exchange]]


class Conversation:
    """Send the requests of one scenario, which share its WebSockets."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._sockets = Sockets()
        self._least = 0.0

    async def send(self, request: Request) -> Exchange:
        """Send a request, with retries while the server is busy. Never raises."""
        waited = False

        async def ask() -> Exchange:
            nonlocal waited
            once = msgspec.structs.replace(request, pause=0.0) if waited else request
            waited = True
            return await self._wire.send(once, self._sockets, self._least)

        return await self._wire.retry.send(request.path, ask)

    def insist(self) -> None:
        """Send the next requests, however many earlier answers were late, and wait for a minute at least.

        HTTP-17 has no time: a server that is slow for the user's `--timeout` is not a dead one.
        """
        self._wire.insist()
        self._least = _LEAST_PATIENCE

    async def __aenter__(self) -> Conversation:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sockets.close()


@asynccontextmanager
async def conversations(
    target: Target, patience: float, left: Callable[[], float] = lambda: math.inf
) -> AsyncGenerator[Callable[[], Conversation], None]:
    """Return a factory of conversations with this target.

    Args:
        target: the server.
        patience: seconds after which an exchange ends.
        left: returns the seconds that the run may still take.
    """
    headers = {"user-agent": "plumbline-conformance", "accept-encoding": ACCEPTED}
    if target.api_key is not None:
        headers["authorization"] = f"Bearer {target.api_key}"
    # One connection per request, so that a connection broken by a crash does not affect the next request.
    limits = httpx2.Limits(max_keepalive_connections=0)
    longest = max(patience, _LEAST_PATIENCE)
    async with httpx2.AsyncClient(timeout=longest, headers=headers, limits=limits) as client:
        wire = _Wire(client, target, patience, BusyRetry(left))
        yield lambda: Conversation(wire)


@asynccontextmanager
async def sender(target: Target, patience: float) -> AsyncGenerator[Send, None]:
    """Return a function that sends a request to this target with a time limit and never raises."""
    async with conversations(target, patience) as begin, begin() as conversation:
        yield conversation.send


def exchange_of(target: Target, request: Request) -> Exchange:
    """Return the exchange of a request before its answer."""
    url = joined(target.base_url, request.path)
    headers = {**target.headers, **request.headers}
    if request.method == "WEBSOCKET":
        messages = request.json if isinstance(request.json, list) else [request.json]
        sent = [request.content] if request.content is not None else [message_of(one) for one in messages]
        # One message per line: the JSON that we write contains no line feeds.
        body, url = b"\n".join(sent), f"ws{url.removeprefix('http')}"
    elif request.method in ("GET", "DELETE", "HEAD", "OPTIONS"):
        body = b""
    elif request.content is not None:
        body = request.content
    else:
        body = json.dumps(_seeded(target, _limited(target, request))).encode()
        headers["content-type"] = "application/json"
    return Exchange(
        name=request.name,
        method=request.method,
        url=url,
        request_headers=headers,
        request_body=body,
        version=request.version if request.version != "1.1" else msgspec.UNSET,
    )


def _limited(target: Target, request: Request) -> Any:
    """Return the body of a request, with the token limit under the name that the target accepts.

    An invalid limit keeps its name, because the request tests it.
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
    """Return the body with the target's seed in place of the default one; other values are part of the test."""
    if target.seed == SEED or not isinstance(body, dict) or type(seed := body.get("seed")) is not int:
        return body
    return {**body, "seed": target.seed} if seed == SEED else body


class _Wire:
    """Send requests and keep everything that the server sends."""

    def __init__(self, client: httpx2.AsyncClient, target: Target, patience: float, retry: BusyRetry) -> None:
        self._client = client
        self._target = target
        self._patience = patience
        self.retry = retry
        self._heard = False
        self._silences = 0
        self._late = 0
        self._total = 0

    async def send(self, request: Request, sockets: Sockets, least: float) -> Exchange:
        """Send one request, and wait for these seconds at least; failures are recorded, not raised."""
        patience = max(self._patience, least)
        exchange = exchange_of(self._target, request)
        if not self._heard and self._silences >= _PATIENCE_WITH_SILENCE:
            exchange.error = f"not sent: the server answered none of the first {self._silences} requests"
            return exchange
        if self._late >= _PATIENCE_WITH_LATENESS:
            exchange.error = f"not sent: {self._late} earlier answers did not end in time"
            return exchange
        if request.pause:
            await asyncio.sleep(request.pause)
        started = time.monotonic()
        try:
            _ = urlsplit(
                exchange.url
            ).port  # An unknown encoding raises ValueError here and would crash below.
            async with asyncio.timeout(patience):
                if request.method == "WEBSOCKET":
                    headers = {**_plain(self._client.headers), **exchange.request_headers}
                    room = min(_MAX_BODY, _MAX_TOTAL - self._total)
                    await sockets.exchange(exchange, request, headers, started, room)
                elif request.version == "1.0":
                    await http10.ask(exchange, self._headers, started, _MAX_BODY)
                elif request.behind is not None:
                    first = exchange_of(self._target, request.behind)
                    await pipeline.ask(exchange, first, self._headers, started, _MAX_BODY)
                else:
                    client = sockets.http(request.socket, self._kept) if request.socket else self._client
                    await self._exchange(client, exchange, started)
        except (TimeoutError, httpx2.TimeoutException) as error:
            self._late += 1
            exchange.error = f"{type(error).__name__}: no end after {patience:g} seconds"
        except httpx2.LocalProtocolError as error:
            # httpx2 shows the value of an invalid header in an escaped form, in which redaction would not find a key.
            message = str(error)
            why = "a header that cannot be sent" if "header" in message.lower() else message
            exchange.error = f"{type(error).__name__}: {why}"
        except (
            httpx2.HTTPError,
            httpx2.InvalidURL,
            httpx2.StreamError,
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

    def insist(self) -> None:
        """Forget how many answers were late or missing."""
        self._late = self._silences = 0

    @property
    def _headers(self) -> dict[str, str]:
        """The headers of every request, without a wish for a coding: bytes are kept as they come."""
        return {**_plain(self._client.headers), "accept-encoding": "identity"}

    def _kept(self) -> httpx2.AsyncClient:
        """Return a client with one connection that it keeps."""
        limits = httpx2.Limits(max_connections=1, max_keepalive_connections=1)
        return httpx2.AsyncClient(timeout=self._client.timeout, headers=self._client.headers, limits=limits)

    async def _exchange(self, client: httpx2.AsyncClient, exchange: Exchange, started: float) -> None:
        async with client.stream(
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
                # The compressed bytes are fewer than the content, or the body was cut.
                self._total += sum(len(frame) for _, frame in exchange.frames)
            exchange.error = body.why
            if body.damaged:
                exchange.unreadable = True
            if body.cut and room < _MAX_BODY:
                exchange.error = f"all bodies together are longer than {_MAX_TOTAL} bytes"


def _plain(headers: httpx2.Headers) -> dict[str, str]:
    """Return the headers that also apply to a WebSocket handshake."""
    return {name: value for name, value in headers.items() if name in ("authorization", "user-agent")}

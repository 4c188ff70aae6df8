"""Notice that the server has died, and find out which request killed it.

A connection that breaks may be an accident of the network. The server is dead if nothing accepts connections at its
address afterwards. The requests in flight at that moment are the suspects: one alone is accused, several are repeated
one at a time after the server has returned.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec

from plumbline_conformance.suite.scenario import DIED, MUTE, Request
from plumbline_conformance.transcript.exchange import CLOSED, Exchange

__all__ = ["Death", "Flight", "ServerWatch"]

_MOST_DEATHS = 5
"""After this many deaths the run ends, however often the server returns."""
_BLINK = 0.3
"""Seconds between two looks at the address: a dying process may still accept a connection."""
_MOST_ALARMS = 8
"""After this many broken connections to a living server, one look is enough."""
_LOOK = 0.5
"""Seconds between looks while the server is awaited."""
_REFUSED = ("ConnectError", "ConnectTimeout", "ConnectionRefusedError", "OSError")
_BROKEN = ("ConnectError", "ConnectTimeout", "ReadError", "WriteError", "CloseError", "RemoteProtocolError")
_BROKEN_SOCKET = (f"{CLOSED}, with code None", "no handshake", "Connection", "OSError")
_LONGEST = 80
"""Bytes of a request that are shown."""


class Flight(msgspec.Struct, eq=False):
    """A request that is being answered."""

    scenario: str
    epoch: int
    request: Request | None = None

    @property
    def shown(self) -> str:
        """Return the scenario and the request, cut."""
        if self.request is None:
            return self.scenario
        body = self.request.content if self.request.content is not None else self.request.json
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else json.dumps(body)
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]}…"
        return f"{self.request.method} {self.request.path} {text} of {self.scenario}"


class Death(msgspec.Struct, frozen=True):
    """The server died."""

    suspects: tuple[Flight, ...]
    """The requests in flight: first those with a body, and of these the one that lost its connection first.

    A list of models rarely kills a server.
    """
    returned: bool
    """Whether the server answers again."""


class ServerWatch:
    """Watch one server during a run.

    Args:
        base_url: the server's address.
        patience: seconds to wait for a dead server to return.
    """

    def __init__(self, base_url: str, patience: float) -> None:
        self._base_url = base_url
        self._patience = patience
        self._lock = asyncio.Lock()
        self._flying: list[Flight] = []
        self._heard = False
        self._alarms = 0
        self.deaths: list[Death] = []
        self.over = ""
        """Why no more requests are sent; empty while the server lives."""

    @property
    def epoch(self) -> int:
        """Return how often the server has died."""
        return len(self.deaths)

    def begin(self, scenario: str) -> Flight:
        """Register a conversation."""
        return Flight(scenario, self.epoch)

    async def observe(
        self, flight: Flight, request: Request, ask: Callable[[Request], Awaitable[Exchange]]
    ) -> Exchange:
        """Send a request that is registered as in flight until it is answered."""
        flight.request = request
        self._flying.append(flight)
        exchange: Exchange | None = None
        try:
            exchange = await ask(request)
            return exchange
        finally:
            # A broken request stays a suspect until a look at the address has shown whether the server lives.
            if flight in self._flying and (exchange is None or not self._is_broken(exchange)):
                self._flying.remove(flight)

    def _is_broken(self, exchange: Exchange) -> bool:
        error = exchange.error or ""
        broken = error.startswith(_BROKEN_SOCKET if exchange.method == "WEBSOCKET" else _BROKEN)
        # A server that has never accepted a connection is not dead but unreachable.
        self._heard = self._heard or exchange.status != 0 or (broken and not error.startswith(_REFUSED))
        return self._heard and broken

    def may_drop(self, exchange: Exchange) -> bool:
        """Return whether an HTTP connection broke, so that the request is worth sending again to a living server."""
        return exchange.method != "WEBSOCKET" and self._is_broken(exchange)

    def silence(self, scenario: str) -> None:
        """End the run, because the server lives and has stopped serving."""
        self.over = f"{MUTE} in {scenario}"

    async def death(self, flight: Flight) -> Death | None:
        """Return the death that ended the flight, if its answer broke and the server is dead."""
        if flight not in self._flying:
            return None if flight.epoch == self.epoch else self.deaths[flight.epoch]
        async with self._lock:
            if flight.epoch != self.epoch:
                return self.deaths[flight.epoch]
            if await self._lives():
                self._flying.remove(flight)
                return None
            flying = (flight, *(other for other in self._flying if other is not flight))
            suspects = tuple(
                sorted(flying, key=lambda one: one.request is None or one.request.method == "GET")
            )
            returned = self.epoch + 1 < _MOST_DEATHS and await self._returns()
            self._flying.clear()
            found = Death(suspects, returned)
            self.deaths.append(found)
            if not returned:
                self.over = f"{DIED} in {suspects[0].scenario}"
            return found

    async def _lives(self) -> bool:
        if not await self._accepts():
            return False
        if self._alarms >= _MOST_ALARMS:
            return True
        self._alarms += 1
        await asyncio.sleep(_BLINK)
        return await self._accepts()

    async def _returns(self) -> bool:
        end = time.monotonic() + self._patience
        while time.monotonic() < end:
            await asyncio.sleep(min(_LOOK, self._patience))
            if await self._accepts():
                return True
        return False

    async def listens(self) -> bool:
        """Return whether a connection is accepted in time, which one behind a firewall is not."""
        return await self._accepts(full=False)

    async def _accepts(self, *, full: bool = True) -> bool:
        """Return whether anything accepts a connection at the address.

        Args:
            full: the result for a full queue of connections: the server is slow, not dead.
        """
        parts = urlsplit(self._base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(5):
                _, writer = await asyncio.open_connection(parts.hostname, port)
        except TimeoutError:
            return full
        except OSError:
            return False
        writer.close()
        return True

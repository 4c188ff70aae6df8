"""Retry requests to a busy server, one at a time, after the time that it asks for.

Only an answer that asks for it (status 429, 503 or 529, or an error event that says so) and a refused connection to a
server that has answered before are retried. Every other failure is the server's reaction to the request, and is judged.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["BusyRetry", "pause_of"]

_PAUSES = (1.0, 2.0, 4.0)
"""Seconds before each retry without a `Retry-After`."""
_LONGEST = 60.0
"""Seconds; a request with a longer `Retry-After` is not retried. Rate limits usually count by the minute."""
_PATIENCE = 2
"""After this many requests to one part of the API that were refused on every try, others are not retried either."""
_IN_VAIN = 120.0
"""Seconds of a run that may be spent waiting without success."""
_ALTOGETHER = 600.0
"""Seconds of a run that may be spent waiting in total."""
_UNCONNECTED = ("ConnectError", "ConnectionRefusedError")


class BusyRetry:
    """Retry the requests of one run: while one waits for a busy server, the others queue after it.

    Args:
        left: returns the seconds that the run may still take.
    """

    def __init__(self, left: Callable[[], float] = lambda: math.inf) -> None:
        self._left = left
        self._turn = asyncio.Lock()
        self._given_up: Counter[str] = Counter()
        self._heard = False
        self._waits = 0
        self._waited = 0.0
        self._in_vain = 0.0

    async def send(self, path: str, ask: Callable[[], Awaitable[Exchange]]) -> Exchange:
        """Send a request until it is not refused; returns the last exchange, with earlier statuses in `busy`.

        Args:
            path: path below the base URL; retries are limited per first segment.
            ask: sends the request once and never raises.
        """
        if self._turn.locked():
            async with self._turn:
                pass
        waits = self._waits
        exchange = await self._once(ask)
        kind = _kind(path, exchange) if self._later(exchange) else ""
        if not kind:
            return exchange
        busy: list[int] = []
        async with self._turn:
            # Many requests may be refused at once; the result of the first retry applies to all.
            if self._given_up[kind] >= _PATIENCE:
                return exchange
            if self._waits != waits:
                # Another request has waited since, so this refusal is out of date.
                busy.append(exchange.status)
                exchange = await self._once(ask)
            for pause in _PAUSES:
                if not self._later(exchange):
                    break
                wait = self._allowed(pause_of(exchange, pause))
                if wait is None:
                    break
                self._waits += 1
                await asyncio.sleep(wait)
                busy.append(exchange.status)
                exchange = await self._once(ask)
                self._waited += wait
                self._in_vain += wait if self._later(exchange) else 0.0
            self._given_up[kind] = self._given_up[kind] + 1 if self._later(exchange) else 0
        if busy:
            exchange.busy = busy
        return exchange

    def _allowed(self, wait: float | None) -> float | None:
        """Return the seconds to wait; None if they exceed the time left for waiting."""
        if wait is None or wait > min(_IN_VAIN - self._in_vain, _ALTOGETHER - self._waited, self._left()):
            return None
        return wait

    async def _once(self, ask: Callable[[], Awaitable[Exchange]]) -> Exchange:
        exchange = await ask()
        self._heard = self._heard or exchange.status != 0
        return exchange

    def _later(self, exchange: Exchange) -> bool:
        if exchange.status == 0:
            return self._heard and (exchange.error or "").startswith(_UNCONNECTED)
        return exchange.asks_for_later


def _kind(path: str, exchange: Exchange) -> str:
    if not exchange.status:
        return "connection"
    return path.lstrip("/").partition("/")[0].partition("?")[0] or "/"


def pause_of(exchange: Exchange, pause: float) -> float | None:
    """Return the seconds of a `Retry-After` in either of its formats; None if that is too long."""
    retry_after = exchange.header("retry-after") or ""
    try:
        wait = float(retry_after)
    except ValueError:
        try:
            wait = (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return pause
    if not wait <= _LONGEST:
        return None
    return max(0.0, wait)

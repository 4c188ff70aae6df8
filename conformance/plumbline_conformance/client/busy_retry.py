"""Requests to a server that is busy: they wait as long as it says, one at a time, and are sent again.

Only what says of itself that it is about the moment is asked again: status 429, status 503, and a connection that was
not made to a server that has answered before. Whatever else goes wrong on the wire is what the server did with this
request, and is judged as it came.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from plumbline_conformance.transcript.model import Exchange

__all__ = ["BusyRetry"]

_LATER = (429, 503)
_PAUSES = (1.0, 2.0, 4.0)
"""Seconds before each further try, where the server does not say how long."""
_LONGEST = 60.0
"""Seconds; whoever asks for more is not asked again. Limits of requests are counted by the minute as a rule."""
_PATIENCE = 2
"""After so many requests to one part of the API that stayed refused to the last try, others are not repeated either."""
_IN_VAIN = 120.0
"""Seconds of a run that are waited for a server that is busy all the same afterwards."""
_ALTOGETHER = 600.0
"""Seconds of a run that are waited for anything: a limit of requests that is kept to costs this much at the most."""
_UNCONNECTED = ("ConnectError", "ConnectionRefusedError")


class BusyRetry:
    """What the requests of one run share: while one waits for a busy server, the others stand behind it.

    Args:
        left: seconds that the run may still take.
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
        """The last exchange of a request, with the statuses of those before it in `busy`.

        Args:
            path: below the base URL; patience is counted for its first segment.
            ask: sends the request once. It never raises.
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
            # Many stand here at once, each with a refusal of its own: what the first of them learnt holds for all.
            if self._given_up[kind] >= _PATIENCE:
                return exchange
            if self._waits != waits:
                # Another has waited since this was asked, so that its refusal is of before that.
                busy.append(exchange.status)
                exchange = await self._once(ask)
            for pause in _PAUSES:
                if not self._later(exchange):
                    break
                wait = self._allowed(_pause_of(exchange, pause))
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
        """The same seconds; None where they are more than the run has left for waiting."""
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
        return exchange.status in _LATER


def _kind(path: str, exchange: Exchange) -> str:
    if not exchange.status:
        return "connection"
    return path.lstrip("/").partition("/")[0].partition("?")[0] or "/"


def _pause_of(exchange: Exchange, pause: float) -> float | None:
    """Seconds to wait, by `Retry-After` in either of its forms; None where that is too long."""
    said = exchange.header("retry-after") or ""
    try:
        wait = float(said)
    except ValueError:
        try:
            wait = (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return pause
    if not wait <= _LONGEST:
        return None
    return max(0.0, wait)

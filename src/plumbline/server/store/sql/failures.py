"""Know which kinds of transactions fail, and try them until they work: the next one of a kind may be hours away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from plumbline.server.store.interface import StoreUnavailableError

__all__ = ["Failures"]

_log = logging.getLogger("plumbline.store")
PAUSE = 2.0
"""Seconds between two probes."""


class Failures:
    """The kinds of transactions (read, write, renew) of which the last one failed.

    Args:
        probe: runs a small transaction of a kind and reports its end here, as all do.
    """

    def __init__(self, probe: Callable[[str], Awaitable[None]]) -> None:
        self._probe = probe
        self._since: dict[str, tuple[float, str]] = {}
        """By kind, since when, and why the last one did: a lock stops writes only."""
        self._probing: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        """Whether any fails."""
        return bool(self._since)

    @property
    def kinds(self) -> list[str]:
        """The kinds that fail."""
        return list(self._since)

    def failed(self, kind: str, reason: str) -> None:
        """Log the first failure of a series, and each that has another reason."""
        since, known = self._since.get(kind, (time.monotonic(), ""))
        self._since[kind] = since, reason
        if reason != known:
            _log.error("the store does not %s: %s", kind, reason)
        if self._probing is None:
            self._probing = asyncio.get_running_loop().create_task(self._try_again())

    def worked(self, kind: str) -> None:
        """Note that a transaction was committed."""
        if kind in self._since:
            since, _ = self._since.pop(kind)
            _log.warning("the store %ss again, after %.0f s", kind, time.monotonic() - since)

    async def stop(self) -> None:
        """End the probes. Idempotent."""
        probing, self._probing = self._probing, None
        if probing is not None:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)

    async def _try_again(self) -> None:
        while self._since:
            await asyncio.sleep(PAUSE)
            for kind in self.kinds:
                try:
                    await self._probe(kind)
                except StoreUnavailableError:
                    pass  # It was noted where all failures are.
                except Exception:  # One that is not raised by design must not end the probes.
                    _log.exception("a probe of the store failed")
        self._probing = None

"""Follow and cancel responses in the background that another server generates, by way of the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

from plumbline.base.shares import within_share
from plumbline.contract._generated.events import ResponseStreamEvent
from plumbline.contract._generated.responses import Response
from plumbline.contract.wire.decode import encode, read_back
from plumbline.contract.wire.errors import rate_limited
from plumbline.server.http.failures import store_errors
from plumbline.server.protocols.responses.event_log import EventLog, replayed
from plumbline.server.protocols.responses.writer import CANCELLED
from plumbline.server.responses.unfinished import unfinished
from plumbline.server.store.interface import Store, StoreUnavailableError
from plumbline.server.store.records import UNFINISHED, ResponseRecord

__all__ = ["Followers"]

_POLL_SECONDS = 0.5
_MOST = 100
"""Streams that follow responses of other servers at once; each reads the store twice a second."""
_MOST_OF_A_KEY = 50
"""How many of them one key may have, and less beside others, so that each finds room."""
_CANCEL_SECONDS = 5.0
"""How long a cancellation waits for the server that generates the response."""


class Followers:
    """The streams of this process that follow responses of other servers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts: Counter[str] = Counter()
        """The streams of each owner."""

    def check_room(self, owner: str) -> None:
        """Refuse another stream of an owner if a limit is reached; without keys all have one owner, the empty one.

        Raises:
            ApiError: 429, the limit is reached.
        """
        own, used = self._counts[owner], self._counts.total()
        if used >= _MOST:
            raise rate_limited(
                f"{_MOST} streams follow responses of other servers, the most that this one allows."
            )
        if owner and (own >= _MOST_OF_A_KEY or not within_share(own, 1, used, _MOST)):
            raise rate_limited(
                f"{own} streams of this key follow responses of other servers, its share of them."
            )

    async def events(self, record: ResponseRecord) -> AsyncIterator[ResponseStreamEvent]:
        """Yield all events of a stored response, waiting for those that are still to come."""
        self._counts[record.owner] += 1
        try:
            async for event in self._events(record):
                yield event
        finally:
            self._counts -= Counter([record.owner])  # Without owners whose count is 0.

    async def _events(self, record: ResponseRecord) -> AsyncIterator[ResponseStreamEvent]:
        last, seen = -1, 0
        if record.status in UNFINISHED:
            found = unfinished(record)
            while (parts := await self._parts(record.id, seen)) is not None:
                seen += len(parts)
                for event in found.add(parts):
                    last = event.sequence_number
                    yield event
                await asyncio.sleep(_POLL_SECONDS)
            with store_errors():
                ended = await self._store.response(record.owner, record.id)
            if ended is None:
                for event in found.end(CANCELLED):  # It was deleted.
                    yield event
                return
            record = ended
        response = read_back(Response, record.response)
        for event in replayed(response, EventLog.decode(record.events)):
            if event.sequence_number > last:
                yield event

    async def _parts(self, response_id: str, first: int) -> list[bytes] | None:
        """Return new parts; none while the store fails, which a stream outlasts."""
        try:
            parts = await self._store.parts(response_id, first)
        except StoreUnavailableError:
            return []
        return None if parts is None else list(parts)

    async def as_it_is(self, record: ResponseRecord) -> bytes:
        """Return a stored response with what it has so far."""
        if record.status not in UNFINISHED:
            return record.response
        with store_errors():
            parts = await self._store.parts(record.id, 0)
        if not parts:  # It has just begun, or just ended.
            return record.response
        found = unfinished(record)
        for _ in found.add(parts):
            pass
        return encode(found.writer.response)

    async def cancel(self, record: ResponseRecord) -> ResponseRecord:
        """Ask the server that generates a response to cancel it.

        Returns:
            The response when it has ended, or as it is after a few seconds: its server is gone, or of an older version.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + _CANCEL_SECONDS
        found: ResponseRecord | None = record
        with store_errors():
            await self._store.request_cancel(record.owner, record.id)
            while found is not None and found.status in UNFINISHED and loop.time() < end:
                await asyncio.sleep(_POLL_SECONDS / 2)
                found = await self._store.response(record.owner, record.id)
        return record if found is None else found

"""Fetch, replay, cancel and delete stored responses, and list what they were created from."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from plumbline.contract._generated.events import ResponseStreamEvent
from plumbline.contract._generated.responses import DeleteResponseResult
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.errors import invalid_request, response_not_found
from plumbline.contract.wire.reply import JsonReply, Reply
from plumbline.server.http.failures import store_errors
from plumbline.server.http.frames import event_frames
from plumbline.server.operations.base import ServerOperations
from plumbline.server.responses.background import BackgroundRun
from plumbline.server.responses.pages import page
from plumbline.server.store.records import UNFINISHED, ResponseRecord

__all__ = ["StoredResponseOperations"]


class StoredResponseOperations(ServerOperations):
    """Operations on stored responses."""

    async def get_response(
        self,
        call: Call,
        *,
        response_id: str,
        include: list[str],
        stream: bool | None,
        starting_after: int | None,
        include_obfuscation: bool | None,
    ) -> Reply:
        """Return a response, or repeat its events (RS-19, RS-20)."""
        run, record = await self._stored(call, response_id)
        if stream is not True:
            if starting_after is not None:
                raise invalid_request("'starting_after' needs 'stream': true.", "starting_after")
            followers = self._required_memory().followers
            return JsonReply(await followers.as_it_is(record) if run is None else encode(run.writer.response))
        events = self._followed(record) if run is None else run.events()
        after = -1 if starting_after is None else starting_after
        return self._replies.stream(call, event_frames(_later(events, after), include_obfuscation is True))

    async def delete_response(self, call: Call, *, response_id: str) -> Reply:
        """Delete a response; stop it first if it runs (ST-02)."""
        run, record = await self._stored(call, response_id)
        if run is not None:
            await run.cancel()
        assert self._memory is not None
        with store_errors():
            await self._memory.store.delete_response(record.owner, response_id)
        return JsonReply(encode(DeleteResponseResult(id=response_id)))

    async def cancel_response(self, call: Call, *, response_id: str) -> Reply:
        """Stop a background response; one that has ended stays as it is (ST-11)."""
        run, record = await self._stored(call, response_id)
        if run is not None:
            await run.cancel()
            return JsonReply(encode(run.writer.response))
        if not msgspec.json.decode(record.response, type=_Background).background:
            raise invalid_request(
                "Cannot cancel a synchronous response: only those created with 'background': true can be.",
                "response_id",
            )
        if record.status in UNFINISHED:
            followers = self._required_memory().followers
            record = await followers.cancel(record)
            return JsonReply(await followers.as_it_is(record))
        return JsonReply(record.response)

    async def list_input_items(
        self, call: Call, *, response_id: str, limit: int, order: str, after: str | None, include: list[str]
    ) -> Reply:
        """List the items of a response's own input (ST-08)."""
        _, record = await self._stored(call, response_id)
        return JsonReply(page(record.input, limit=limit, order=order, after=after))

    def _followed(self, record: ResponseRecord) -> AsyncIterator[ResponseStreamEvent]:
        """Return the events of a response that has ended, or that another server generates."""
        followers = self._required_memory().followers
        if record.status in UNFINISHED:
            followers.check_room(record.owner)
        return followers.events(record)

    async def _stored(self, call: Call, response_id: str) -> tuple[BackgroundRun | None, ResponseRecord]:
        """Return a stored response, and its run if this process still generates it.

        Raises:
            ApiError: 404 if it does not exist, or belongs to another key (ST-03).
        """
        if self._memory is None:
            raise response_not_found(response_id)
        owner = self._memory.owner(call)
        run = self._runs.find(owner, response_id)
        with store_errors():
            record = await self._memory.store.response(owner, response_id)
        if record is None:
            raise response_not_found(response_id)
        return (run if record.status in UNFINISHED else None), record


class _Background(msgspec.Struct):
    background: bool = False


async def _later(
    events: AsyncIterator[ResponseStreamEvent], after: int
) -> AsyncIterator[ResponseStreamEvent]:
    async for event in events:
        if event.sequence_number > after:
            yield event

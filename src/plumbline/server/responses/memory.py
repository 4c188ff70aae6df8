"""Find what a request continues in the store, and keep what came of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from plumbline._generated.items import InputItem
from plumbline._generated.responses import CreateResponse, Response, TokenCountsBody
from plumbline.protocols.common.fields import or_default
from plumbline.protocols.responses.event_log import EventLog
from plumbline.protocols.responses.reader import Context, check_continued, own_input
from plumbline.protocols.responses.stored_items import (
    as_context,
    output_records,
    referenced_ids,
    resolve_references,
    stored_input,
)
from plumbline.server.failures import store_errors
from plumbline.store.interface import Store
from plumbline.store.records import UNFINISHED, ItemRecord, ResponseRecord
from plumbline.wire.call import Call
from plumbline.wire.decode import encode
from plumbline.wire.errors import invalid_request, previous_response_not_found

__all__ = ["MAX_TURNS", "Keeper", "Memory"]

MAX_TURNS = 4096
"""Responses that one chain of `previous_response_id` may have."""


class Keeper:
    """Stores one response, with what it was created from."""

    def __init__(self, store: Store, owner: str, own: Sequence[ItemRecord], log: EventLog) -> None:
        self._store = store
        self.owner = owner
        self._input = tuple(own)
        self.log = log
        """The events of the answer so far."""

    async def save(self, response: Response) -> None:
        """Store the response as it is; returns when that is durable.

        Raises:
            ApiError: 503 if the store cannot be used, 429 if the owner has too many responses.
        """
        body = encode(response)
        conversation = response.conversation
        with store_errors():
            await self._store.save_response(
                ResponseRecord(
                    id=response.id,
                    owner=self.owner,
                    created_at=response.created_at,
                    status=response.status,
                    parent=response.previous_response_id,
                    conversation=conversation.id if isinstance(conversation, msgspec.Struct) else None,
                    response=body,
                    input=self._input,
                    output=output_records(body),
                    events=self.log.encode(),
                )
            )


class Memory:
    """The stored past of requests."""

    def __init__(self, store: Store, *, checks_keys: bool) -> None:
        """Look into a store.

        Args:
            store: the store.
            checks_keys: whether the server checks API keys; without, all clients share their responses.
        """
        self.store = store
        self._checks_keys = checks_keys

    def owner(self, call: Call) -> str:
        """Return whom the records of a request belong to: a digest of its key."""
        if not self._checks_keys:
            return ""
        return hashlib.sha256((call.api_key or "").encode("utf-8", "surrogateescape")).hexdigest()

    async def context(self, request: CreateResponse | TokenCountsBody, owner: str) -> Context:
        """Return the items that a request is answered from.

        Raises:
            ApiError: 400 for an unknown response or item, and for a response that has not ended; 503 if the store
                cannot be used.
        """
        check_continued(request)
        own = own_input(request)
        wanted = referenced_ids(own)
        if wanted:
            with store_errors():
                own = resolve_references(own, await self.store.items(owner, wanted))
        previous = or_default(request.previous_response_id, None)
        earlier = [] if previous is None else await self._chain(owner, previous)
        return Context(earlier, own)

    def keeper(self, owner: str, context: Context, log: EventLog) -> Keeper:
        """Return what stores the response to a request."""
        return Keeper(self.store, owner, stored_input(context.own), log)

    async def _chain(self, owner: str, response_id: str) -> list[InputItem]:
        """Return the items of a response and of all that it continues (ST-04)."""
        with store_errors():
            records = await self.store.chain(owner, response_id, MAX_TURNS)
        if not records:
            raise previous_response_not_found(response_id)
        if (missing := records[0].parent) is not None:
            if len(records) >= MAX_TURNS:
                raise invalid_request(
                    f"The conversation has more than {MAX_TURNS} responses. Begin a new one with a summary.",
                    "previous_response_id",
                )
            raise previous_response_not_found(missing)
        if records[-1].status in UNFINISHED:
            raise invalid_request(
                f"Previous response with id '{response_id}' has not ended: it is {records[-1].status}. Wait for it.",
                "previous_response_id",
                "previous_response_in_progress",
            )
        return as_context(item.body for record in records for item in (*record.input, *record.output))

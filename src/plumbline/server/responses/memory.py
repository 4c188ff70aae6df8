"""Load from the store what a request continues, and store its response."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from plumbline.contract._generated.items import CompactionBody, InputItem
from plumbline.contract._generated.responses import Response
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.errors import (
    ApiError,
    conversation_not_found,
    invalid_request,
    previous_response_not_found,
)
from plumbline.server.http.failures import store_errors
from plumbline.server.limits.claims.names import Claims
from plumbline.server.limits.keys import KeyRing, as_sent
from plumbline.server.protocols.common.fields import or_default
from plumbline.server.protocols.responses.event_log import EventLog
from plumbline.server.protocols.responses.reader import (
    Context,
    Continuing,
    check_continued,
    conversation_id,
    own_input,
)
from plumbline.server.protocols.responses.stored_items import (
    as_context,
    check_storable,
    referenced_ids,
    resolve_references,
    stored_input,
)
from plumbline.server.responses.conversations import ConversationLocks, Hold
from plumbline.server.responses.followers import Followers
from plumbline.server.store.interface import Store, StoreUnavailableError
from plumbline.server.store.records import (
    UNFINISHED,
    ConversationRecord,
    ItemRecord,
    ResponseRecord,
    output_items,
)

__all__ = ["MAX_CONTEXT_BYTES", "MAX_TURNS", "Keeper", "Memory"]

MAX_TURNS = 4096
"""Responses that one chain of `previous_response_id` may have."""

MAX_CONTEXT_BYTES = 16 * 1024 * 1024
"""Bytes of stored items that one request may continue. A body has 10 MB at most."""

MAX_CONVERSATION_ITEMS = 65_536
"""Items that a conversation may have when a request continues it."""


class Keeper:
    """Stores one response, with what it was created from."""

    def __init__(self, store: Store, owner: str, own: Sequence[ItemRecord], log: EventLog) -> None:
        self._store = store
        self.owner = owner
        self._input = tuple(own)
        self.log = log
        """The events of the answer so far."""
        self.is_shared = store.is_shared
        """Whether other servers may follow the response."""

    async def save(self, response: Response) -> None:
        """Store the response as it is; returns when that is durable.

        Raises:
            ApiError: 503 if the store cannot be used.
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
                    compacts=any(isinstance(item, CompactionBody) for item in response.output),
                    conversation=conversation.id if isinstance(conversation, msgspec.Struct) else None,
                    response=body,
                    input=self._input,
                    output=output_items(body),
                    events=self.log.encode(),
                )
            )

    async def keep_part(self, response_id: str, number: int, part: bytes) -> bool:
        """Keep what the response has gained for other servers; return whether that is durable."""
        try:
            return await self._store.append_part(response_id, number, part)
        except StoreUnavailableError:
            return False


class Memory:
    """The stored past of requests."""

    def __init__(self, store: Store, keys: KeyRing, claims: Claims) -> None:
        """Look into a store.

        Args:
            store: the store.
            keys: the keys of the server; without any, all clients share their responses.
            claims: the claims of all processes that serve the same clients.
        """
        self.store = store
        self.locks = ConversationLocks(claims, store)
        self.followers = Followers(store)
        self._keys = keys

    def owner(self, call: Call) -> str:
        """Return the owner of a request's records: a digest of its key."""
        if self._keys.open:
            return ""
        return hashlib.sha256((call.api_key or "").encode("utf-8", "surrogateescape")).hexdigest()

    async def context(self, request: Continuing, owner: str) -> Context:
        """Return the items that a request is answered from.

        Raises:
            ApiError: 400 for an unknown response or item, and for a response that has not ended; 503 if the store
                cannot be used.
        """
        check_continued(request)
        own = await self._resolved(own_input(request), owner)
        previous = or_default(request.previous_response_id, None)
        conversation = conversation_id(request)
        earlier: list[InputItem] = []
        if previous is not None:
            earlier = await self._chain(owner, previous)
        elif conversation is not None:
            earlier = await self._items(owner, conversation)
        return Context(earlier, own)

    async def storable(self, items: Sequence[InputItem], owner: str) -> Sequence[ItemRecord]:
        """Return items that a client adds to a conversation as they are stored.

        Raises:
            ApiError: 400 for an unknown reference, and for items that no response could be answered from; 503 if the
                store cannot be used.
        """
        resolved = await self._resolved(items, owner, "items")
        assert not isinstance(resolved, str)
        check_storable(resolved, "items")
        return stored_input(resolved)

    async def _resolved(
        self, items: str | Sequence[InputItem], owner: str, param: str = "input"
    ) -> str | Sequence[InputItem]:
        wanted = referenced_ids(items)
        if not wanted:
            return items
        with store_errors():
            return resolve_references(items, await self.store.items(owner, wanted, MAX_CONTEXT_BYTES), param)

    async def conversation(self, owner: str, name: str, param: str = "conversation_id") -> ConversationRecord:
        """Return a conversation.

        Raises:
            ApiError: 404 if it is unknown or belongs to another owner; `param` is the field that names it.
        """
        with store_errors():
            found = await self.store.conversation(owner, name)
        if found is None:
            raise conversation_not_found(name, param)
        return found

    async def hold(self, owner: str, name: str, param: str = "conversation_id") -> Hold:
        """Begin to work on a conversation.

        Raises:
            ApiError: 409 if another request does, 404 as for `conversation`.
        """
        try:
            return await self.locks.acquire(owner, name)
        except ApiError:
            # Requests that name an unknown conversation at once must all learn that it is unknown.
            await self.conversation(owner, name, param)
            raise

    async def check_room(self, call: Call, *, responses: bool = False) -> None:
        """Check that the key of a request may store something more.

        Args:
            call: the request's call.
            responses: whether that is a response, whose number may also have a limit.

        Raises:
            ApiError: 429 if the key has as much as it may; 503 if the store cannot be used.
        """
        most_bytes = self._keys.find(as_sent(call.api_key or "")).stored or None
        with store_errors():
            await self.store.check_room(self.owner(call), responses=responses, most_bytes=most_bytes)

    async def keeper(self, call: Call, context: Context, log: EventLog) -> Keeper:
        """Return the keeper that stores the response to a request.

        Raises:
            ApiError: 429 if the key has as much as it may; 503 if the store cannot be used.
        """
        await self.check_room(call, responses=True)
        return Keeper(self.store, self.owner(call), stored_input(context.own), log)

    async def _items(self, owner: str, name: str) -> list[InputItem]:
        """Return the items of a conversation (ST-09)."""
        await self.conversation(owner, name, "conversation")
        with store_errors():
            page = await self.store.conversation_items(
                owner, name, limit=MAX_CONVERSATION_ITEMS, most_bytes=MAX_CONTEXT_BYTES
            )
        if page.has_more:
            raise invalid_request(
                f"The conversation has more than {MAX_CONVERSATION_ITEMS} items. Begin a new one with a summary.",
                "conversation",
            )
        return as_context(item.body for item in page.entries)

    async def _chain(self, owner: str, response_id: str) -> list[InputItem]:
        """Return the items of a response and of all that it continues (ST-04)."""
        with store_errors():
            records = await self.store.chain(owner, response_id, MAX_TURNS, MAX_CONTEXT_BYTES)
        if not records:
            raise previous_response_not_found(response_id)
        if (missing := records[0].parent) is not None and not records[0].compacts:
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

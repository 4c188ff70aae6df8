"""Create, change and read conversations (ST-09)."""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.contract._generated.conversations import (
    ConversationResource,
    CreateConversationBody,
    CreateConversationItemsBody,
    DeletedConversationResource,
    UpdateConversationBody,
)
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.errors import conversation_not_found, item_not_found
from plumbline.contract.wire.reply import JsonReply, Reply
from plumbline.server.http.failures import store_errors
from plumbline.server.operations.base import ServerOperations
from plumbline.server.protocols.common.fields import or_default
from plumbline.server.protocols.common.ids import new_id, now
from plumbline.server.responses.pages import item_list, unknown_cursor
from plumbline.server.store.interface import UnknownCursorError
from plumbline.server.store.records import ConversationRecord

__all__ = ["ConversationOperations"]


class ConversationOperations(ServerOperations):
    """Operations on conversations. An unknown conversation, or one of another owner, is an `ApiError` 404."""

    async def create_conversation(self, request: CreateConversationBody, call: Call) -> Reply:
        """Store a conversation with its first items."""
        memory = self._required_memory()
        record = ConversationRecord(
            id=new_id("conv_"),
            owner=memory.owner(call),
            created_at=now(),
            metadata=or_default(request.metadata, {}),
        )
        items = await memory.storable(or_default(request.items, []), record.owner)
        await memory.check_room(call)
        with store_errors():
            await memory.store.save_conversation(record, items)
        return _resource(record)

    async def get_conversation(self, call: Call, *, conversation_id: str) -> Reply:
        """Describe a conversation."""
        return _resource(await self._known(call, conversation_id))

    async def update_conversation(
        self, request: UpdateConversationBody, call: Call, *, conversation_id: str
    ) -> Reply:
        """Replace the metadata of a conversation."""
        found = await self._known(call, conversation_id)
        metadata: Mapping[str, str] = request.metadata or {}
        record = ConversationRecord(
            id=found.id, owner=found.owner, created_at=found.created_at, metadata=metadata
        )
        with store_errors():
            await self._required_memory().store.save_conversation(record)
        return _resource(record)

    async def delete_conversation(self, call: Call, *, conversation_id: str) -> Reply:
        """Delete a conversation with its items."""
        memory = self._required_memory()
        with store_errors():
            existed = await memory.store.delete_conversation(memory.owner(call), conversation_id)
        if not existed:
            raise conversation_not_found(conversation_id)
        return JsonReply(encode(DeletedConversationResource(id=conversation_id)))

    async def create_conversation_items(
        self, request: CreateConversationItemsBody, call: Call, *, conversation_id: str, include: list[str]
    ) -> Reply:
        """Append items."""
        memory = self._required_memory()
        owner = memory.owner(call)
        records = await memory.storable(request.items, owner)
        await memory.check_room(call)
        hold = await memory.hold(owner, conversation_id)
        try:
            with store_errors():
                exists = await memory.store.append_items(owner, conversation_id, records)
        finally:
            hold.release()
        if not exists:
            raise conversation_not_found(conversation_id)
        return JsonReply(item_list(records, has_more=False))

    async def list_conversation_items(
        self,
        call: Call,
        *,
        conversation_id: str,
        limit: int,
        order: str,
        after: str | None,
        include: list[str],
    ) -> Reply:
        """List items, a page at a time."""
        found = await self._known(call, conversation_id)
        try:
            with store_errors():
                page = await self._required_memory().store.conversation_items(
                    found.owner,
                    conversation_id,
                    limit=limit,
                    order="asc" if order == "asc" else "desc",
                    after=after,
                )
        except UnknownCursorError:
            raise unknown_cursor(after or "") from None
        return JsonReply(item_list(page.entries, has_more=page.has_more))

    async def get_conversation_item(
        self, call: Call, *, conversation_id: str, item_id: str, include: list[str]
    ) -> Reply:
        """Return one item."""
        found = await self._known(call, conversation_id)
        with store_errors():
            item = await self._required_memory().store.conversation_item(
                found.owner, conversation_id, item_id
            )
        if item is None:
            raise item_not_found(item_id)
        return JsonReply(item.body)

    async def delete_conversation_item(self, call: Call, *, conversation_id: str, item_id: str) -> Reply:
        """Delete one item; the answer is the conversation."""
        found = await self._known(call, conversation_id)
        with store_errors():
            existed = await self._required_memory().store.delete_conversation_item(
                found.owner, conversation_id, item_id
            )
        if not existed:
            raise item_not_found(item_id)
        return _resource(found)

    async def _known(self, call: Call, conversation_id: str) -> ConversationRecord:
        memory = self._required_memory()
        return await memory.conversation(memory.owner(call), conversation_id)


def _resource(record: ConversationRecord) -> JsonReply:
    return JsonReply(
        encode(
            ConversationResource(id=record.id, metadata=dict(record.metadata), created_at=record.created_at)
        )
    )

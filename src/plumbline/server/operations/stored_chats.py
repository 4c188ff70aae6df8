"""List, change and delete stored chat completions (CHAT-16)."""

from __future__ import annotations

import msgspec

from plumbline.contract._generated.chat import (
    ChatCompletionDeleted,
    CreateChatCompletionResponse,
    UpdateChatCompletionBody,
)
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import encode, read_back
from plumbline.contract.wire.errors import completion_not_found
from plumbline.contract.wire.reply import JsonReply, Reply
from plumbline.server.http.failures import store_errors
from plumbline.server.operations.base import ServerOperations
from plumbline.server.responses.pages import item_list, page, unknown_cursor
from plumbline.server.store.interface import UnknownCursorError
from plumbline.server.store.records import ChatRecord, ItemRecord

__all__ = ["StoredChatOperations"]


class StoredChatOperations(ServerOperations):
    """Operations on stored chat completions. An unknown one, or one of another owner, is an `ApiError` 404."""

    async def list_chat_completions(
        self,
        call: Call,
        *,
        model: str | None,
        metadata: dict[str, str],
        after: str | None,
        limit: int,
        order: str,
    ) -> Reply:
        """List completions by model and metadata, a page at a time."""
        memory = self._required_memory()
        try:
            with store_errors():
                found = await memory.store.chats(
                    memory.owner(call),
                    model=model,
                    metadata=metadata,
                    limit=limit,
                    order="desc" if order == "desc" else "asc",
                    after=after,
                )
        except UnknownCursorError:
            raise unknown_cursor(after or "") from None
        entries = [ItemRecord(record.id, _body(record)) for record in found.entries]
        return JsonReply(item_list(entries, has_more=found.has_more))

    async def get_chat_completion(self, call: Call, *, completion_id: str) -> Reply:
        """Return a completion."""
        return JsonReply(_body(await self._completion(call, completion_id)))

    async def update_chat_completion(
        self, request: UpdateChatCompletionBody, call: Call, *, completion_id: str
    ) -> Reply:
        """Replace the metadata of a completion."""
        found = await self._completion(call, completion_id)
        changed = msgspec.structs.replace(found, metadata=request.metadata or {})
        with store_errors():
            await self._required_memory().store.save_chat(changed)
        return JsonReply(_body(changed))

    async def delete_chat_completion(self, call: Call, *, completion_id: str) -> Reply:
        """Delete a completion."""
        memory = self._required_memory()
        with store_errors():
            existed = await memory.store.delete_chat(memory.owner(call), completion_id)
        if not existed:
            raise completion_not_found(completion_id)
        return JsonReply(encode(ChatCompletionDeleted(id=completion_id)))

    async def get_chat_completion_messages(
        self, call: Call, *, completion_id: str, after: str | None, limit: int, order: str
    ) -> Reply:
        """List the messages that a completion answers."""
        found = await self._completion(call, completion_id)
        return JsonReply(page(found.messages, limit=limit, order=order, after=after))

    async def _completion(self, call: Call, completion_id: str) -> ChatRecord:
        memory = self._required_memory()
        with store_errors():
            found = await memory.store.chat(memory.owner(call), completion_id)
        if found is None:
            raise completion_not_found(completion_id)
        return found


def _body(record: ChatRecord) -> bytes:
    """Return the completion with its current metadata."""
    completion = read_back(CreateChatCompletionResponse, record.completion)
    completion.metadata = dict(record.metadata)
    return encode(completion)

"""Model a store with plain dicts, to compare others with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from plumbline.server.store.records import (
    UNFINISHED,
    ChatRecord,
    ConversationRecord,
    ItemRecord,
    ResponseRecord,
)

__all__ = ["StoreModel"]

Key = tuple[str, str]
"""An owner and an id."""


class StoreModel:
    """Responses, conversations and chat completions by owner and id."""

    def __init__(self) -> None:
        self.responses: dict[Key, ResponseRecord] = {}
        self.conversations: dict[Key, dict[str, bytes]] = {}
        self.chats: dict[Key, ChatRecord] = {}
        self._waiting: set[Key] = set()
        # (owner, item) -> holders with the body that each has, the newest last
        self._holders: dict[Key, dict[str, bytes]] = {}

    def save_response(self, record: ResponseRecord) -> None:
        """Store it unless it was deleted while unfinished, or has ended."""
        key = (record.owner, record.id)
        known = self.responses.get(key)
        if (known is not None and known.status not in UNFINISHED) or (known is None and key in self._waiting):
            if record.status not in UNFINISHED:
                self._waiting.discard(key)
            else:
                self._waiting.add(key)
            return
        if record.status in UNFINISHED:
            self._waiting.add(key)
        else:
            self._waiting.discard(key)
        self.responses[key] = record
        every = {**_bodies(record.input), **_bodies(record.output)}
        self._forget(record.owner, record.id)
        self._hold(record.owner, record.id, every)
        if record.conversation is not None and record.status not in UNFINISHED:
            self.append(record.owner, record.conversation, [*record.input, *record.output])

    def chain(self, owner: str, name: str, most: int, most_bytes: int) -> list[str] | None:
        """Return ids, the oldest first; None if their payloads have too many bytes."""
        found: list[str] = []
        wanted: str | None = name
        read = 0
        while wanted is not None and (owner, wanted) in self.responses and len(found) < most:
            one = self.responses[owner, wanted]
            found.append(wanted)
            read += len(one.response) + len(msgspec.msgpack.encode(one.input))
            if read > most_bytes:
                return None
            wanted = None if one.compacts else one.parent
        return found[::-1]

    def delete_response(self, owner: str, name: str) -> bool:
        """Delete it, and its items."""
        self._forget(owner, name)
        return self.responses.pop((owner, name), None) is not None

    def save_conversation(self, record: ConversationRecord, items: Sequence[ItemRecord]) -> None:
        """Store it."""
        self.conversations.setdefault((record.owner, record.id), {})
        self.append(record.owner, record.id, items)

    def append(self, owner: str, name: str, items: Sequence[ItemRecord]) -> bool:
        """Append items; one that is there stays in its place."""
        if (owner, name) not in self.conversations:
            return False
        self.conversations[owner, name] |= _bodies(items)
        self._hold(owner, name, _bodies(items))
        return True

    def listed(self, owner: str, name: str) -> list[ItemRecord]:
        """Return the items of a conversation."""
        return [ItemRecord(*one) for one in self.conversations[owner, name].items()]

    def delete_conversation(self, owner: str, name: str) -> bool:
        """Delete it, and its items."""
        self._forget(owner, name)
        return self.conversations.pop((owner, name), None) is not None

    def delete_conversation_item(self, owner: str, name: str, item: str) -> bool:
        """Delete one item."""
        if item not in self.conversations.get((owner, name), {}):
            return False
        del self.conversations[owner, name][item]
        del self._holders[owner, item][name]
        return True

    def save_chat(self, record: ChatRecord) -> None:
        """Store it, or only its metadata."""
        known = self.chats.get((record.owner, record.id))
        changed = record if known is None else msgspec.structs.replace(known, metadata=record.metadata)
        self.chats[record.owner, record.id] = changed

    def chat_names(self, owner: str, model: str | None, metadata: Mapping[str, str]) -> list[str]:
        """Return ids in order of creation."""
        return [
            name
            for (whose, name), one in self.chats.items()
            if whose == owner and model in (None, one.model) and metadata.items() <= one.metadata.items()
        ]

    def delete_chat(self, owner: str, name: str) -> bool:
        """Delete it."""
        return self.chats.pop((owner, name), None) is not None

    def items(self, owner: str, names: Collection[str]) -> dict[str, bytes]:
        """Return the newest body of each."""
        found = ((name, self._holders.get((owner, name))) for name in names)
        return {name: [*holders.values()][-1] for name, holders in found if holders}

    def _hold(self, owner: str, holder: str, bodies: Mapping[str, bytes]) -> None:
        for name, body in bodies.items():
            holders = self._holders.setdefault((owner, name), {})
            holders.pop(holder, None)
            holders[holder] = body

    def _forget(self, owner: str, holder: str) -> None:
        for (whose, _), holders in self._holders.items():
            if whose == owner:
                holders.pop(holder, None)


def _bodies(items: Sequence[ItemRecord]) -> dict[str, bytes]:
    return {one.id: one.body for one in items}

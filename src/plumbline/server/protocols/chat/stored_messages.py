"""Write the messages of a request as they are stored and listed (CHAT-16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from plumbline.server.protocols.common.fields import or_default
from plumbline.server.store.records import ItemRecord

__all__ = ["stored_messages"]

_KEPT = ("name", "refusal", "tool_calls", "tool_call_id")


def stored_messages(completion_id: str, messages: Sequence[Any]) -> tuple[ItemRecord, ...]:
    """Return the messages with ids: a text stands in `content`, parts in `content_parts`."""
    found = []
    for index, message in enumerate(messages):
        given: dict[str, Any] = msgspec.to_builtins(message)
        content = given.get("content")
        body = {
            "id": f"{completion_id}-{index}",
            "role": given["role"],
            "content": content if isinstance(content, str) else None,
            "content_parts": content if isinstance(content, list) else None,
            **{name: given[name] for name in _KEPT if or_default(given.get(name), None) is not None},
        }
        found.append(ItemRecord(body["id"], msgspec.json.encode(body)))
    return tuple(found)

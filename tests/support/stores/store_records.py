"""Make records for tests of stores."""

from __future__ import annotations

import msgspec

from plumbline.server.store.records import ChatRecord, ItemRecord, ResponseRecord

__all__ = ["chat", "item", "record"]


def item(name: str, version: int = 0) -> ItemRecord:
    """Return an item; its body depends on the version."""
    return ItemRecord(name, msgspec.json.encode({"type": "message", "id": name, "version": version}))


def record(name: str, **changes: object) -> ResponseRecord:
    """Return a response with one output item, `out_NAME`, and one input item, `in_NAME`."""
    output = (item(f"out_{name}"),)
    body = {"id": name, "output": [msgspec.Raw(one.body) for one in output]}
    fields = {
        "id": name,
        "owner": "a",
        "created_at": 1_800_000_000,
        "status": "completed",
        "response": msgspec.json.encode(body),
        "input": (item(f"in_{name}"),),
        "output": output,
        "events": b"\x00\xff",
        **changes,
    }
    return ResponseRecord(**fields)  # type: ignore[arg-type]


def chat(name: str, **changes: object) -> ChatRecord:
    """Return a chat completion."""
    fields = {"id": name, "owner": "a", "created_at": 1, "model": "m", "completion": b"{}", **changes}
    return ChatRecord(**fields)  # type: ignore[arg-type]

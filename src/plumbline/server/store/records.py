"""Define what is stored: values with their identity and owner, and payloads as bytes of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Literal, TypeVar

import msgspec

__all__ = [
    "UNFINISHED",
    "ChatRecord",
    "ConversationRecord",
    "ItemRecord",
    "Order",
    "Page",
    "Renewed",
    "ResponseRecord",
    "Status",
    "StoreStats",
    "output_items",
]

T = TypeVar("T")

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
"""The states of a response (R-02)."""

UNFINISHED: frozenset[Status] = frozenset({"queued", "in_progress"})
"""States of a background response that is still generated."""

Order = Literal["asc", "desc"]
"""Oldest first, or newest first."""


class ItemRecord(msgspec.Struct, frozen=True, array_like=True):
    """One item of an input, an output or a conversation."""

    id: str
    body: bytes
    """The item as JSON; its member `id` is the same id."""


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]


class _Identified(msgspec.Struct):
    id: str


def output_items(response: bytes) -> tuple[ItemRecord, ...]:
    """Return the items in the `output` of a response object."""
    output = msgspec.json.decode(response, type=_Output).output
    return tuple(ItemRecord(msgspec.json.decode(raw, type=_Identified).id, bytes(raw)) for raw in output)


class ResponseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A response with what it was created from."""

    id: str
    owner: str
    """The owner; other owners cannot see that the response exists. Empty where the server checks no keys."""
    created_at: int
    """Unix time in seconds."""
    status: Status
    parent: str | None = None
    """The response that it continues (`previous_response_id`)."""
    compacts: bool = False
    """Its output stands for all that it continues: a chain begins with it."""
    conversation: str | None = None
    """The conversation that it belongs to. A finished response appends its input and output there."""
    response: bytes
    """The response object as JSON, as the client got it."""
    input: tuple[ItemRecord, ...] = ()
    """The request's own input items, in order."""
    output: tuple[ItemRecord, ...] = ()
    """The items of the response object's `output`, in order."""
    events: bytes = b""
    """The log from which its stream events can be written again; the store does not read it."""


class ConversationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation without its items."""

    id: str
    owner: str
    created_at: int
    """Unix time in seconds."""
    metadata: Mapping[str, str] = {}


class ChatRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A chat completion with the messages that it answers."""

    id: str
    owner: str
    created_at: int
    """Unix time in seconds."""
    model: str
    metadata: Mapping[str, str] = {}
    completion: bytes
    """The completion object as JSON; its `metadata` is as created, and the field above is the current one."""
    messages: tuple[ItemRecord, ...] = ()
    """The request's messages, in order, each with an id."""


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some entries of a longer list."""

    entries: tuple[T, ...]
    has_more: bool
    """Whether further entries follow."""


class Renewed(msgspec.Struct):
    """What a process learns of its unfinished responses when it renews their leases."""

    cancelled: list[str] = []
    """Another process asks to cancel these."""
    lost: list[str] = []
    """These were deleted, or another process has ended them because their lease had expired."""


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a store, for metrics."""

    responses: int
    conversations: int
    chats: int
    bytes: int
    """Bytes of the payloads of all records."""
    pending_writes: int
    """Writes that wait for a commit."""
    max_responses_per_owner: int
    """0 means no limit."""
    failed_writes: int
    """Writes since the start that were reported as failed."""
    transactions: dict[str, tuple[int, float]] = {}
    """For reads and for writes, how many transactions there were and the sum of their seconds, also of failed ones."""
    failing: bool = False
    """Whether the last read or the last write failed."""

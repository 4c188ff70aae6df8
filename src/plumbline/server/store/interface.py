"""Define the interface of a store, and its errors.

A write returns when its transaction is committed: what has been acknowledged to a client survives the end of the
process. Every method raises `StoreUnavailableError` within a bounded time if the database cannot be used. An owner
cannot see records of another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

from plumbline.server.store.records import (
    ChatRecord,
    ConversationRecord,
    ItemRecord,
    Order,
    Page,
    Renewed,
    ResponseRecord,
    StoreStats,
)

__all__ = ["Store", "StoreFullError", "StoreUnavailableError", "TooLargeError", "UnknownCursorError"]


class StoreUnavailableError(Exception):
    """The database is locked, full, unreachable or too slow; the message states which. Nothing was stored."""


class StoreFullError(Exception):
    """The owner has stored as much as the operator allows.

    Args:
        what: what is limited, such as `responses`.
        limit: how many there may be.
    """

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"the key has {limit} stored {what} or more, the most that it may have")
        self.what = what
        self.limit = limit


class TooLargeError(Exception):
    """The requested records have more bytes than the caller accepts."""


class UnknownCursorError(LookupError):
    """The entry that a page should follow is not in the list."""


class Store(ABC):
    """Responses, conversations, chat completions and secrets."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Where records are kept and for how long, for the line that the server prints at its start."""

    @abstractmethod
    async def start(self) -> None:
        """Open the database, bring its tables up to date and begin to sweep.

        Raises:
            StoreUnavailableError: the database cannot be opened, or was written by a newer version.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Finish the writes that wait, and close the database. Idempotent."""

    @property
    @abstractmethod
    def is_shared(self) -> bool:
        """Whether servers on several machines may use it. Only then conversations are leased, and parts kept."""

    @abstractmethod
    def problems(self) -> list[str]:
        """Return why the database does not work, or soon will not, in words; nothing if all is well. It is quick."""

    @abstractmethod
    def stats(self) -> StoreStats:
        """Return sizes as of the last write or sweep, without I/O."""

    @abstractmethod
    async def secret(self, name: str) -> bytes:
        """Return 32 random bytes that belong to the store: made at the first call, the same ever after."""

    # Responses

    @abstractmethod
    async def save_response(self, record: ResponseRecord) -> None:
        """Store a response, or replace the unfinished one with its id. A finished one stays as it is.

        If it is finished and has a conversation, its input and output are appended there in the same transaction, once.
        An unfinished one is leased to this process. A response that was stored unfinished and then deleted is not
        stored again.
        """

    @abstractmethod
    async def check_room(self, owner: str, *, responses: bool = False, most_bytes: int | None = None) -> None:
        """Check that the owner may store something more.

        Args:
            owner: the owner.
            responses: whether that is a response, of which there may be a number.
            most_bytes: the limit on the bytes of all its records, if there is one. They are added up at most once a
                second, so a little more may be stored.

        Raises:
            StoreFullError: the owner has stored as much as the operator allows.
        """

    @abstractmethod
    async def response(self, owner: str, response_id: str) -> ResponseRecord | None:
        """Return a response, or None."""

    @abstractmethod
    async def chain(
        self, owner: str, response_id: str, most: int, most_bytes: int
    ) -> Sequence[ResponseRecord]:
        """Return a response and the ones that it continues, the oldest first, without `events`.

        A response that compacts what it continues is the oldest of the result.

        Args:
            owner: the owner of all responses.
            response_id: the newest response.
            most: read at most this many; the oldest of the result may then have a parent.
            most_bytes: the limit on the bytes of their payloads.

        Raises:
            TooLargeError: the payloads have more than `most_bytes`; nothing was read.

        The chain ends where a parent does not exist: the oldest of the result names it.
        """

    @abstractmethod
    async def delete_response(self, owner: str, response_id: str) -> bool:
        """Delete a response with its input and output; return whether it existed."""

    @abstractmethod
    async def items(self, owner: str, item_ids: Collection[str], most_bytes: int) -> Mapping[str, bytes]:
        """Return the bodies of items by id, wherever they are stored; unknown ids are left out.

        Where several records have an item with the same id, the item of the newest record is returned.

        Raises:
            TooLargeError: the records that hold the items have more than `most_bytes`; nothing was read.
        """

    # Leases: a process that has not renewed one for `LEASE_SECONDS`, by the clock of the database, counts as gone.

    @abstractmethod
    async def renew_leases(self, running: Collection[str]) -> Renewed:
        """Renew the leases on unfinished responses that this process runs, and on its conversations."""

    @abstractmethod
    async def end_abandoned(
        self, ended: Callable[[ResponseRecord, Sequence[bytes], bool], ResponseRecord]
    ) -> int:
        """End unfinished responses with an expired lease; return how many. It takes one batch of them.

        Args:
            ended: returns the record of the response as it ended, given the unfinished one, its parts, and whether it
                was to be cancelled (`request_cancel`).
        """

    @abstractmethod
    async def request_cancel(self, owner: str, response_id: str) -> None:
        """Ask the process that runs a response to cancel it; its next `renew_leases` tells it.

        If that process has gone, the response ends as cancelled (`end_abandoned`).
        """

    @abstractmethod
    async def append_part(self, response_id: str, number: int, body: bytes) -> bool:
        """Keep a part of an unfinished response until it ends; return False if this process has no lease on it.

        Args:
            response_id: the response.
            number: 0 for the first part, then one more each.
            body: what other processes read to follow the response.
        """

    @abstractmethod
    async def parts(self, response_id: str, first: int) -> Sequence[bytes] | None:
        """Return the parts of an unfinished response from a number on; None if it has ended, or does not exist."""

    @abstractmethod
    async def lease_conversation(self, owner: str, conversation_id: str) -> bool:
        """Lease a conversation; return False if another process has it. Storing items in it ends the lease."""

    @abstractmethod
    def release_conversation(self, conversation_id: str) -> None:
        """End the lease on a conversation soon, if this process has it."""

    # Conversations

    @abstractmethod
    async def save_conversation(self, record: ConversationRecord, items: Sequence[ItemRecord] = ()) -> None:
        """Store a new conversation with its first items, or replace the metadata of the one with this id."""

    @abstractmethod
    async def conversation(self, owner: str, conversation_id: str) -> ConversationRecord | None:
        """Return a conversation, or None."""

    @abstractmethod
    async def delete_conversation(self, owner: str, conversation_id: str) -> bool:
        """Delete a conversation with its items; its responses stay. Return whether it existed."""

    @abstractmethod
    async def append_items(self, owner: str, conversation_id: str, items: Sequence[ItemRecord]) -> bool:
        """Append items to a conversation; return whether it exists.

        An item with an id that the conversation already has keeps its place and gets the new body.
        """

    @abstractmethod
    async def conversation_items(
        self,
        owner: str,
        conversation_id: str,
        *,
        limit: int | None = None,
        order: Order = "asc",
        after: str | None = None,
        most_bytes: int | None = None,
    ) -> Page[ItemRecord]:
        """Return items of a conversation that exists, by position.

        Raises:
            TooLargeError: the conversation has more than `most_bytes`; nothing was read.
            UnknownCursorError: no item has the id `after`.
        """

    @abstractmethod
    async def conversation_item(self, owner: str, conversation_id: str, item_id: str) -> ItemRecord | None:
        """Return an item of a conversation, or None."""

    @abstractmethod
    async def delete_conversation_item(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """Delete an item of a conversation; return whether it existed."""

    # Chat completions

    @abstractmethod
    async def save_chat(self, record: ChatRecord) -> None:
        """Store a chat completion, or replace the metadata of the one with this id."""

    @abstractmethod
    async def chat(self, owner: str, completion_id: str) -> ChatRecord | None:
        """Return a chat completion, or None."""

    @abstractmethod
    async def chats(
        self,
        owner: str,
        *,
        model: str | None = None,
        metadata: Mapping[str, str] = {},
        limit: int = 20,
        order: Order = "asc",
        after: str | None = None,
    ) -> Page[ChatRecord]:
        """List chat completions by time of creation, without their messages.

        Args:
            owner: the owner of the completions.
            model: only completions of this model.
            metadata: only completions with all of these pairs.
            limit: how many.
            order: oldest or newest first.
            after: the id of the last one already seen.

        Raises:
            UnknownCursorError: no completion has the id `after`.
        """

    @abstractmethod
    async def delete_chat(self, owner: str, completion_id: str) -> bool:
        """Delete a chat completion with its messages; return whether it existed."""

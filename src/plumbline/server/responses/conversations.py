"""Keep two requests from working on one conversation at the same time."""

from __future__ import annotations

from collections.abc import Callable

from plumbline.contract.wire.errors import conversation_locked
from plumbline.server.http.failures import store_errors
from plumbline.server.limits.claims.names import Claims, conversation_claim
from plumbline.server.store.interface import Store

__all__ = ["ConversationLocks", "Hold"]


class Hold:
    """One request's hold on a conversation, which ends with the request unless a background run takes it over."""

    def __init__(self, release: Callable[[], None]) -> None:
        self.release = release
        """End the hold. Idempotent."""
        self._taken_over = False

    def take_over(self) -> Callable[[], None]:
        """Keep the hold after the request; return the function that ends it."""
        self._taken_over = True
        return self.release

    async def end_with_request(self) -> None:
        """End the hold, unless it was taken over."""
        if not self._taken_over:
            self.release()


class ConversationLocks:
    """The conversations that requests are working on.

    A second request would not see what the first one adds, so it is refused (ST-09). The 409 makes official clients
    wait and try again.

    Args:
        claims: the claims of all processes of this server.
        store: leases the conversation among servers that share it.
    """

    def __init__(self, claims: Claims, store: Store) -> None:
        self._claims = claims
        self._store = store

    async def acquire(self, owner: str, conversation_id: str) -> Hold:
        """Begin to work on a conversation.

        Raises:
            ApiError: 409 if another request does; 503 if the store cannot be used.
        """
        name = conversation_claim(owner, conversation_id)
        if not await self._claims.claim(name):
            raise conversation_locked(conversation_id)

        def release() -> None:
            self._store.release_conversation(conversation_id)
            self._claims.release(name)

        is_leased = False
        try:
            with store_errors():
                is_leased = await self._store.lease_conversation(owner, conversation_id)
        finally:  # Also if the client leaves meanwhile.
            if not is_leased:
                release()
        if not is_leased:
            raise conversation_locked(conversation_id)
        return Hold(release)

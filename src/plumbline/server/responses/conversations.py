"""Keep two requests from working on one conversation at the same time."""

from __future__ import annotations

from collections.abc import Callable

from plumbline.wire.errors import conversation_locked

__all__ = ["ConversationLocks", "Hold"]


class Hold:
    """One request's hold on a conversation, which ends with the request unless a background run takes it over."""

    def __init__(self, release: Callable[[], None]) -> None:
        self.release = release
        """End the hold. Idempotent."""
        self._taken_over = False

    def take_over(self) -> Callable[[], None]:
        """Keep the hold after the request; return what ends it."""
        self._taken_over = True
        return self.release

    async def end_with_request(self) -> None:
        """End the hold, unless it was taken over."""
        if not self._taken_over:
            self.release()


class ConversationLocks:
    """The conversations that requests of this process are working on.

    A second request would not see what the first one adds, so it is refused (ST-09). The 409 makes official clients
    wait and try again.
    """

    def __init__(self) -> None:
        self._held: set[tuple[str, str]] = set()

    def acquire(self, owner: str, conversation_id: str) -> Hold:
        """Begin to work on a conversation.

        Raises:
            ApiError: 409 if another request does.
        """
        key = (owner, conversation_id)
        if key in self._held:
            raise conversation_locked(conversation_id)
        self._held.add(key)
        return Hold(lambda: self._held.discard(key))

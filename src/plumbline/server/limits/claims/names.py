"""Claim names, so that no two requests work on the same thing, whichever process they came to."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Claims", "LocalClaims", "background_claim", "conversation_claim"]


class Claims(Protocol):
    """Names of work in progress, each claimed by one process. A process that ends gives up its claims."""

    async def claim(self, name: str) -> bool:
        """Claim a name; returns False if it is claimed already."""
        ...

    def release(self, name: str) -> None:
        """Give up a name that this process claimed; others are ignored."""
        ...

    async def holder(self, name: str) -> str:
        """Return the Unix socket of the other API server that claimed a name; empty if no other one did."""
        ...


class LocalClaims:
    """The claims of a server that is one process."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    async def claim(self, name: str) -> bool:
        """See `Claims.claim`."""
        if name in self._names:
            return False
        self._names.add(name)
        return True

    def release(self, name: str) -> None:
        """See `Claims.release`."""
        self._names.discard(name)

    async def holder(self, name: str) -> str:
        """Return the empty text: a server of one process has no other API server."""
        return ""


def background_claim(response_id: str) -> str:
    """Return the claim of the process that generates a response in the background."""
    return f"response {response_id}"


def conversation_claim(owner: str, conversation_id: str) -> str:
    """Return the claim of a request that works on a conversation."""
    return f"conversation {owner} {conversation_id}"

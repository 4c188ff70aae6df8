"""Give the parts of a response that its answer does not determine: ids of items, sealed content, the time of its end.

A new answer gets fresh ones. A repeated one gets those that it had, so that its events are the same again (RS-20).
"""

from __future__ import annotations

from typing import Protocol

from msgspec import UNSET, UnsetType

from plumbline.contract._generated.items import ReasoningItem
from plumbline.contract._generated.responses import Response
from plumbline.server.protocols.common.ids import new_id, now
from plumbline.server.protocols.common.sealing import Sealer

__all__ = ["Fresh", "Identity", "Repeated"]


class Identity(Protocol):
    """Names the items of one response."""

    def item_id(self, index: int, prefix: str) -> str:
        """Return the id of the item at an output index; a fresh one begins with `prefix` (R-08)."""
        ...

    def sealed(self, index: int, text: str) -> str | UnsetType:
        """Return the encrypted content of the reasoning item at an output index (ST-17)."""
        ...

    def ended_at(self) -> int | None:
        """Return when the response was completed, as Unix time."""
        ...


class Fresh:
    """The identity of a new answer."""

    def __init__(self, sealer: Sealer | None = None) -> None:
        """Begin without items.

        Args:
            sealer: what seals reasoning, if the client asked for encrypted content.
        """
        self._sealer = sealer
        self.item_ids: list[str] = []
        """The ids so far, by output index."""

    def item_id(self, index: int, prefix: str) -> str:
        # An item that the answer left out gave its place to this one.
        self.item_ids[index:] = [new_id(prefix)]
        return self.item_ids[-1]

    def sealed(self, index: int, text: str) -> str | UnsetType:
        return UNSET if self._sealer is None else self._sealer.seal(text)

    def ended_at(self) -> int | None:
        return now()


class Repeated:
    """The identity of an answer that has been written before, or is being written by another writer."""

    def __init__(self, response: Response, item_ids: list[str] | None = None) -> None:
        """Take over an identity.

        Args:
            response: the response with the items that are done.
            item_ids: the ids of all items, if one is not done yet; by default the ids of the output.
        """
        self._response = response
        self._item_ids = item_ids

    def item_id(self, index: int, prefix: str) -> str:
        if self._item_ids is not None:
            return self._item_ids[index]
        found = self._response.output[index].id
        assert isinstance(found, str)
        return found

    def sealed(self, index: int, text: str) -> str | UnsetType:
        item = self._response.output[index]
        assert isinstance(item, ReasoningItem)
        return item.encrypted_content if isinstance(item.encrypted_content, str) else UNSET

    def ended_at(self) -> int | None:
        return self._response.completed_at

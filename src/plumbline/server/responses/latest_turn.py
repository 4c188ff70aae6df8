"""Remember the latest turn of a connection that is not stored, so that the next one can continue it (WS-05)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from plumbline._generated.items import EasyInputMessage, InputItem
from plumbline._generated.responses import Response
from plumbline.protocols.responses.reader import Context
from plumbline.protocols.responses.stored_items import as_context
from plumbline.wire.decode import encode

__all__ = ["LatestTurn", "RememberedTurn"]


class RememberedTurn(NamedTuple):
    """A response and all items up to its end."""

    response_id: str
    items: Sequence[InputItem]


class LatestTurn:
    """The latest turn of one connection. Only one is kept, so that a connection costs no more than a request."""

    def __init__(self) -> None:
        self._turn: RememberedTurn | None = None

    def take(self, response_id: str | None) -> RememberedTurn | None:
        """Return the turn if it has this id. It is forgotten: a turn that fails cannot be tried again (WS-06)."""
        turn = self._turn
        if turn is None or turn.response_id != response_id:
            return None
        self._turn = None
        return turn

    def keep(self, response: Response, context: Context) -> None:
        """Remember a turn that has ended."""
        own = context.own
        items = [EasyInputMessage(role="user", content=own)] if isinstance(own, str) else own
        output = as_context(encode(item) for item in response.output)
        self._turn = RememberedTurn(response.id, [*context.earlier, *items, *output])

"""Remember the latest turns of a connection that are not stored, so that others can continue them (WS-05)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from plumbline.contract._generated.items import EasyInputMessage, InputItem
from plumbline.contract._generated.responses import Response
from plumbline.contract.wire.decode import encode
from plumbline.server.protocols.responses.reader import Context
from plumbline.server.protocols.responses.stored_items import as_context

__all__ = ["LatestTurns", "RememberedTurn"]


class RememberedTurn(NamedTuple):
    """A response and all items up to its end."""

    response_id: str
    items: Sequence[InputItem]


class LatestTurns:
    """The latest turn of each lane of one connection.

    A connection costs no more than `most` requests: the lane that has kept a turn for the longest time loses it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._turns: OrderedDict[str | None, RememberedTurn] = OrderedDict()

    @contextmanager
    def continued(self, response_id: str | None) -> Iterator[RememberedTurn | None]:
        """Give the turn with this id, of whatever lane: another lane may continue it, too (WS-10).

        If the continuation raises, the turn is forgotten: it cannot be tried again (WS-06).
        """
        found = next((turn for turn in self._turns.values() if turn.response_id == response_id), None)
        try:
            yield found
        except BaseException:
            self.forget(found)
            raise

    def forget(self, turn: RememberedTurn | None) -> None:
        """Forget a turn that another one has continued without success."""
        for lane in [lane for lane, kept in self._turns.items() if kept is turn]:
            del self._turns[lane]

    def keep(self, lane: str | None, response: Response, context: Context) -> None:
        """Remember a turn that has ended in place of the one before on its lane."""
        own = context.own
        items = [EasyInputMessage(role="user", content=own)] if isinstance(own, str) else own
        output = as_context(encode(item) for item in response.output)
        self._turns[lane] = RememberedTurn(response.id, [*context.earlier, *items, *output])
        self._turns.move_to_end(lane)
        if len(self._turns) > self._most:
            self._turns.popitem(last=False)

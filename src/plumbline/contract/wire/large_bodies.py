"""Decode and read large bodies beside the event loop, so that other streams go on meanwhile."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from plumbline.base.workers.turns import Turns

__all__ = ["LARGE_BODIES", "LargeBodies"]

LARGE_BODIES = "large_bodies"
"""Key of the application's state: its `LargeBodies`."""
_LARGE = 128 * 1024
"""Bytes. The widest body of this size takes 15 ms where all forms of other servers are tried and the hint is sought."""

T = TypeVar("T")


class LargeBodies:
    """Run what reads bodies: at once if they are small, else on one thread, in turn by client.

    A body of 10 MB takes several passes, each of which may hold the interpreter's lock for a tenth of a second; with
    more than one thread the event loop would wait for one pass of each. How many bodies wait is bounded by the bytes
    that the server holds. One event loop may use an object.
    """

    def __init__(self) -> None:
        self._turns = Turns(1, sys.maxsize)
        self._thread = ThreadPoolExecutor(1, "large-bodies")

    async def run(self, client: str, size: int, function: Callable[[], T]) -> T:
        """Return what a function makes of a body.

        Args:
            client: whose turn it is, as in `Turns.turn`.
            size: bytes that the function reads.
            function: uses nothing that belongs to the event loop.
        """
        if size < _LARGE:
            return function()
        async with self._turns.turn(client):
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)

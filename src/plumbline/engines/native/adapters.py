"""Load adapters into our engine, name them, and unload them once no request uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from plumbline.engines.adapters import AdapterUsers
from plumbline.engines.native.adapter_table import AdapterTable
from plumbline.engines.native.models.adapters.adapter_config import AdapterError
from plumbline.engines.request import PlacedAdapter
from plumbline.port.engine import RefusedRequestError

__all__ = ["NamedAdapters"]


class OnThread(Protocol):
    """Call a function on the thread of the engine, after what was submitted and aborted before."""

    def __call__(self, function: Callable[[], Any], /) -> Awaitable[Any]:
        """Return what the function returns."""


class NamedAdapters:
    """The adapters that requests may name.

    Args:
        table: the adapters in memory.
        known: by name, as the core finds them. The engine's thread alone writes it, so a request finds the adapter that
            had its name when it was submitted.
    """

    def __init__(self, table: AdapterTable, known: dict[str, PlacedAdapter]) -> None:
        self._table, self._known = table, known
        self._loaded: dict[str, PlacedAdapter] = {}
        self._users = AdapterUsers()
        self._loading = asyncio.Lock()

    def enter(self, name: str | None) -> PlacedAdapter | None:
        """Count a request and return its adapter; `leave` takes it back.

        Raises:
            RefusedRequestError: no adapter of this name is loaded.
        """
        if name is None:
            return None
        placed = self._loaded.get(name)
        if placed is None:
            raise RefusedRequestError(f"no adapter named {name!r} is loaded", "model")
        self._users.enter(placed.number)
        return placed

    def leave(self, entered: Any) -> None:
        """Count a request no longer."""
        if entered is not None:
            self._users.leave(entered.number)

    async def load(self, name: str, folder: Path, on_thread: OnThread) -> None:
        """Load an adapter.

        Raises:
            RefusedRequestError: too many adapters are loaded, or this one cannot be used.
            EngineClosedError: the engine ends.
        """
        async with self._loading:
            if name in self._loaded:
                raise RefusedRequestError(f"an adapter named {name!r} is loaded")
            # One that is being unloaded keeps its slot until its last request has ended.
            if not self._table.num_free:
                raise RefusedRequestError(
                    f"this server has room for {self._table.capacity} adapters (--max-loras); unload one first"
                )
            try:
                prepared = await asyncio.to_thread(self._table.prepare, folder)
            except AdapterError as error:
                raise RefusedRequestError(str(error)) from error

            def put() -> PlacedAdapter:
                self._known[name] = placed = self._table.put(prepared)
                return placed

            self._loaded[name] = await on_thread(put)

    async def unload(self, name: str, on_thread: OnThread) -> None:
        """Unload an adapter once no request uses it; new ones are refused from now on."""
        placed = self._loaded.pop(name, None)
        if placed is None:
            return
        await self._users.unused(placed.number)

        def remove() -> None:
            self._table.remove(placed)
            if self._known.get(name) == placed:
                del self._known[name]

        await on_thread(remove)

"""Lease loaded models to requests by name; load them on demand, and evict the least recently used.

A slot moves `unloaded -> loading -> loaded -> unloading -> unloaded`. A load that fails returns to `unloaded`.
The pool belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Generic, Literal, TypeVar

from plumbline.engines.port import EngineClosedError, EngineFullError

__all__ = ["ModelLoadError", "ModelPool", "ModelStatus"]

M = TypeVar("M")

ModelStatus = Literal["unloaded", "loading", "loaded", "unloading"]


class ModelLoadError(Exception):
    """A model could not be loaded; the message names the model and the reason."""


class _Slot(Generic[M]):
    """A model that the pool may load, and the requests that use it or wait for it."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.status: ModelStatus = "unloaded"
        self.model: M | None = None
        self.leases = 0
        self.last_used = 0
        self.waiters: list[asyncio.Future[M]] = []
        self.loading: asyncio.Task[None] | None = None
        self.leaving: asyncio.Task[None] | None = None
        self.idle = asyncio.Event()
        self.idle.set()


class ModelPool(Generic[M]):
    """Models within a memory bound. A request leases one model at a time, or two requests could wait for each other."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        load: Callable[[str], Awaitable[M]],
        unload: Callable[[M], Awaitable[None]],
        *,
        capacity: int,
        max_waiting: int,
    ) -> None:
        """Describe the models; none is loaded yet.

        Args:
            sizes: bytes of memory that each model takes, by name.
            load: loads a model and starts its engine; any exception refuses those who wait for the model.
            unload: stops the engine of a model that no request uses.
            capacity: bytes for all models that are not `unloaded`.
            max_waiting: how many requests may wait for models that are not loaded.
        """
        self._slots = {name: _Slot[M](name, size) for name, size in sizes.items()}
        self._load = load
        self._unload = unload
        self._capacity = capacity
        self._max_waiting = max_waiting
        self._turn = asyncio.Lock()  # FIFO: loads make room for one model at a time.
        self._clock = 0
        self._closed = False

    def statuses(self) -> dict[str, ModelStatus]:
        """Return the status of each model by name."""
        return {name: slot.status for name, slot in self._slots.items()}

    @asynccontextmanager
    async def lease(self, name: str) -> AsyncIterator[M]:
        """Keep a model loaded while the block runs.

        Raises:
            KeyError: the pool has no such model.
            EngineFullError: too many requests wait for models.
            EngineClosedError: the pool is closed.
            ModelLoadError: the model did not load.
        """
        slot = self._slots[name]
        model = await self._acquire(slot)
        try:
            yield model
        finally:
            self._release(slot)

    async def load(self, name: str) -> None:
        """Load a model unless it is loaded; raises as `lease`."""
        async with self.lease(name):
            pass

    async def unload(self, name: str) -> None:
        """Unload a model after its requests; those that come meanwhile load it again.

        Raises:
            KeyError: the pool has no such model.
        """
        slot = self._slots[name]
        if slot.status == "loading" and slot.loading is not None:
            await asyncio.wait({slot.loading})
        if slot.status in {"loaded", "unloading"}:
            await asyncio.shield(self._leave(slot))

    async def close(self) -> None:
        """Refuse those who wait, and unload every model, also those with leases."""
        self._closed = True
        for slot in self._slots.values():
            self._refuse(slot, EngineClosedError("The server stops."))
        for slot in self._slots.values():
            slot.idle.set()
            if slot.loading is not None:
                await asyncio.wait({slot.loading})
            if slot.status in {"loaded", "unloading"}:
                await asyncio.shield(self._leave(slot))

    async def _acquire(self, slot: _Slot[M]) -> M:
        if self._closed:
            raise EngineClosedError("The server stops.")
        if slot.status == "loaded" and slot.model is not None:
            self._grant(slot)
            return slot.model
        if sum(len(each.waiters) for each in self._slots.values()) >= self._max_waiting:
            raise EngineFullError(f"Too many requests wait for models to load; '{slot.name}' is not loaded.")
        waiter: asyncio.Future[M] = asyncio.get_running_loop().create_future()
        slot.waiters.append(waiter)
        self._ensure_loading(slot)
        try:
            return await waiter
        except asyncio.CancelledError:
            # The load may have granted the lease just before the client left.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release(slot)
            raise
        finally:
            if waiter in slot.waiters:
                slot.waiters.remove(waiter)

    def _grant(self, slot: _Slot[M]) -> None:
        self._clock += 1
        slot.last_used = self._clock
        slot.leases += 1
        slot.idle.clear()

    def _release(self, slot: _Slot[M]) -> None:
        self._clock += 1
        slot.last_used = self._clock
        slot.leases -= 1
        if slot.leases == 0:
            slot.idle.set()

    def _refuse(self, slot: _Slot[M], error: Exception) -> None:
        waiters, slot.waiters = slot.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _ensure_loading(self, slot: _Slot[M]) -> None:
        """Start one load for all who wait; while the model leaves, its end does so."""
        if slot.loading is None and slot.status == "unloaded":
            slot.loading = asyncio.ensure_future(self._bring(slot))

    async def _bring(self, slot: _Slot[M]) -> None:
        """Make room and load, unless every waiter has left before it begins; a load that began is finished."""
        try:
            async with self._turn:
                if slot.size > self._capacity:
                    raise ModelLoadError(f"it needs {slot.size} bytes, the bound is {self._capacity}")
                while slot.waiters and self._used() + slot.size > self._capacity:
                    await asyncio.shield(self._leave(self._victim()))
                if not slot.waiters:
                    return
                slot.status = "loading"
                slot.model = await self._load(slot.name)
                slot.status = "loaded"
        except Exception as error:
            slot.status = "unloaded"
            refusal = ModelLoadError(f"The model '{slot.name}' could not be loaded: {error}")
            refusal.__cause__ = error
            self._refuse(slot, refusal)
        finally:
            slot.loading = None
        if slot.status == "loaded" and slot.model is not None:
            # Those who waited hold leases before any other load can choose this model as its victim.
            waiters, slot.waiters = slot.waiters, []
            for waiter in waiters:
                if not waiter.done():
                    self._grant(slot)
                    waiter.set_result(slot.model)

    def _used(self) -> int:
        return sum(slot.size for slot in self._slots.values() if slot.status != "unloaded")

    def _victim(self) -> _Slot[M]:
        """Return the model to unload: one that leaves already, else the least recently used, idle ones first.

        Without an idle one, the least recently used model takes no more requests, or a busy model would never leave.
        """
        present = [slot for slot in self._slots.values() if slot.status in {"loaded", "unloading"}]
        return min(present, key=lambda slot: (slot.leaving is None, slot.leases > 0, slot.last_used))

    def _leave(self, slot: _Slot[M]) -> asyncio.Task[None]:
        """Return the one task that unloads a model."""
        if slot.leaving is None:
            slot.status = "unloading"
            slot.leaving = asyncio.ensure_future(self._take_out(slot))
        return slot.leaving

    async def _take_out(self, slot: _Slot[M]) -> None:
        await slot.idle.wait()
        model, slot.model = slot.model, None
        try:
            if model is not None:
                await self._unload(model)
        finally:
            slot.status = "unloaded"
            slot.leaving = None
            if slot.waiters:
                self._ensure_loading(slot)

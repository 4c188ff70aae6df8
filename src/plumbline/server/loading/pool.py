"""Lease loaded models to requests by name; load them on demand, and evict the least recently used.

A slot moves `unloaded -> loading -> loaded -> unloading -> unloaded`. A load that fails returns to `unloaded`.
The pool belongs to one event loop.

Loads take turns in the order of the requests that need them. A model that loads serves every request that waited for
it before it may leave, and a leased model never leaves. So each load serves a request, and every request gets its turn,
also where requests alternate between models that do not fit together: each change then costs a load.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Generic, Literal, TypeVar

from plumbline.base.shares import within_share
from plumbline.port.engine import EngineClosedError, EngineFullError

__all__ = ["Lease", "ModelLoadError", "ModelPool", "ModelStatus"]

_log = logging.getLogger("plumbline.server")

M = TypeVar("M")

ModelStatus = Literal["unloaded", "loading", "loaded", "unloading"]


class ModelLoadError(Exception):
    """A model could not be loaded; the message names the model and the reason, which may have paths."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"The model '{name}' could not be loaded: {reason}")
        self.name = name


class Lease(Generic[M]):
    """The use of a loaded model, which stays loaded until `release`."""

    def __init__(self, model: M, take: Callable[[], None], give_back: Callable[[], None]) -> None:
        take()
        self.model = model
        self._take = take
        self._give_back = give_back
        self._ended = False

    def share(self) -> Lease[M]:
        """Return a further lease of the same model, for work that outlasts this one."""
        return Lease(self.model, self._take, self._give_back)

    def release(self) -> None:
        """End the lease. Idempotent."""
        if not self._ended:
            self._ended = True
            self._give_back()


class _Slot(Generic[M]):
    """A model that the pool may load, and the requests that use it or wait for it."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.status: ModelStatus = "unloaded"
        self.model: M | None = None
        self.leases = 0
        self.last_used = 0
        self.loaded_at = 0
        self.waiters: list[asyncio.Future[Lease[M]]] = []
        self.loading: asyncio.Task[None] | None = None
        self.leaving: asyncio.Task[None] | None = None
        self.failed = False
        """Whether the last load failed."""
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
        max_per_client: int = 0,
    ) -> None:
        """Describe the models; none is loaded yet.

        Args:
            sizes: bytes of memory that each model takes, by name.
            load: loads a model and starts its engine; any exception refuses those who wait for the model.
            unload: stops the engine of a model that no request uses.
            capacity: bytes for all models that are not `unloaded`.
            max_waiting: how many requests may wait for models that are not loaded.
            max_per_client: how many of them may be of one client; 0 sets no limit. Beside others it is less: see
                `shares.py`.
        """
        self._slots = {name: _Slot[M](name, size) for name, size in sizes.items()}
        self._load = load
        self._unload = unload
        self._capacity = capacity
        self._max_waiting = max_waiting
        self._max_per_client = max_per_client
        self._waiting: Counter[str] = Counter()
        """The requests that wait, by client."""
        self._turn = asyncio.Lock()  # FIFO: loads make room for one model at a time.
        self._clock = 0
        self._closed = False

    def statuses(self) -> dict[str, ModelStatus]:
        """Return the status of each model by name."""
        return {name: slot.status for name, slot in self._slots.items()}

    def status(self, name: str) -> ModelStatus:
        """Return the status of one model."""
        return self._slots[name].status

    @property
    def loaded(self) -> list[M]:
        """The models that requests may be using."""
        return [slot.model for slot in self._slots.values() if slot.model is not None]

    def latest(self) -> list[str]:
        """Return the names of the models that are loaded, the one that was loaded last first."""
        loaded = [slot for slot in self._slots.values() if slot.status == "loaded"]
        return [slot.name for slot in sorted(loaded, key=lambda slot: -slot.loaded_at)]

    def failed(self, name: str) -> bool:
        """Return whether the last load of a model failed."""
        return self._slots[name].failed

    def model(self, name: str) -> M | None:
        """Return a model if it is loaded."""
        return self._slots[name].model

    async def acquire(self, name: str, client: str = "") -> Lease[M]:
        """Lease a model, which is loaded first if need be.

        Args:
            name: the model.
            client: whom the request counts for while it waits.

        Raises:
            KeyError: the pool has no such model.
            EngineFullError: too many requests wait for models.
            EngineClosedError: the pool is closed.
            ModelLoadError: the model did not load.
        """
        slot = self._slots[name]
        if self._closed:
            raise EngineClosedError("The server stops.")
        if slot.status == "loaded" and slot.model is not None:
            return self._grant(slot, slot.model)
        self._check_room(slot, client)
        waiter: asyncio.Future[Lease[M]] = asyncio.get_running_loop().create_future()
        slot.waiters.append(waiter)
        self._waiting[client] += 1
        self._ensure_loading(slot)
        try:
            return await waiter
        except asyncio.CancelledError:
            # The load may have granted the lease just before the client left.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                waiter.result().release()
            raise
        finally:
            self._waiting -= Counter([client])  # Without clients whose count is 0.
            if waiter in slot.waiters:
                slot.waiters.remove(waiter)

    @asynccontextmanager
    async def lease(self, name: str, client: str = "") -> AsyncIterator[M]:
        """Keep a model loaded while the block runs; raises as `acquire`."""
        lease = await self.acquire(name, client)
        try:
            yield lease.model
        finally:
            lease.release()

    async def load(self, name: str) -> None:
        """Load a model unless it is loaded; raises as `acquire`."""
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

    def open(self) -> None:
        """Take requests again after `close`."""
        self._closed = False

    async def close(self) -> None:
        """Refuse those who wait, cancel loads, and unload every model, also those with leases. Idempotent."""
        self._closed = True
        for slot in self._slots.values():
            self._refuse(slot, EngineClosedError("The server stops."))
        for slot in self._slots.values():
            slot.idle.set()
            if slot.loading is not None:
                slot.loading.cancel()
                await asyncio.wait({slot.loading})
            if slot.status in {"loaded", "unloading"}:
                await asyncio.shield(self._leave(slot))

    def _check_room(self, slot: _Slot[M], client: str) -> None:
        own, used = self._waiting[client], self._waiting.total()
        if used >= self._max_waiting:
            raise EngineFullError(f"Too many requests wait for models to load; '{slot.name}' is not loaded.")
        within = within_share(own, 1, used, self._max_waiting)
        if not within or (self._max_per_client and own >= self._max_per_client):
            raise EngineFullError(
                f"{own} of your requests wait for models to load, the most that you may have now; '{slot.name}' is not "
                "loaded."
            )

    def _grant(self, slot: _Slot[M], model: M) -> Lease[M]:
        def take() -> None:
            slot.leases += 1
            slot.idle.clear()
            self._use(slot)

        def give_back() -> None:
            slot.leases -= 1
            if slot.leases == 0:
                slot.idle.set()
            self._use(slot)

        return Lease(model, take, give_back)

    def _use(self, slot: _Slot[M]) -> None:
        self._clock += 1
        slot.last_used = self._clock

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
                    raise MemoryError(f"it needs {slot.size} bytes, and all models may have {self._capacity}")
                while slot.waiters and self._used() + slot.size > self._capacity:
                    await asyncio.shield(self._leave(self._victim()))
                if not slot.waiters:
                    return
                slot.status = "loading"
                slot.model = await self._load(slot.name)
                slot.status, slot.failed = "loaded", False
                self._use(slot)
                slot.loaded_at = slot.last_used
        except Exception as error:
            slot.failed = True
            refusal = ModelLoadError(slot.name, str(error) or type(error).__name__)
            refusal.__cause__ = error
            _log.error("%s", refusal)
            self._refuse(slot, refusal)
        finally:
            slot.loading = None
            if slot.status == "loading":  # It failed, or was cancelled.
                slot.status = "unloaded"
        if slot.status == "loaded" and slot.model is not None:
            # Those who waited hold leases before any other load can choose this model as its victim.
            waiters, slot.waiters = slot.waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(self._grant(slot, slot.model))

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
        except Exception:  # The next load is not to blame.
            _log.exception("the model '%s' was not unloaded properly", slot.name)
        finally:
            slot.status = "unloaded"
            slot.leaving = None
            if slot.waiters:
                self._ensure_loading(slot)

"""Give each request the model that it names; one that is not loaded is loaded first.

A server with one model takes the same way: its pool has one model, which is loaded at the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from plumbline.contract._generated.models import Model, ModelStatus
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.errors import (
    ApiError,
    invalid_request,
    missing_required_parameter,
    model_not_found,
    model_not_loaded,
)
from plumbline.contract.wire.reply import EventReply, Reply
from plumbline.engines.daemon import in_daemon_thread
from plumbline.port.engine import Engine
from plumbline.server.admission import client_named, client_of
from plumbline.server.generation import Generation
from plumbline.server.http.failures import api_errors, as_api_error
from plumbline.server.http.frames import Frames
from plumbline.server.http.replies import Replies, StreamForm
from plumbline.server.http.streams import close_with_request, until_disconnect
from plumbline.server.limits.keys import KeyRing
from plumbline.server.loading.catalog import Catalog, ModelSource
from plumbline.server.loading.memory import release_unused
from plumbline.server.loading.pool import Lease, ModelLoadError, ModelPool
from plumbline.server.loading.served_model import ServedModel
from plumbline.server.observe.metrics import Metrics, ModelMetrics
from plumbline.server.protocols.common.ids import now
from plumbline.server.settings import Settings
from plumbline.server.settings.keys import Key

__all__ = ["Models"]

_log = logging.getLogger("plumbline.server")

_full = lru_cache(maxsize=64)(as_api_error)
"""Returns the error of a refusal, which engines keep (`Admission.refusal`). It is sent and never raised."""
_ANY = Key(b"")
"""The key of the operator, who may use every model."""


class _HasGeneration(Protocol):
    @property
    def generation(self) -> Generation: ...


M = TypeVar("M", bound=_HasGeneration)
Handler = Callable[[Lease[M]], Awaitable[Reply]]


class Models(Generic[M]):
    """The models of a server, by the names that requests use.

    Args:
        catalog: the models.
        settings: the settings.
        metrics: counts what each model does.
        replies: sends the streams of requests that wait for their model.
        keys: the keys of requests, which may have a choice of models.
        build: makes what answers the requests for a model that was loaded.
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        metrics: Metrics,
        replies: Replies,
        keys: KeyRing,
        build: Callable[[ServedModel, ModelMetrics], M],
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._metrics = metrics
        self._replies = replies
        self._keys = keys
        self._build = build
        self._created = now()
        self._at_start = tuple(catalog.loaded)
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._sources = {name: source for source in catalog.sources for name in source.names}
        self._pool: ModelPool[M] = ModelPool(
            {source.names[0]: source.size for source in catalog.sources},
            self._load,
            self._unload,
            capacity=catalog.capacity,
            max_waiting=settings.max_num_waiting,
            max_per_client=settings.client_limit,
        )

    async def start(self) -> None:
        """Start the models that are loaded at the start, also again after `close`.

        Raises:
            Exception: an engine or an adapter does not start.
        """
        self._closing = False
        self._pool.open()
        for name in self._at_start:
            try:
                await self._pool.load(name)
            except ModelLoadError as error:
                raise error.__cause__ or error from None

    async def close(self) -> None:
        """Refuse requests that wait, and abort all others. Idempotent."""
        self._closing = True
        await self._pool.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def engines(self) -> list[Engine]:
        """The engines of the models that are loaded."""
        return [model.generation.model.engine for model in self._pool.loaded]

    def has_died(self) -> bool:
        """Return whether the only model has a dead engine; one of several is unloaded, to be loaded again."""
        dead = [
            model.generation.model.names[0]
            for model in self._pool.loaded
            if not model.generation.model.engine.stats().alive
        ]
        if len(self._catalog.sources) == 1:
            return bool(dead)
        for name in dead:
            if self._pool.status(name) == "loaded":
                _log.error("the engine of %r has failed: the model is unloaded", name)
                self.begin(name, self.unload)
        return False

    @property
    def served(self) -> list[ServedModel]:
        """The models that are loaded."""
        return [model.generation.model for model in self._pool.loaded]

    def described(self, call: Call, name: str | None = None) -> list[Model]:
        """Describe the models and the adapters that the requests of a key may name, or only one of them.

        Raises:
            ApiError: 404 for an unknown name (MOD-03).
        """
        if name is not None:
            return [self._describe(name, self._allowed(name, call), self.key_of(call))]
        key = self.key_of(call)
        found = [self._describe(each, source, key) for each, source in self._sources.items()]
        for model in self._pool.loaded:
            source = self._sources[model.generation.model.names[0]]
            found += [self._describe(each, source, key) for each in model.generation.adapters.names]
        return [model for model in found if key.may_use(model.id)]

    def key_of(self, call: Call) -> Key:
        """Return the key of a request."""
        return self._keys.find_of(call)

    def _describe(self, name: str, source: ModelSource, key: Key) -> Model:
        loaded = self._pool.model(source.names[0])
        status: ModelStatus | UnsetType = UNSET
        if self._catalog.shows_status:
            value = self._pool.status(source.names[0])
            failed = True if self._pool.failed(source.names[0]) else UNSET
            status = ModelStatus(value="loaded" if value == "unloading" else value, failed=failed)
        return Model(
            id=name,
            # Where models come and go, the time of their last load would change the list.
            created=self._created
            if loaded is None or self._catalog.shows_status
            else loaded.generation.model.created,
            owned_by="plumbline",
            max_model_len=UNSET if loaded is None else loaded.generation.model.engine.info.max_model_len,
            eos_token_ids=UNSET
            if loaded is None
            else sorted(loaded.generation.model.engine.info.eos_token_ids),
            default_sampling_params=UNSET if loaded is None else loaded.generation.model.defaults.set_values,
            parent=UNSET if name in source.names else next(filter(key.may_use, source.names), UNSET),
            status=status,
        )

    def current(self, call: Call) -> Model:
        """Describe the model that was loaded last, of those that the key of the request may use.

        Raises:
            ApiError: 400 if none of them is loaded.
        """
        key = self.key_of(call)
        names = [each for name in self._pool.latest() for each in self._sources[name].names]
        name = next(filter(key.may_use, names), None)
        if name is None:
            raise invalid_request("No model is loaded.", None, "model_not_loaded")
        return self._describe(name, self._sources[name], key)

    async def load(self, name: str) -> None:
        """Load a model.

        Raises:
            ApiError: 404 for an unknown model, 503 with the reason if it cannot be loaded.
        """
        try:
            await api_errors(self._pool.load(self._source(name).names[0]))
        except ModelLoadError as error:
            raise model_not_loaded(str(error)) from error

    async def unload(self, name: str | None = None) -> None:
        """Unload a model, or all, once its requests have ended.

        Raises:
            ApiError: 404 for an unknown model.
        """
        sources = self._catalog.sources if name is None else (self._source(name),)
        await asyncio.gather(*(self._pool.unload(source.names[0]) for source in sources))

    def begin(self, name: str, work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Begin to load or to unload a model, and do not wait for the end of it.

        Raises:
            ApiError: 404 for an unknown model.
        """

        async def run() -> None:
            try:
                await work(name)
            except ApiError as error:  # The list of models also shows it.
                _log.warning("%s", error.message)

        self._source(name)
        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def refusal(self, api_key: str | None, peer: str) -> ApiError | None:
        """Return the 429 of a request that no model has room for, whichever it names; None if one may have room.

        Reading, rendering and tokenising a request only to refuse it would take the time of those that are answered.

        Args:
            api_key: the key of the request.
            peer: the address that it came from.
        """
        client = client_named(api_key, peer, self._settings)
        if len(self._pool.loaded) < len(self._catalog.sources):
            return None
        found = [model.generation.model.engine.refusal(client) for model in self._pool.loaded]
        known = [error for error in found if error is not None]
        if not known or len(known) < len(found):  # A folder of models may be empty.
            return None
        return _full(min(known, key=lambda error: error.retry_after))

    async def answer(
        self,
        name: str | msgspec.UnsetType | None,
        call: Call,
        handle: Handler[M],
        late: StreamForm | None = None,
        late_headers: Callable[[], Mapping[str, str]] = dict,
    ) -> Reply:
        """Let the model that a request names answer it.

        Args:
            name: the model, or nothing for the default one.
            call: the request's call.
            handle: answers the request with a lease that ends with the request.
            late: for a request that streams, the form of its stream. It begins as any
                other (`streams.prime`): after `keep_alive_interval` at the latest, also while the model loads.
            late_headers: returns the headers of a stream that begins before its model is loaded.

        Raises:
            ApiError: 404 for an unknown model, 400 if no model is named and there is no default; 429 if too many
                requests wait for models; 503 if the model cannot be loaded; those of `handle`.
        """
        source = self._allowed(name, call)
        patience = self._settings.keep_alive_interval
        loaded = self._pool.status(source.names[0]) == "loaded"
        if loaded or late is None or patience <= 0:
            return await handle(await self._lease_for_request(source, call))

        async def lease_and_handle() -> Reply:
            return await handle(await self._lease_for_request(source, call))

        work = asyncio.ensure_future(lease_and_handle())
        close_with_request(partial(_cancel, work))
        await until_disconnect(call, _wait(work, patience))
        if work.done():
            return work.result()
        return self._replies.as_they_are(self._later(work, call, late), late_headers(), late)

    @asynccontextmanager
    async def lease(self, name: str | msgspec.UnsetType | None, call: Call) -> AsyncIterator[Lease[M]]:
        """Lease the model that a request names while the block runs, unless the client leaves; raises as `answer`."""
        lease = await self._lease(self._allowed(name, call), call)
        try:
            yield lease
        finally:
            lease.release()

    def _allowed(self, name: str | msgspec.UnsetType | None, call: Call) -> ModelSource:
        """Return the model that a request names, if its key may use it; others do not exist for it."""
        key = self.key_of(call)
        if isinstance(name, str):
            return self._source(name, key)
        found = self._catalog.default
        if found is None or not any(map(key.may_use, found.names)):
            raise missing_required_parameter("model")
        return found

    def _source(self, name: str, key: Key = _ANY) -> ModelSource:
        """Return the model of a name (MOD-04)."""
        if not key.may_use(name):
            raise model_not_found(name, list(filter(key.may_use, self._sources)))
        found = self._sources.get(name)
        if found is None:
            for model in self._pool.loaded:
                if name in model.generation.adapters.names:
                    return self._sources[model.generation.model.names[0]]
            if name in dict(self._settings.loras):  # It is loaded with its model, of which there is one.
                return self._catalog.sources[0]
            raise model_not_found(name, list(filter(key.may_use, self._sources)))
        return found

    async def _lease_for_request(self, source: ModelSource, call: Call) -> Lease[M]:
        lease = await self._lease(source, call)

        async def release() -> None:
            lease.release()

        close_with_request(release)
        return lease

    async def _lease(self, source: ModelSource, call: Call) -> Lease[M]:
        name, client = source.names[0], client_of(call, self._settings)
        acquired = self._pool.acquire(name, client)
        try:
            if self._pool.status(name) == "loaded":  # It does not wait.
                return await acquired
            return await api_errors(until_disconnect(call, acquired))
        except ModelLoadError as error:
            # Its message may have paths: it goes to the log, not to the client (ERR-13).
            raise model_not_loaded(
                f"The model '{name}' could not be loaded. The log of the server has the reason."
            ) from error

    async def _later(self, work: asyncio.Future[Reply], call: Call, late: StreamForm) -> Frames:
        """Send the frames of an answer that begins later."""
        try:
            reply = await work
        except Exception as error:
            yield late.failure(self._replies.midway(error, call), call)
            if late.end:
                yield late.end
            return
        assert isinstance(reply, EventReply)
        async for item in reply.events:
            yield item

    async def _load(self, name: str) -> M:
        """Load a model and start its engine."""
        model = self._catalog.loaded.pop(name, None)
        if model is None:
            model = await in_daemon_thread(self._sources[name].load)
        try:
            built = self._build(model, self._metrics.begin_model(name, model.engine))
            await model.engine.start()
            await built.generation.adapters.start()
        except BaseException:
            self._metrics.end_model(name)
            await model.engine.stop()
            raise
        return built

    async def _unload(self, model: M) -> None:
        """Stop the engine of a model."""
        served = model.generation.model
        self._metrics.end_model(served.names[0])
        await served.engine.stop()
        if not self._closing:
            # When the pool has dropped the model, before the next one loads.
            asyncio.get_running_loop().call_soon(release_unused)


async def _cancel(work: asyncio.Future[Any]) -> None:
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def _wait(work: asyncio.Future[Any], seconds: float) -> None:
    await asyncio.wait({work}, timeout=seconds)

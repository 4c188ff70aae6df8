"""Admit requests to an engine: limit how many are in flight, in all and of one client, and compile their grammars.

Requests that name an adapter are counted at its gate. Files that a core takes in another form are read before the core
gets the request.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Set
from typing import Protocol

import msgspec

from plumbline.base.shares import within_share
from plumbline.engines.adapters import AdapterGate
from plumbline.engines.arrivals import Arrivals
from plumbline.engines.constraints.grammar import CompilersBusyError, GrammarCompiler, GrammarError, Matcher
from plumbline.engines.queue_time import QueueTime
from plumbline.engines.request import PlacedImage
from plumbline.port.engine import EngineFullError, EngineInfo, GenerateRequest, RefusedRequestError

__all__ = ["Admission", "MediaReader", "Readings"]

_BUSY_SECONDS = 5
"""Seconds for `Retry-After` when too many grammars are being compiled."""


_LONGEST_RETRY = 60
"""Seconds for `Retry-After` of a request that would wait too long; the queue may be shorter by then."""


_OF_THE_BOUND = 0.7
"""Of `max_queue_seconds`, the longest wait that is expected of a request that is admitted. The estimate errs by a
fifth: of those admitted up to the bound itself more than half were overdue later, and had been rendered for nothing."""


_REFUSALS_KEPT = 64
"""Most refusals that are kept until the queue changes."""
_REFUSALS_LAST = 0.05
"""Seconds after which kept refusals are computed anew: the wait that they state grows while the engine is silent."""


class Admission:
    """The requests that an engine has admitted, and the compiler of their grammars.

    Args:
        info: the facts of the engine; `info` has the limits and the features of grammars as well.
        max_in_flight: requests that may run and wait; one more is refused.
        max_per_client: how many of them one client may have; 0 sets no limit.
        grammars: compiles grammars; without it, requests with a grammar are refused.
        adapters: the adapters that requests may name, if the engine has any.
        queue: estimates how long requests wait.
    """

    def __init__(
        self,
        info: EngineInfo,
        *,
        max_in_flight: int,
        max_per_client: int = 0,
        grammars: GrammarCompiler | None = None,
        adapters: AdapterGate | None = None,
        queue: QueueTime | None = None,
    ) -> None:
        self._queue = queue or QueueTime()
        self.max_queue_seconds = 0.0
        """A request that would wait longer for its first token is refused, and one that has waited longer before it was
        begun; 0 refuses none."""
        self.mark: Callable[[str, bool], None] = lambda request_id, works: None
        """Is called by the engine, on any thread, when it begins to compute a request and when it stops."""
        self._max_in_flight = max_in_flight
        self._max_per_client = min(max_in_flight, max_per_client or max_in_flight)
        features = info.features if grammars is None else info.features | {"grammar", "banned_strings"}
        self.info = msgspec.structs.replace(info, max_in_flight=self._max_per_client, features=features)
        self.grammars = grammars
        self._adapters = adapters
        self.arrivals = Arrivals()
        self._clients: Counter[str] = Counter()
        self._ids: dict[str, object] = {}
        """The requests in flight, each with what the gate of adapters gave it."""
        self._refusals: dict[tuple[str, int, int], EngineFullError] = {}
        """Results of `refusal` since the queue changed, by client and the numbers of requests that enter before."""
        self._refusals_end = 0.0

    @property
    def ids(self) -> Set[str]:
        """The ids of the requests in flight."""
        return self._ids.keys()

    def enter(self, request: GenerateRequest) -> None:
        """Admit a request that has been checked; `leave` must follow.

        Raises:
            EngineFullError: the server or this client has reached its limit of requests in flight, or the request would
                wait too long.
            RefusedRequestError: a request with this id is in flight, or no adapter has the name that it gives.
        """
        if (full := self._refusal(request.client, patient=request.patient)) is not None:
            raise full
        if request.request_id in self._ids:
            raise RefusedRequestError(f"request id {request.request_id!r} is in flight already")
        # It may refuse the request, which then leaves nothing behind: `leave` does not follow.
        entered = None if self._adapters is None else self._adapters.enter(request.adapter)
        self._refusals.clear()
        self._queue.entered(request.request_id, request.client)
        self._ids[request.request_id] = entered
        self._clients[request.client] += 1

    def refusal(self, client: str, more: int = 0) -> EngineFullError | None:
        """Return why `enter` would refuse another request of a client for lack of room; None if there is room.

        A full engine is asked for each of hundreds of requests a second. While no request enters, starts or leaves, the
        result is the same object, so callers must not raise it: each raise would add to its traceback.

        Args:
            client: who sent it.
            more: requests of the client that will enter before it, besides those of `arrivals`.
        """
        asked = client, self.arrivals.of(client) + more, self.arrivals.total + more
        now = time.monotonic()
        if now >= self._refusals_end or len(self._refusals) >= _REFUSALS_KEPT:
            self._refusals.clear()
            self._refusals_end = now + _REFUSALS_LAST
        error = self._refusals.get(asked) or self._refusal(*asked)
        if error is not None:
            self._refusals[asked] = error
        return error

    def _refusal(
        self, client: str, arriving: int = 0, total: int = 0, *, patient: bool = False
    ) -> EngineFullError | None:
        """Return why a request is refused before which `arriving` of its client enter, and `total` in all."""
        if len(self._ids) + total >= self._max_in_flight:
            return EngineFullError(
                f"{self._max_in_flight} requests are in flight, which is the limit of this server."
            )
        if self._clients[client] + arriving >= self._max_per_client:
            return EngineFullError(
                f"{self._max_per_client} requests of this client are in flight, which is the limit for each."
            )
        own = self._clients[client] + arriving
        if not within_share(own, 1, len(self._ids) + total, self._max_in_flight):
            return EngineFullError(f"{own} requests of this client are in flight, its share beside others.")
        limited = self.max_queue_seconds and not patient
        expected = self._queue.expected(client, arriving) if limited else 0.0
        if expected > (most := self.max_queue_seconds * _OF_THE_BOUND):
            return EngineFullError(
                f"The request would wait about {expected:.1f} s for its first token; this server admits requests that "
                f"would wait for at most {most:.1f} s.",
                retry_after=min(_LONGEST_RETRY, math.ceil(expected - most)),
            )
        return None

    def overdue(self, request: GenerateRequest) -> EngineFullError:
        """Return the error of a request that was admitted and has waited too long for its turn."""
        expected = math.ceil(self._queue.expected(request.client))
        return EngineFullError(
            f"The request has waited {self.max_queue_seconds:g} s for its turn; this server lets none wait longer.",
            retry_after=min(_LONGEST_RETRY, max(expected, 1)),
        )

    def started(self, request: GenerateRequest) -> None:
        """Note the first chunk of an admitted request."""
        self._refusals.clear()
        self._queue.started(request.request_id)

    def leave(self, request: GenerateRequest) -> None:
        """Give the place of an admitted request to others."""
        self._refusals.clear()
        self._queue.left(request.request_id)
        entered = self._ids.pop(request.request_id, None)
        if self._adapters is not None:
            self._adapters.leave(entered)
        self._clients[request.client] -= 1
        if not self._clients[request.client]:
            del self._clients[request.client]

    async def compile(self, grammar: str, client: str) -> Matcher:
        """Compile a grammar of a client.

        Raises:
            EngineFullError: too many grammars are being compiled.
            RefusedRequestError: the engine has no grammars, or this one is invalid.
        """
        if self.grammars is None:
            raise RefusedRequestError("this engine does not support grammars", param="grammar")
        try:
            return await self.grammars.compile(grammar, client)
        except GrammarError as error:
            raise RefusedRequestError(str(error), param="grammar") from error
        except CompilersBusyError as error:
            raise EngineFullError(str(error), retry_after=_BUSY_SECONDS) from error

    async def close(self) -> None:
        """End the processes that try grammars."""
        if self.grammars is not None:
            await self.grammars.close()


class MediaReader(Protocol):
    """Prepare the files of requests for a core."""

    async def read(self, request: GenerateRequest) -> tuple[PlacedImage, ...]:
        """Return the files of a request; `forget` must follow, also if this is cancelled.

        Raises:
            RefusedRequestError: a file cannot be read.
        """
        ...

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request; unknown ids are ignored."""
        ...


class Readings:
    """The requests whose files are being read, which the core of an engine does not know yet.

    Args:
        reader: reads the files; None if the core takes them as they are.
    """

    def __init__(self, reader: MediaReader | None) -> None:
        self._reader = reader
        self._tasks: dict[str, asyncio.Task[tuple[PlacedImage, ...]]] = {}

    def __len__(self) -> int:
        """Return the number of these requests."""
        return len(self._tasks)

    async def read(self, request: GenerateRequest) -> tuple[PlacedImage, ...] | None:
        """Return the files of a request; None if it was ended meanwhile. `forget` must follow.

        Raises:
            RefusedRequestError: a file cannot be read.
        """
        if request.media is None or self._reader is None:
            return ()
        name = request.request_id
        task = self._tasks[name] = asyncio.ensure_future(self._reader.read(request))
        try:
            await asyncio.wait([task])
        finally:
            # `end` has removed it if the request is not to go on, however far the reading was.
            goes_on = self._tasks.pop(name, None) is not None
            task.cancel()
        return task.result() if goes_on else None

    def end(self, request_id: str) -> bool:
        """End the reading for a request; returns whether it was one of these."""
        task = self._tasks.pop(request_id, None)
        if task is not None:
            task.cancel()
        return task is not None

    def end_all(self) -> None:
        """End the reading for all requests."""
        for name in list(self._tasks):
            self.end(name)

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request that is over; unknown ids are ignored."""
        if self._reader is not None:
            self._reader.forget(request_id)

"""Run responses that no client waits for (ST-10, ST-11, ST-12)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from plumbline.answer.events import OutputEvent
from plumbline.contract._generated.events import ResponseStreamEvent
from plumbline.contract.wire.errors import ApiError, engine_unavailable, rate_limited
from plumbline.server.limits.claims.names import Claims, background_claim
from plumbline.server.limits.draining import Draining
from plumbline.server.protocols.responses.compaction import AnswerEvent, Compacted
from plumbline.server.protocols.responses.event_log import Failure, Journal, begun, written
from plumbline.server.protocols.responses.identity import Fresh, Repeated
from plumbline.server.protocols.responses.writer import CANCELLED, ResponsesWriter
from plumbline.server.responses.memory import Keeper
from plumbline.server.store.interface import Store

__all__ = ["BackgroundRun", "BackgroundRuns"]

_PART_SECONDS = 0.1
"""Events of a response are kept for other servers this often, and only then shown."""
_PARTS_A_SECOND = 100
"""Parts that one process keeps a second; with more responses each waits longer."""
_RETRY_SECONDS = 1.0

_STOPPED = engine_unavailable("The server was stopped before the response was complete.")
_TAKEN = engine_unavailable("Another server has deleted or ended this response.")


class BackgroundRun:
    """One response in the background. Any number of readers follow its events, from the first one on."""

    def __init__(
        self,
        writer: ResponsesWriter,
        identity: Fresh,
        keeper: Keeper,
        midway: Callable[[Exception], ApiError],
        client: str,
    ) -> None:
        self.client = client
        """Whose share of the room it takes: a key, or an address where there are no keys."""
        self.writer = writer
        self.owner = keeper.owner
        self._identity = identity
        self._keeper = keeper
        self._midway = midway
        self._shown = 0
        """How many events of the log readers may see: the last one only after it is stored."""
        self._changed = asyncio.Event()
        self._grown = asyncio.Event()
        """Set when the log has events that are not kept yet."""
        self._task: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(
        self, answer: AsyncGenerator[AnswerEvent, None], part_seconds: Callable[[], float]
    ) -> None:
        """Store the response as queued, and let it run.

        Args:
            answer: the answer.
            part_seconds: returns how long to wait between two parts that other servers read.
        """
        self.writer.queue()
        await self._keeper.save(self.writer.response)
        self._task = asyncio.create_task(self._run(answer))
        if self._keeper.is_shared:
            self._keeping = asyncio.create_task(self._keep(part_seconds))

    async def events(self) -> AsyncIterator[ResponseStreamEvent]:
        """Yield all events of the stream, waiting for those that are still to come."""
        log = self._keeper.log
        writer = ResponsesWriter(
            begun(self.writer.response),
            Repeated(self.writer.response, self._identity.item_ids),
            logprobs=log.logprobs,
        )
        for out in writer.queue():
            yield out
        seen = 0
        while not writer.ended:
            while seen < self._shown:
                for out in written(writer, log.events[seen]):
                    yield out
                seen += 1
            if not writer.ended:
                await self._changed.wait()

    async def cancel(self) -> None:
        """Stop the run; the response is then cancelled, unless it had ended (ST-11)."""
        await self._stop(CANCELLED)

    async def abandon(self) -> None:
        """Stop the run because the server stops; the response has then failed, unless it had ended."""
        await self._stop(_STOPPED)

    async def lose(self) -> None:
        """Stop the run because another server has ended or deleted its response; nothing is stored."""
        await self._stop(_TAKEN)

    async def join(self) -> None:
        """Wait for the end of the run."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _stop(self, error: ApiError) -> None:
        assert self._task is not None
        if not self.writer.ended:  # A complete answer is stored even if a client cancels now.
            self._task.cancel()
        await self.join()
        if not self.writer.ended:
            await self._end(error)

    async def _run(self, answer: AsyncGenerator[AnswerEvent, None]) -> None:
        try:
            async with aclosing(answer):
                async for _, event in answer:
                    await self._take(event)
        except Exception as error:
            await self._end(self._midway(error))
        finally:
            if self._keeping is not None:
                self._keeping.cancel()

    async def _take(self, event: OutputEvent | Compacted) -> None:
        if self.writer.queued:
            self.writer.start()
        self.writer.event(event)
        self._keeper.log.append(event)
        if self.writer.ended:
            await self._keeper.save(self.writer.response)
        elif self._keeper.is_shared:
            self._grown.set()
            return
        self._show(len(self._keeper.log.events))

    async def _keep(self, part_seconds: Callable[[], float]) -> None:
        """Keep events for other servers, and show them: what a client has seen can be read again elsewhere."""
        log = self._keeper.log
        journal = Journal(self.writer.response, self._identity.item_ids, log)
        for number in itertools.count():
            await self._grown.wait()
            self._grown.clear()
            if self.writer.ended:
                return
            part = journal.part()
            while not await self._keeper.keep_part(self.writer.response.id, number, part):  # noqa: ASYNC110
                await asyncio.sleep(_RETRY_SECONDS)
            self._show(max(self._shown, journal.events))
            await asyncio.sleep(part_seconds())

    async def _end(self, error: ApiError) -> None:
        """End the response early, with an error."""
        log = self._keeper.log
        if self.writer.ended:
            log.events.pop()  # The end that could not be stored.
        if error is _TAKEN:
            del log.events[self._shown :]  # Nobody can read what is not stored.
        if error is CANCELLED:
            self.writer.cancel()
        else:
            self.writer.fail(error)
        log.append(Failure.of(error))
        with contextlib.suppress(ApiError):
            await self._keeper.save(self.writer.response)
        self._show(len(log.events))

    def _show(self, count: int) -> None:
        self._shown = count
        self._changed.set()
        self._changed = asyncio.Event()


class BackgroundRuns:
    """The responses of this process that run in the background, by id."""

    def __init__(self, limit: int, claims: Claims, draining: Draining) -> None:
        """Begin without any.

        Args:
            limit: how many may run or wait at once of one client; of all clients twice as many.
            claims: announce to other API servers where a response runs.
            draining: a server that stops waits for these responses as for streams.
        """
        self._draining = draining
        self._limit = limit
        self._claims = claims
        self._runs: dict[str, BackgroundRun] = {}
        self._watchers: set[asyncio.Task[None]] = set()

    def check_room(self, client: str) -> None:
        """Refuse a client another response if it has as many as there is room for others.

        So there is room for one more client, however many have all that they can get.

        Raises:
            ApiError: 429, it has as many.
        """
        own = sum(run.client == client for run in self._runs.values())
        if own >= 2 * self._limit - len(self._runs):
            raise rate_limited(
                f"{own} responses of this client run in the background, its share of this server."
            )

    async def start(
        self,
        run: BackgroundRun,
        answer: AsyncGenerator[AnswerEvent, None],
        at_end: Callable[[], None] | None = None,
    ) -> None:
        """Start a run, and forget it when it has ended: from then on the store has it.

        Args:
            run: the run.
            answer: the answer.
            at_end: is called when the run has ended, or cannot start.
        """
        response_id = run.writer.response.id
        self._runs[response_id] = run
        try:
            await self._claims.claim(background_claim(response_id))
            await run.start(answer, lambda: max(_PART_SECONDS, len(self._runs) / _PARTS_A_SECOND))
        except BaseException:
            del self._runs[response_id]
            self._claims.release(background_claim(response_id))
            if at_end is not None:
                at_end()
            raise
        self._watch(asyncio.create_task(self._forget(response_id, run, at_end)))

    def find(self, owner: str, response_id: str) -> BackgroundRun | None:
        """Return a run of this owner, if it has not ended."""
        run = self._runs.get(response_id)
        return run if run is not None and run.owner == owner else None

    async def renew(self, store: Store) -> None:
        """Renew the leases on all responses, and stop those that another server cancelled, deleted or ended.

        Raises:
            StoreUnavailableError: the store failed.
        """
        renewed = await store.renew_leases(list(self._runs))
        for names, stop in ((renewed.cancelled, BackgroundRun.cancel), (renewed.lost, BackgroundRun.lose)):
            for run in (self._runs[name] for name in names if name in self._runs):
                self._watch(asyncio.create_task(stop(run)))  # Leases of others must not wait for it.

    async def stop(self) -> None:
        """Stop all runs; they have then failed."""
        await asyncio.gather(*(run.abandon() for run in list(self._runs.values())))

    def _watch(self, task: asyncio.Task[None]) -> None:
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)

    async def _forget(self, response_id: str, run: BackgroundRun, at_end: Callable[[], None] | None) -> None:
        with self._draining.counted():
            await run.join()
        self._runs.pop(response_id, None)
        self._claims.release(background_claim(response_id))
        if at_end is not None:
            at_end()

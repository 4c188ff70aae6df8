"""What becomes of requests when the engine's process ends and its keeper starts another.

1. A request that has a chunk, or was being computed, ends with an error that names the cause.
2. All others are sent to the next process in the order in which they came, after the adapters.
3. New requests wait meanwhile, as many as `max_waiting`.
4. When there is no other process, all end with the reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import GatedEngine, scripted_info, until

from plumbline.engines.remote import history, journal
from plumbline.engines.remote.client import RemoteEngine
from plumbline.engines.remote.history import History, history_of
from plumbline.engines.remote.host import EngineHost
from plumbline.engines.remote.journal import Suspicion
from plumbline.engines.remote.link import engine_info
from plumbline.port.engine import (
    EngineClosedError,
    EngineFullError,
    EngineStats,
    GenerateRequest,
    RefusedRequestError,
    TokenChunk,
)

from .hosting import chunks_of, request

CAUSE = "was killed by SIGSEGV"


class Kept:
    """A keeper and the processes of an engine, here in one process."""

    def __init__(self, folder: Path, **engine: Any) -> None:
        self.path = folder / "engine.sock"
        self._journal = folder / "engine.journal"
        self._engine_options = engine
        self.history = History()
        self.suspicion: Suspicion
        self.seen: list[str] = []
        """The prompts of the present process, in their order."""
        self.remote: RemoteEngine

    async def launch(self, quarantined: tuple[bytes, ...] = ()) -> None:
        self.seen = []
        self.engine = GatedEngine(self._script, **self._engine_options)
        journal.create(self._journal)
        self.suspicion = Suspicion(self._journal, quarantined, (), lambda digest: None)
        self.host = EngineHost(self.engine, self.path, self.suspicion, self.history.number)
        await self.host.start()
        history.write(history_of(self.path), self.history)

    def _script(self, wanted: GenerateRequest) -> Any:
        for token in range(4):
            yield TokenChunk(token_ids=(int(wanted.prompt_token_ids[0]) + token,))

    def works(self, *numbers: int) -> None:
        """Let the engine compute the requests of some streams."""
        for number in numbers:
            self.suspicion.journal.mark(f"2.{number}", True)

    async def end(self, failed: str = "") -> None:
        """End the process."""
        fatal = tuple((entry.user, entry.stream) for entry in journal.read(self._journal))
        self.history = History(
            number=self.history.number + 1,
            cause=CAUSE,
            fatal=fatal,
            ended_at=time.monotonic() - 90,
            deaths={"SIGSEGV": self.history.number},
            failed=failed,
        )
        await self.host.stop()
        history.write(history_of(self.path), self.history)


@asynccontextmanager
async def kept(folder: Path, max_waiting: int = 100, **engine: Any) -> AsyncIterator[Kept]:
    found = Kept(folder, **engine)
    await found.launch()
    # The first connection asks for the facts.
    found.remote = await RemoteEngine.connect(found.path, max_waiting=max_waiting)
    await found.remote.start()
    try:
        yield found
    finally:
        await found.remote.stop()
        await found.host.stop()


def of(number: int, **more: Any) -> GenerateRequest:
    return msgspec.structs.replace(request(f"r{number}"), prompt_token_ids=(10 * number, 1), **more)


@settings(max_examples=15, deadline=None)
@given(kinds=st.lists(st.sampled_from(["chunk", "works", "waits", "later"]), min_size=1, max_size=8))
def test_what_was_computed_ends_and_what_waited_is_answered(
    kinds: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def scenario() -> None:
        async with kept(tmp_path_factory.mktemp("kept")) as found:
            tasks: dict[int, asyncio.Task[list[TokenChunk]]] = {}
            begun, unbegun = (
                [number for number, kind in enumerate(kinds, 1) if kind in wanted]
                for wanted in (("chunk",), ("works", "waits"))
            )
            for number in begun:
                tasks[number] = asyncio.create_task(chunks_of(found.remote, of(number)))
            await until(lambda: found.engine.num_running == len(tasks))
            found.engine.let(len(begun))  # Each gets one chunk: the gate is first come, first served.
            await until(lambda: not any(stream.waits for stream in found.remote._streams.values()))
            for number in unbegun:
                tasks[number] = asyncio.create_task(chunks_of(found.remote, of(number)))
            await until(lambda: found.engine.num_running == len(tasks))
            found.works(*(_stream(found, number) for number in unbegun if kinds[number - 1] == "works"))
            await found.end()
            await until(lambda: found.remote.stats().outage)
            await until(lambda: CAUSE in found.remote.stats().outage)
            for number, kind in enumerate(kinds, 1):
                if kind in ("chunk", "works"):
                    (*_, last) = await tasks[number]
                    assert (last.finish_reason, last.died) == ("error", True)
                    assert CAUSE in (last.error or "")
                elif kind == "later":
                    tasks[number] = asyncio.create_task(chunks_of(found.remote, of(number)))
            await asyncio.sleep(0)
            await found.launch()
            found.engine.let(1000)
            for number, kind in enumerate(kinds, 1):
                if kind in ("waits", "later"):
                    tokens = [token for chunk in await tasks[number] for token in chunk.token_ids]
                    assert tokens == [10 * number + each for each in range(4)]
            await until(lambda: not found.remote.stats().outage)
            stats = found.remote.stats()
            assert (stats.outage, stats.deaths, stats.num_restarts) == ("", {"SIGSEGV": 1}, 1)

    asyncio.run(scenario())


def _stream(found: Kept, number: int) -> int:
    return found.remote._names[f"r{number}"]


async def test_those_that_waited_are_sent_in_their_order(tmp_path: Path) -> None:
    async with kept(tmp_path) as found:
        await found.end()
        await until(lambda: found.remote.stats().outage)
        tasks = []
        for number in (3, 1, 2):
            tasks.append(asyncio.create_task(chunks_of(found.remote, of(number))))
            await asyncio.sleep(0)
        order: list[int] = []
        generate = GatedEngine.generate

        def noted(engine: GatedEngine, wanted: GenerateRequest) -> Any:
            order.append(int(wanted.prompt_token_ids[0]) // 10)
            return generate(engine, wanted)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GatedEngine, "generate", noted)
            await found.launch()
            await until(lambda: len(order) == 3)
            found.engine.let(100)
            await asyncio.gather(*tasks)
        assert order == [3, 1, 2]


async def test_the_next_process_has_the_adapters(tmp_path: Path) -> None:
    info = scripted_info(features=frozenset({"adapters"}))
    async with kept(tmp_path, info=info) as found:
        await found.remote.load_adapter("pirate", tmp_path)
        await found.end()
        await until(lambda: found.remote.stats().outage)
        waiting = asyncio.create_task(chunks_of(found.remote, of(1, adapter="pirate")))
        await found.launch()
        found.engine.let(100)
        assert (await waiting)[-1].finish_reason is not None
        assert found.engine.adapters == ["pirate"]


async def test_as_many_wait_as_may(tmp_path: Path) -> None:
    async with kept(tmp_path, max_waiting=2) as found:
        await found.end()
        await until(lambda: found.remote.stats().outage)
        waiting = [asyncio.create_task(chunks_of(found.remote, of(number))) for number in (1, 2)]
        await until(lambda: found.remote.stats().num_waiting == 2)
        assert found.remote.refusal("") is not None
        with pytest.raises(EngineFullError, match="wait for the engine to start again"):
            await anext(found.remote.generate(of(3)))
        waiting[0].cancel()  # Its client leaves, and its place is free.
        await asyncio.gather(waiting[0], return_exceptions=True)
        assert found.remote.refusal("") is None
        found.remote.abort("r2")
        assert (await waiting[1])[-1].finish_reason == "abort"


async def test_an_engine_that_fails_is_an_outage_until_its_next_process_is_there(tmp_path: Path) -> None:
    """vLLM's engine fails when a worker is killed, and its process takes a second to end."""
    async with kept(tmp_path) as found:
        works = found.engine.stats

        def failed() -> EngineStats:
            return msgspec.structs.replace(works(), alive=False, failure="a worker was killed")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(found.engine, "stats", failed)
            await until(lambda: "a worker was killed" in found.remote.stats().outage)
            assert found.remote.stats().alive, "the server would end while the keeper starts the next process"
        await found.end()
        await until(lambda: CAUSE in found.remote.stats().outage)
        await found.launch()
        await until(lambda: not found.remote.stats().outage)
        assert found.remote.stats().alive


async def test_an_end_is_reported_however_long_the_next_start_takes(tmp_path: Path) -> None:
    """vLLM needs more than the minute for which an end is reported."""
    async with kept(tmp_path) as found:
        await found.end()
        assert time.monotonic() - found.history.ended_at > 60
        await found.launch()
        await until(lambda: found.remote.stats().last_death == CAUSE)


async def test_without_another_process_all_end_with_the_reason(tmp_path: Path) -> None:
    async with kept(tmp_path) as found:
        lost = asyncio.Event()
        found.remote.on_lost = lost.set
        waiting = asyncio.create_task(chunks_of(found.remote, of(1)))
        await until(lambda: found.engine.num_running)
        await found.end(failed="its process has ended 3 times within a minute")
        last = (await waiting)[-1]
        assert "3 times within a minute" in (last.error or "")
        await asyncio.wait_for(lost.wait(), 5)
        stats = found.remote.stats()
        assert not stats.alive
        assert "3 times" in stats.failure
        with pytest.raises(EngineClosedError, match="3 times"):
            await anext(found.remote.generate(of(2)))


async def test_who_comes_after_the_last_process_learns_the_reason(tmp_path: Path) -> None:
    """A server that was still starting said only that there is no such file."""
    async with kept(tmp_path) as found:
        await found.end(failed="its process has ended 3 times within a minute")
        with pytest.raises(OSError, match="has failed: its process has ended 3 times"):
            await engine_info(found.path)


async def test_a_quarantined_request_is_refused_by_name(tmp_path: Path) -> None:
    async with kept(tmp_path) as found:
        waiting = asyncio.create_task(chunks_of(found.remote, of(1)))
        await until(lambda: found.engine.num_running)
        found.works(_stream(found, 1))
        (entry,) = journal.read(tmp_path / "engine.journal")
        await found.end()
        await waiting
        await found.launch(quarantined=(entry.digest,))
        found.engine.let(100)
        with pytest.raises(RefusedRequestError, match="twice") as refused:
            await anext(found.remote.generate(of(1, client="another")))
        assert refused.value.code == "request_quarantined"
        assert (await chunks_of(found.remote, of(2)))[-1].finish_reason is not None

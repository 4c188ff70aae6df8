"""Room of an engine in another process, as its users know it."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.models import GatedEngine, echo, scripted_info, until

from plumbline.engines.admission import Admission
from plumbline.engines.scripted import ScriptedEngine
from plumbline.port.engine import (
    EngineFullError,
)

from .hosting import chunks_of, hosted, request


class Limited(ScriptedEngine):
    """Eight requests may be in flight, and three of one client."""

    def __init__(self) -> None:
        super().__init__(scripted_info(), echo)
        self._admission = Admission(scripted_info(), max_in_flight=8, max_per_client=3)

    def refusal(self, client: str, more: int = 0) -> EngineFullError | None:
        return self._admission.refusal(client, more)

    def arriving(self, client: str) -> AbstractContextManager[None]:
        return self._admission.arrivals.one(client)


async def test_a_server_without_room_is_known_before_a_request_is_sent(tmp_path: Path) -> None:
    engine = GatedEngine(max_inflight=1)
    async with hosted(engine, tmp_path) as (remote,):
        assert remote.refusal("") is None
        running = asyncio.create_task(chunks_of(remote, request("a")))
        await until(lambda: engine.num_running)
        with pytest.raises(EngineFullError) as found:
            await chunks_of(remote, request("b"))
        await until(lambda: remote.refusal(""))
        early = remote.refusal("")
        assert early is not None
        assert vars(early) == vars(found.value)
        assert remote.refusal("another") is not None
        engine.let()
        await running
        await until(lambda: not remote.refusal(""))
        await chunks_of(remote, request("b"))


async def test_what_arrives_at_any_api_server_takes_room_at_all_of_them(tmp_path: Path) -> None:
    engine = GatedEngine(max_inflight=2)
    async with hosted(engine, tmp_path, users=2) as (one, other):
        await until(lambda: one.refusal("a", 2) and other.refusal("a", 2))
        with one.arriving("a"):
            assert one.refusal("a", 1) is not None
            assert one.refusal("a") is None
            await until(lambda: other.refusal("a", 1) and one.refusal("b", 1))
            assert other.refusal("b") is None
            with other.arriving("a"):
                assert other.refusal("a") is not None
                await until(lambda: one.refusal("a"))
        await until(lambda: not one.refusal("a", 1) and not other.refusal("a", 1))
        with contextlib.ExitStack() as stack:
            stack.enter_context(other.arriving("a"))
            stack.enter_context(other.arriving("a"))
            await until(lambda: one.refusal("a"))
            await other.stop()
            await until(lambda: not one.refusal("a", 1))


async def test_room_is_known_at_once_where_it_was_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server does not wait for the next regular message."""
    engine = GatedEngine(max_inflight=1)
    async with hosted(engine, tmp_path, users=2) as (one, other):
        await until(lambda: one.refusal("a", 1) and other.refusal("a", 1))
        monkeypatch.setattr("plumbline.engines.remote.host._STATISTICS_SECONDS", 3600)
        running = asyncio.create_task(chunks_of(one, request("a")))
        await until(lambda: one.refusal("a") and other.refusal("b"))
        engine.let()
        await running
        await until(lambda: not one.refusal("a") and not other.refusal("b"))


async def test_a_message_names_only_clients_with_less_room_than_others(tmp_path: Path) -> None:
    """Otherwise a server that is nearly full would look at every client that it has ever seen, many times a second."""
    engine = Limited()
    async with hosted(engine, tmp_path) as (remote,):

        def named() -> set[str] | None:
            last = remote._statistics
            return None if last is None or last.others is None else set(last.rooms)

        with remote.arriving("a"):
            await until(lambda: named() == {"a"})
            assert remote.refusal("a", 1) is None
            assert remote.refusal("a", 2) is not None
            assert remote.refusal("b", 2) is None
        await until(lambda: named() == set())
        with contextlib.ExitStack() as stack:
            for client in "abcdefgh":
                stack.enter_context(remote.arriving(client))
            await until(lambda: remote.refusal("another"))
            assert named() == set()


async def test_what_arrives_while_the_host_is_silent_is_not_kept(tmp_path: Path) -> None:
    async with hosted(GatedEngine(), tmp_path) as (remote,):
        await until(lambda: remote._statistics)
        remote.link.is_silent = True
        with remote.arriving("a"):
            assert not remote._unseen
        await remote.stop()
        with remote.arriving("a"):
            assert not remote._unseen

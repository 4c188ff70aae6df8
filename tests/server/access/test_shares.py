"""Laws of what clients share and cannot be taken back: places to wait, streams, bytes.

1. However many clients take all that they can get, in whatever order, the next client finds room.
2. Beside others a client has at most twice what it leaves free; alone it has what its own limit allows.
3. Two clients with slow calls, however many, leave quick calls of a third one a worker; a client alone begins no call
   twice.
4. Files are fetched, and exchanges judged, by client in turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.turn import MediaReference
from plumbline.base.shares import within_share
from plumbline.base.workers.pool import QUICK_SECONDS, Bounds, WorkerError, WorkerPool
from plumbline.base.workers.turns import PlacesFullError, Turns
from plumbline.contract.wire.errors import ApiError
from plumbline.engines.admission import Admission
from plumbline.port.engine import EngineFullError, EngineInfo, GenerateRequest, SamplingParams
from plumbline.server.limits.held_bytes import ByteBudget, Reservation
from plumbline.server.loading.pool import ModelPool
from plumbline.server.media.fetch import Fetcher
from plumbline.server.media.load import MediaLoader
from plumbline.server.page.judge import PageJudge
from plumbline.server.responses.followers import Followers
from plumbline.server.settings import Settings

NOTHING: Any = None
INFO = EngineInfo(name="e", model="m", vocab_size=9, max_model_len=9, eos_token_ids=frozenset({1}))
FLOODS = st.lists(st.sampled_from("abc"), min_size=1, max_size=200)
"""The order in which clients ask; at the end each asks until it is refused."""


@given(st.integers(24, 200), FLOODS)
def test_the_next_client_finds_room(limit: int, order: list[str]) -> None:
    """Laws 1 and 2; alone a client has half."""
    counts: Counter[str] = Counter()
    for client in [*order, *("abc" * limit)]:
        own, used = counts[client], counts.total()
        if own < limit // 2 and within_share(own, 1, used, limit):
            counts[client] += 1
            assert own in (0, used) or counts[client] <= 2 * (limit - counts.total())
    assert within_share(0, 1, counts.total(), limit)


class Room:
    """Something that clients share.

    Args:
        take: takes one more for a client, or raises.
        refusals: the errors of a client that gets no more.
    """

    def __init__(
        self, take: Callable[[str], Awaitable[object]], refusals: tuple[type[Exception], ...]
    ) -> None:
        self.take = take
        self.refusals = refusals
        self.tasks: list[asyncio.Task[object]] = []

    async def gives(self, client: str) -> bool:
        """Return whether a client gets one more, or waits for it as the next."""
        task = asyncio.ensure_future(self.take(client))
        for _ in range(10):
            await asyncio.sleep(0)
        if task.done() and task.exception() is not None:
            assert isinstance(task.exception(), self.refusals), task.exception()
            return False
        self.tasks.append(task)
        return True

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def waiting_places() -> Room:
    """Grammars, files, templates and arguments that wait for a worker."""
    turns = Turns(2, 64)

    async def take(client: str) -> None:
        async with turns.turn(client):
            await asyncio.sleep(1000)

    return Room(take, (PlacesFullError,))


def engine_places() -> Room:
    admission = Admission(INFO, max_in_flight=64, max_per_client=48)
    names = iter(range(1000))

    async def take(client: str) -> None:
        sampling = SamplingParams()
        name = str(next(names))
        admission.enter(
            GenerateRequest(request_id=name, prompt_token_ids=[2], sampling=sampling, client=client)
        )

    return Room(take, (EngineFullError,))


def loading_places() -> Room:
    async def load(name: str) -> str:
        await asyncio.sleep(1000)
        return name

    async def unload(name: str) -> None:
        pass

    pool = ModelPool({"m": 1}, load, unload, capacity=1, max_waiting=64, max_per_client=48)
    return Room(lambda client: pool.acquire("m", client), (EngineFullError,))


def streams_of_others() -> Room:
    followers = Followers(NOTHING)

    async def take(client: str) -> None:
        followers.check_room(client)
        followers._counts[client] += 1

    return Room(take, (ApiError,))


def bytes_of_files() -> Room:
    budget = ByteBudget(6400)

    async def take(client: str) -> None:
        Reservation(budget, client).change(100)

    return Room(take, (ApiError,))


ROOMS = [waiting_places, engine_places, loading_places, streams_of_others, bytes_of_files]


@pytest.mark.parametrize("floods", ["ab", "abc"])
@pytest.mark.parametrize("room", ROOMS)
async def test_two_floods_leave_room_for_a_third_client(room: Callable[[], Room], floods: str) -> None:
    """Law 1, of each thing that is shared."""
    found = room()
    try:
        for client in floods:  # One after the other, so that the first has most of it.
            for _ in range(200):
                if not await found.gives(client):
                    break
            else:
                pytest.fail(f"{client} gets everything")
        assert await found.gives("next")
    finally:
        await found.close()


async def test_a_body_of_a_third_client_is_read_beside_two_that_hold_all_they_can() -> None:
    """Law 1: bodies wait rather than being refused, and a first one waits for nothing but free bytes."""
    largest = 10
    budget = ByteBudget(4 * largest)
    for client in "aabb":
        task = asyncio.ensure_future(Reservation(budget, client).wait(largest))
        await asyncio.sleep(0)
        task.cancel()
    head = Reservation(budget, "next")
    head.set(1)
    async with asyncio.timeout(5):
        await head.wait(largest - 1)


async def test_a_client_at_its_share_of_bytes_holds_up_nobody() -> None:
    """Law 1: what waits for bytes of its own client does not keep free bytes from others, however little it has."""
    budget = ByteBudget(100)
    for client, size in [("a", 45), ("b", 30), ("c", 1)]:
        Reservation(budget, client).change(size)
    own = asyncio.ensure_future(Reservation(budget, "c").wait(20))
    await asyncio.sleep(0)
    head = Reservation(budget, "next")
    head.set(2)
    async with asyncio.timeout(5):
        await head.wait(10)
    assert not own.done()
    own.cancel()


async def test_slow_calls_of_two_clients_leave_a_worker_to_a_third(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 3. Each slow call takes four seconds of a CPU, and before the law it took them of a worker for all."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "workers"))
    bounds = Bounds(cpu_seconds=4.0, seconds=60.0, memory=256 * 1024**2, result=1024)
    pool = WorkerPool("handlers:make", b"d:", bounds=bounds, processes=2)
    await pool.start()
    async with pool.worker("b"):  # So that the first call of the other one does not begin alone.
        floods = [asyncio.create_task(pool.call(b"spin", client)) for client in "ab" * 4]
        await asyncio.sleep(0)
    try:
        while (
            pool.slow.num_inside < 2
        ):  # Two spin as slow ones, and further ones wait for their try as quick ones.
            await asyncio.sleep(0.01)
        async with asyncio.timeout(
            8 * QUICK_SECONDS
        ):  # Two turns at most, on CPUs that four processes share.
            assert await pool.call(b"echo b", "c") == b"d:b"
        assert pool.slow.num_inside == 2
    finally:
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        await pool.close()


async def test_a_slow_call_of_a_client_alone_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 3: nobody waits for its worker."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "workers"))
    bounds = Bounds(cpu_seconds=2 * QUICK_SECONDS, seconds=60.0, memory=256 * 1024**2, result=1024)
    pool = WorkerPool("handlers:make", b"d:", bounds=bounds, processes=2)
    try:
        with pytest.raises(WorkerError, match=f"more than {2 * QUICK_SECONDS:g} s of CPU"):
            await pool.call(b"spin", "a")
        assert pool._template is not None
        assert pool._template._count == 1
    finally:
        await pool.close()


async def test_files_are_fetched_by_client_in_turn() -> None:
    """Law 4: two clients with hundreds of slow files do not keep a third one from its first."""
    begun: list[str] = []
    ends = asyncio.Event()

    class Slow(Fetcher):
        async def fetch(self, url: str, most: int) -> bytes:
            begun.append(url[8:9])
            await ends.wait()
            return b"no image"

    loader = MediaLoader(Settings(allow_media_urls=True), Slow(1))

    async def load(client: str) -> None:
        reference = MediaReference(url=f"https://{client}/{time.monotonic_ns()}", field="f")
        with pytest.raises(ApiError):
            await loader._load([reference], client)

    tasks = [asyncio.create_task(load(client)) for client in "ab" * 40]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(load("c")))
    for _ in range(20):
        await asyncio.sleep(0)
    full = len(begun)
    assert set(begun) == {"a", "b"}
    ends.set()
    for _ in range(1000):
        if "c" in begun:
            break
        await asyncio.sleep(0.001)
    assert "c" in begun[full : 2 * full]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loader.close()


async def test_exchanges_are_judged_by_client_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 4."""
    order: list[bytes] = []

    async def judged(self: PageJudge, body: bytes) -> bytes:
        order.append(body)
        await asyncio.sleep(0)
        return body

    monkeypatch.setattr(PageJudge, "_judged", judged)
    judge = PageJudge()
    work = [judge.judge(NOTHING or name, name) for name in ["a"] * 4 + ["b"] * 4 + ["c"]]  # type: ignore[arg-type]
    await asyncio.gather(*work)
    assert order.index(b'"c"') <= 2

"""Laws of the time of the event loop: streams have half of it, and clients share the rest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.server.start.connections.loop_share import BURST, QUIET, SHARE, TYPICAL, LoopShare, Timed

COSTS = st.floats(0.0001, 0.02)


class Simulated:
    """A loop whose time is simulated: requests use it one after the other, and streams between them.

    Args:
        streams: whether an event of a stream is sent all the time.
    """

    def __init__(self, streams: bool = True) -> None:
        self.now = 0.0
        self.share = LoopShare(lambda: self.now)
        self.streams = streams
        self.used = dict.fromkeys("abc", 0.0)
        self.started: list[tuple[str, int]] = []
        self.calls: list[tuple[float, Any]] = []

    def call_later(self, delay: float, call: Any) -> object:
        """Stand in for the method of an event loop."""
        self.calls.append((self.now + delay, call))
        return self

    def request(self, client: str, number: int, cost: float) -> None:
        """Send a request that uses the loop for so long."""

        def start() -> None:
            self.started.append((client, number))
            self.now += cost
            self.used[client] = self.used.get(client, 0.0) + cost
            self.share.spent(client, cost)

        if self.streams:
            self.share.streamed()
        self.share.begin(client, start)

    def step(self) -> None:
        """Let the time come at which the next request may begin."""
        self.calls.sort(key=lambda each: each[0])
        at, call = self.calls.pop(0)
        self.now = max(self.now, at)
        if self.streams:
            self.share.streamed()
        call()


@pytest.fixture(autouse=True)
def _no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: _CURRENT[0])


_CURRENT: list[Simulated] = []


def simulated(streams: bool = True) -> Simulated:
    """Make it the running loop."""
    _CURRENT[:] = [Simulated(streams)]
    return _CURRENT[0]


@given(st.lists(st.tuples(st.sampled_from("abc"), COSTS), min_size=1, max_size=120))
def test_requests_take_at_most_their_half_while_answers_stream(requests: list[tuple[str, float]]) -> None:
    loop = simulated()
    for number, (client, cost) in enumerate(requests):
        loop.request(client, number, cost)
    began, before = loop.now, sum(loop.used.values())
    while loop.share.num_waiting:
        loop.step()
    # The last request is paid for afterwards, and a debt is not above the burst.
    most = SHARE * (loop.now - began) + 2 * BURST + max(cost for _, cost in requests) + TYPICAL
    assert sum(loop.used.values()) - before <= most + sum(max(0.0, cost - BURST) for _, cost in requests)
    assert sorted(number for _, number in loop.started) == list(range(len(requests)))
    for client in "abc":
        mine = [number for name, number in loop.started if name == client]
        assert mine == sorted(mine)


@given(st.lists(st.tuples(st.sampled_from("abc"), COSTS), min_size=1, max_size=50))
def test_requests_begin_at_once_while_nothing_streams(requests: list[tuple[str, float]]) -> None:
    loop = simulated(streams=False)
    for number, (client, cost) in enumerate(requests):
        loop.request(client, number, cost)
        assert not loop.share.num_waiting


@given(COSTS, COSTS)
def test_clients_that_wait_get_the_same_time(first: float, second: float) -> None:
    loop = simulated()
    costs = {"a": first, "b": second}
    for number in range(400):
        for client, cost in costs.items():
            loop.request(client, number, cost)
    loop.used = dict.fromkeys("ab", 0.0)
    while len({name for name, queue in loop.share._queues.items() if queue}) == 2:
        loop.step()
    assert abs(loop.used["a"] - loop.used["b"]) <= 2 * (first + second) + BURST


def test_a_client_that_comes_waits_for_none_that_came_before() -> None:
    loop = simulated()
    for number in range(1_000):
        loop.request("flood", number, 0.001)
    waiting = loop.share.num_waiting
    loop.request("other", 0, 0.001)
    while ("other", 0) not in loop.started:
        loop.step()
    assert loop.share.num_waiting >= waiting - 3


def test_what_waits_begins_when_the_streams_have_ended() -> None:
    loop = simulated()
    for number in range(1_000):
        loop.request("a", number, 0.001)
    assert loop.share.num_waiting
    loop.streams = False
    until = loop.now + QUIET + 1.0
    while loop.share.num_waiting:
        loop.step()
    assert loop.now <= until + 1.0


class InterruptionError(Exception):
    """Thrown into a task."""


def test_what_waits_begins_also_after_one_that_cannot_begin() -> None:
    loop = simulated()

    def fail() -> None:
        raise RuntimeError

    for number in range(1_000):
        loop.request("a", number, 0.001)
        if loop.share.num_waiting:
            loop.share.begin("a", fail)
    while loop.share.num_waiting:
        assert loop.calls, "nothing wakes the requests that wait"
        with contextlib.suppress(RuntimeError):
            loop.step()
    assert [number for _, number in loop.started] == list(range(1_000))


async def test_a_timed_coroutine_behaves_like_itself() -> None:
    """Its result, its errors, what is thrown into it and its end are those of the coroutine."""
    seen: list[BaseException] = []

    async def work(fails: bool = False) -> int:
        await asyncio.sleep(0)
        try:
            await asyncio.sleep(0 if not fails else 60)
        except asyncio.CancelledError as error:
            seen.append(error)
            raise InterruptionError from error
        return 7

    async def awaiting(it: Coroutine[Any, Any, int]) -> tuple[int, float]:
        timed = Timed(it)
        return await timed, timed.seconds

    value, seconds = await awaiting(work())
    assert value == 7
    assert 0.0 < seconds < 10.0
    task = asyncio.ensure_future(awaiting(work(fails=True)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(InterruptionError):
        await task
    assert len(seen) == 1

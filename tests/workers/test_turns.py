"""Laws of turns.

1. A place is idle while somebody waits only if one client has all others.
2. Clients that wait are served evenly, by time.
3. A client that is alone leaves one place of several to those that come.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.base.workers.turns import PlacesFullError, Turns

COSTS = st.floats(0.01, 10.0)


class Simulation:
    """Clients that always want one more turn, on a clock that jumps to the next end of a turn."""

    def __init__(self, places: int, costs: dict[str, list[float]], callers: int) -> None:
        self.now = 0.0
        self.turns = Turns(places, 1000, lambda: self.now)
        self.places = places
        self.seconds: dict[str, float] = defaultdict(float)
        self.costs = {client: itertools.cycle(each) for client, each in costs.items()}
        self.ends: list[tuple[float, int, asyncio.Event]] = []
        self.count = itertools.count()
        self.callers = callers

    async def call(self, client: str) -> None:
        while True:
            async with self.turns.turn(client):
                cost = next(self.costs[client])
                end = asyncio.Event()
                self.ends.append((self.now + cost, next(self.count), end))
                await end.wait()
                self.seconds[client] += cost

    async def run(self, turns: int) -> None:
        tasks = [asyncio.create_task(self.call(client)) for client in self.costs for _ in range(self.callers)]
        for _ in range(turns):
            for _ in range(8):
                await asyncio.sleep(0)
            most = self.places if len(self.costs) > 1 else max(1, self.places - 1)
            assert len(self.ends) == min(most, len(tasks)), "a place is idle while somebody waits"
            self.ends.sort(key=lambda each: each[:2])
            self.now, _, end = self.ends.pop(0)
            end.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@given(st.lists(st.lists(COSTS, min_size=1, max_size=4), min_size=2, max_size=4), st.integers(2, 4))
def test_one_place_is_shared_by_time_whatever_turns_cost(costs: list[list[float]], callers: int) -> None:
    # With one caller each, a client is never waiting when its own turn ends.
    clients = {str(index): each for index, each in enumerate(costs)}
    simulation = Simulation(1, clients, callers)
    asyncio.run(simulation.run(200))
    used = [simulation.seconds[client] for client in clients]
    assert max(used) - min(used) <= 2 * max(map(max, costs)) + 1e-6


@given(st.integers(1, 3), st.integers(2, 5), st.integers(1, 4))
def test_several_places_go_to_all_clients(places: int, clients: int, callers: int) -> None:
    simulation = Simulation(places, {str(index): [1.0] for index in range(clients)}, callers)
    asyncio.run(simulation.run(120))
    used = [simulation.seconds[str(index)] for index in range(clients)]
    assert max(used) - min(used) <= 2 * places


def test_a_client_that_is_alone_leaves_a_place_to_those_that_come() -> None:
    async def run(places: int) -> None:
        turns = Turns(places, 1000)
        release = asyncio.Event()
        order: list[str] = []

        async def call(client: str) -> None:
            async with turns.turn(client):
                order.append(client)
                await release.wait()

        tasks = [asyncio.create_task(call("a")) for _ in range(places + 2)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(call("b")))
        await asyncio.sleep(0)
        assert order == ["a"] * (places - 1) + ["b"]
        release.set()
        await asyncio.gather(*tasks)

    for places in (2, 3, 5):
        asyncio.run(run(places))


def test_a_client_that_comes_late_has_not_saved_up_time() -> None:
    async def run() -> None:
        simulation = Simulation(1, {"a": [1.0], "b": [1.0]}, 2)
        alone = asyncio.create_task(simulation.call("a"))
        for _ in range(50):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            simulation.now, _, end = simulation.ends.pop(0)
            end.set()
        alone.cancel()
        await asyncio.gather(alone, return_exceptions=True)
        simulation.ends.clear()
        before = simulation.seconds["a"]
        await simulation.run(20)
        assert simulation.seconds["a"] - before >= 8
        assert simulation.seconds["b"] >= 8

    asyncio.run(run())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30))
def test_cancelled_callers_leave_no_place_taken(callers: list[tuple[str, bool]]) -> None:
    async def run() -> None:
        turns = Turns(2, 1000)
        release = asyncio.Event()

        async def call(client: str) -> None:
            async with turns.turn(client):
                await release.wait()

        tasks = []
        for client, cancelled in callers:
            task = asyncio.create_task(call(client))
            tasks.append(task)
            await asyncio.sleep(0)
            if cancelled:
                tasks[len(tasks) // 2].cancel()
                tasks[0].cancel()  # A place becomes free before the cancelled caller has run.
        release.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert turns.num_waiting == 0
        async with turns.turn("a"), turns.turn("b"):
            pass

    asyncio.run(run())


def test_one_client_can_fill_half_of_the_queue() -> None:
    async def run() -> None:
        turns = Turns(1, 4)
        release = asyncio.Event()

        async def call(client: str) -> None:
            async with turns.turn(client):
                await release.wait()

        tasks = [asyncio.create_task(call("a")) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(PlacesFullError):
            await call("a")
        tasks.append(asyncio.create_task(call("b")))
        await asyncio.sleep(0)
        with pytest.raises(PlacesFullError):  # The last one is for clients without any.
            await call("b")
        tasks.append(asyncio.create_task(call("c")))
        await asyncio.sleep(0)
        with pytest.raises(PlacesFullError):
            await call("d")
        release.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.data())
def test_callers_that_leave_at_once_lose_no_place(clients: list[int], data: st.DataObject) -> None:
    """All may be cancelled before any of them runs again, in the moment in which a place becomes free."""
    gone = data.draw(st.sets(st.integers(0, len(clients) - 1)))

    async def run() -> None:
        turns = Turns(2, 1000)
        release = asyncio.Event()

        async def call(client: int) -> None:
            async with turns.turn(str(client)):
                await release.wait()

        tasks = [asyncio.create_task(call(client)) for client in clients]
        await asyncio.sleep(0)
        release.set()
        for index in gone:
            tasks[index].cancel()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks, return_exceptions=True)
            async with turns.turn("x"), turns.turn("y"):
                assert turns.num_waiting == 0

    asyncio.run(run())


@given(st.integers(1, 3), st.integers(1, 4))
def test_a_client_has_no_more_places_than_all_but_one(places: int, others: int) -> None:
    async def run() -> None:
        turns = Turns(places, 1000)
        inside: Counter[str] = Counter()
        most: Counter[str] = Counter()

        async def call(client: str) -> None:
            async with turns.turn(client):
                inside[client] += 1
                most[client] = max(most[client], inside[client])
                await asyncio.sleep(0)
                inside[client] -= 1

        names = ["a"] * 6 + [f"other {number}" for number in range(others)]
        async with asyncio.timeout(5):
            await asyncio.gather(*map(call, names))
        assert most["a"] == max(1, places - 1)

    asyncio.run(run())

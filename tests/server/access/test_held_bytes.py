"""The bytes that clients make the process hold.

Laws:
    1. What is reserved ahead never exceeds the limit, nor the share of a client.
    2. Nothing is counted when all reservations are released, whether they waited, were granted or were cancelled.
    3. Whoever waits gets room as soon as there is enough, the client with the least first.
    4. A client that has used its share holds up nobody else.
"""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline.server.limits.held_bytes import ByteBudget, Reservation

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["wait", "release", "cancel", "shrink"]),
        st.sampled_from("abc"),
        st.integers(1, 50),
        st.integers(0, 30),
    ),
    max_size=40,
)


@settings(max_examples=EXPLORED or 200)
@given(STEPS)
def test_the_limits_hold_and_nothing_stays(steps: list[tuple[str, str, int, int]]) -> None:
    """Laws 1 to 3."""

    async def run() -> None:
        budget = ByteBudget(100, 50)
        all_of_them: list[tuple[Reservation, asyncio.Task[None]]] = []
        for action, client, size, index in steps:
            if action == "wait":
                one = Reservation(budget, client)
                all_of_them.append((one, asyncio.create_task(one.wait(size))))
            elif all_of_them:
                one, task = all_of_them[index % len(all_of_them)]
                if action == "cancel":
                    task.cancel()
                elif task.done():
                    one.set(one.size // 2) if action == "shrink" else one.release()
            for _ in range(3):
                await asyncio.sleep(0)
            assert budget.held <= 100
            assert all(budget.of(client) <= 50 for client in "abc")
        for one, task in all_of_them:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            one.release()
        assert budget.held == 0
        assert [budget.of(client) for client in "abc"] == [0, 0, 0]
        whole = Reservation(budget, "a")
        async with asyncio.timeout(5):
            await whole.wait(50)

    asyncio.run(run())


async def waits(budget: ByteBudget, client: str, size: int) -> tuple[Reservation, asyncio.Task[None]]:
    """Begin to wait."""
    one = Reservation(budget, client)
    task = asyncio.create_task(one.wait(size))
    await asyncio.sleep(0)
    return one, task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_client_with_the_least_goes_first() -> None:
    """Law 3."""
    budget = ByteBudget(100, 80)
    first, _ = await waits(budget, "a", 60)
    second, _ = await waits(budget, "b", 40)
    _, more_of_b = await waits(budget, "b", 30)
    _, some_of_c = await waits(budget, "c", 30)
    first.set(30)
    await settle()
    assert some_of_c.done()
    assert not more_of_b.done()
    second.release()
    await settle()
    assert more_of_b.done()


async def test_a_client_beyond_its_share_waits_alone() -> None:
    """Law 4."""
    budget = ByteBudget(100, 50)
    await waits(budget, "a", 50)
    _, own = await waits(budget, "a", 10)
    _, other = await waits(budget, "b", 50)
    await settle()
    assert not own.done()
    assert other.done()
    own.cancel()


async def test_a_large_body_is_not_overtaken_for_ever() -> None:
    budget = ByteBudget(100, 100)
    first, _ = await waits(budget, "a", 50)
    _, large = await waits(budget, "b", 80)
    small = [await waits(budget, "c", 10) for _ in range(5)]
    await settle()
    assert not any(task.done() for _, task in small)
    first.release()
    await settle()
    assert large.done()

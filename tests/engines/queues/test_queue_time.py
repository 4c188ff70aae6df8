"""Laws of the estimate of how long a request waits for its first token.

- Without a queue, or while too little is known, nothing is refused.
- In a queue that moves at a steady rate, the estimate is the wait that follows.
- A client with few requests waits for few of the others.
- Requests that are being prepared count as if they waited.
- Of those that are admitted under an overload, few have to be refused later, when they were rendered for nothing.
- An engine that stands still makes the estimate grow, up to a bound.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline.engines.admission import Admission
from plumbline.engines.queue_time import QueueTime
from plumbline.port.engine import EngineFullError, GenerateRequest

from .test_admission import INFO, request


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@given(interval=st.floats(0.01, 10.0), served=st.integers(5, 60), waiting=st.integers(1, 50))
def test_the_estimate_is_the_wait_of_a_steady_queue(interval: float, served: int, waiting: int) -> None:
    clock = Clock()
    queue = QueueTime(clock)
    for number in range(served + waiting):
        queue.entered(str(number), "a")
    for number in range(served):
        clock.now += interval
        queue.started(str(number))
    expected = queue.expected("a")
    begin = clock.now
    for number in range(served, served + waiting):
        clock.now += interval
        queue.started(str(number))
    clock.now += interval  # The first token of the request that was asked about.
    assert expected == pytest.approx(min(clock.now - begin, 3600.0), rel=0.01)


@given(
    waiting=st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=30),
    client=st.sampled_from("abcde"),
    arriving=st.integers(0, 3),
)
def test_a_request_waits_for_as_many_of_each_other_client_as_its_own_has(
    waiting: list[tuple[str, bool]], client: str, arriving: int
) -> None:
    clock = Clock()
    queue = QueueTime(clock)
    for number in range(4):
        queue.entered(f"first {number}", "first")
        clock.now += 1.0
        queue.started(f"first {number}")
    for place, (name, leaves) in enumerate(waiting):
        queue.entered(str(place), name)
        if leaves:
            queue.left(str(place))
    counts = Counter(name for name, leaves in waiting if not leaves)
    own = counts.pop(client, 0) + arriving
    ahead = own + sum(min(count, own + 1) for count in counts.values())
    assert queue.expected(client, arriving) == pytest.approx(ahead + 1 if ahead else 0.0)
    assert queue._sizes.total() == len(queue._counts)


@given(moves=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["enter", "start", "leave"]))))
def test_an_engine_without_a_queue_refuses_nothing(moves: list[tuple[int, str]]) -> None:
    clock = Clock()
    queue = QueueTime(clock)
    inside: set[int] = set()
    for number, move in moves:
        clock.now += 1.0
        if move == "enter" and number not in inside:
            inside.add(number)
            queue.entered(str(number), "a")
        elif move == "start":
            inside.discard(number)
            queue.started(str(number))
        else:
            inside.discard(number)
            queue.left(str(number))
        assert queue.expected("b") >= 0.0
        if not inside:
            assert queue.expected("b") == 0.0
    assert len(queue._waiting) == len(inside)
    assert queue._counts.total() == len(inside)


@given(served=st.integers(4, 40), waiting=st.integers(0, 20), arriving=st.integers(0, 20))
def test_requests_that_are_being_prepared_count_as_if_they_waited(
    served: int, waiting: int, arriving: int
) -> None:
    clock = Clock()
    queue = QueueTime(clock)
    for number in range(served + waiting):
        queue.entered(str(number), "ab"[number % 2])
    for number in range(served):
        clock.now += 1.0
        queue.started(str(number))
    expected = queue.expected("a", arriving)
    for number in range(arriving):
        queue.entered(f"later {number}", "a")
    assert expected == pytest.approx(queue.expected("a"))


def test_a_client_with_few_requests_waits_for_few_of_the_others() -> None:
    clock = Clock()
    queue = QueueTime(clock)
    for number in range(60):
        queue.entered(str(number), "flood")
    for number in range(10):
        clock.now += 1.0
        queue.started(str(number))
    assert queue.expected("flood") > 50
    assert queue.expected("other") < 3
    clock.now += 100_000.0
    assert queue.expected("other") > 1000
    assert queue.expected("flood") == 3600.0
    for number in range(60):
        queue.left(str(number))
    assert queue.expected("flood") == 0.0


@settings(max_examples=EXPLORED or 10)
@given(limit=st.floats(0.5, 30.0))
def test_no_request_is_admitted_that_would_wait_too_long(limit: float) -> None:
    """An overload of many times the capacity: those that are admitted wait no longer than the limit."""
    clock = Clock()
    admission = Admission(INFO, max_in_flight=10_000, queue=QueueTime(clock))
    admission.max_queue_seconds = limit
    entered: dict[str, float] = {}
    waits: list[float] = []
    hints: list[int] = []
    for number in range(2000):
        clock.now += 0.1  # Ten requests come a second, and one of them is served.
        wanted = request(number, "a")
        try:
            admission.enter(wanted)
            entered[wanted.request_id] = clock.now
        except EngineFullError as error:
            hints.append(error.retry_after)
            expected, most = map(float, re.findall(r"[\d.]+(?= s)", str(error)))
            assert expected >= most
        if number % 10 == 9 and entered:
            name = min(entered, key=lambda each: entered[each])
            waits.append(clock.now - entered.pop(name))
            admission.started(request(int(name), "a"))
    # Until the speed is known, by the first tokens of the first five seconds, all are admitted.
    assert len(hints) > 1500
    assert set(hints) <= set(range(1, 61))
    assert len(waits) > 150
    assert max(waits[60:]) <= limit + 2


def test_few_of_those_that_are_admitted_are_overdue_in_the_end() -> None:
    """An overload of ten times the capacity, with first tokens at random times: 20 on average within the bound."""
    clock, source = Clock(), random.Random(1)
    admission = Admission(INFO, max_in_flight=10_000, queue=QueueTime(clock))
    admission.max_queue_seconds = 20.0
    waiting: deque[tuple[float, GenerateRequest]] = deque()
    begun, overdue, free = 0, 0, 0.0
    for number in range(20_000):
        clock.now += 0.1
        while waiting and clock.now - waiting[0][0] >= admission.max_queue_seconds:
            admission.leave(waiting.popleft()[1])
            overdue += 1
        if waiting and clock.now >= free:
            admission.started(waiting.popleft()[1])
            free = clock.now + source.expovariate(1.0)
            begun += 1
        wanted = request(number, "a")
        with contextlib.suppress(EngineFullError):
            admission.enter(wanted)
            waiting.append((clock.now, wanted))
    assert begun > 1500
    assert overdue < 0.1 * begun

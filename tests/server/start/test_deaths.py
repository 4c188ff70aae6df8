"""Laws of the ends of an engine's process.

1. Another process is started unless three have ended within a minute of serving, however long they take to start.
2. A request is refused exactly if the process ended under it at least twice, the last time within an hour, and no
   process computed it to its end after the first.
3. What is remembered is bounded.
"""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.server.start.engine_process.deaths import Deaths, Suspects, cause_of, kind_of


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.floats(0, 50), max_size=12))
def test_three_ends_within_a_minute_of_serving_are_too_many(served: list[float]) -> None:
    deaths = Deaths()
    for number, seconds in enumerate(served):
        # The first process may have served for days.
        since_the_third_last = sum(served[number - 1 : number + 1])
        assert deaths.add("SIGSEGV", seconds) == (number < 2 or since_the_third_last > 60)
    assert sum(deaths.counts.values()) == len(served)


@pytest.mark.parametrize(
    ("status", "reason", "cause"),
    [
        (-signal.SIGSEGV, None, "was killed by SIGSEGV"),
        (-signal.SIGKILL, None, "was killed by SIGKILL (perhaps the system is out of memory)"),
        (1, None, "ended with status 1"),
        (1, "no memory", "ended: no memory"),
        (-50, None, "was killed by signal 50"),
    ],
)
def test_a_cause_is_named(status: int, reason: str | None, cause: str) -> None:
    assert cause_of(status, reason) == cause
    assert kind_of(status) == ("error" if status >= 0 else cause.split()[3] if status != -50 else "signal 50")


_keys = st.sampled_from([b"a", b"b", b"c"])
_events = st.lists(
    st.one_of(
        st.tuples(st.just("death"), st.lists(_keys, max_size=3)),
        st.tuples(st.just("clear"), _keys),
        st.tuples(st.just("wait"), st.floats(0, 2000)),
    ),
    max_size=20,
)


@given(_events)
def test_what_a_process_died_under_twice_is_refused_for_an_hour(events: list[tuple[str, object]]) -> None:
    clock = Clock()
    suspects = Suspects(clock)
    times: Counter[bytes] = Counter()
    last: dict[bytes, float] = {}
    for kind, value in events:
        if kind == "death":
            assert isinstance(value, list)
            suspects.add(value)
            for key in set(value):
                times[key] += 1
                last[key] = clock.now
        elif kind == "clear":
            assert isinstance(value, bytes)
            suspects.clear(value)
            if times[value] < 2:
                times[value] = 0
        else:
            assert isinstance(value, float)
            clock.now += value
        wanted = {key for key, count in times.items() if count >= 2 and clock.now - last[key] < 3600}
        assert set(suspects.quarantined) == wanted
        assert set(suspects.known) == {key for key, count in times.items() if count == 1}


def test_what_is_remembered_is_bounded() -> None:
    suspects = Suspects()
    for number in range(10_000):
        suspects.add([number.to_bytes(4)])
    assert len(suspects.known) == 4096
    assert (9_999).to_bytes(4) in suspects.known

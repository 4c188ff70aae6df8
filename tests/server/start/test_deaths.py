"""Laws of the ends of an engine's process.

1. Another process is started unless three have ended within a minute.
2. A request is refused exactly if the process ended under it at least twice, the last time within an hour, and no
   process computed it to its end after the first.
3. What is remembered is bounded.
4. The journal says what is being computed, whatever came before; two requests have one digest exactly if they
   compute the same.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.port import (
    Dry,
    GenerateRequest,
    Mirostat,
    SamplerChain,
    SamplingParams,
    ThinkingBudget,
)
from plumbline.engines.remote import journal
from plumbline.engines.remote.journal import Entry, Journal, digest
from plumbline.engines.remote.messages import CheckGrammar, Generate
from plumbline.server.start.engine_process.deaths import Deaths, Suspects, cause_of, kind_of


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.floats(0, 50), max_size=12))
def test_three_ends_within_a_minute_are_too_many(pauses: list[float]) -> None:
    clock = Clock()
    deaths = Deaths(clock)
    times: list[float] = []
    for pause in pauses:
        clock.now += pause
        times.append(clock.now)
        within = [time for time in times[-3:] if clock.now - time <= 60]
        assert deaths.add("SIGSEGV") == (len(within) < 3)
    assert sum(deaths.counts.values()) == len(pauses)


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


@given(
    st.lists(st.tuples(st.sampled_from(["enter", "mark", "unmark", "leave"]), st.integers(0, 5)), max_size=30)
)
def test_a_journal_says_what_is_computed(steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        journal.create(path)
        written = Journal(path)
        model: dict[int, bool] = {}
        for step, number in steps:
            name = str(number)
            match step:
                case "enter":
                    written.enter(name, Entry(1, number, bytes([number] * 16)))
                    model.setdefault(number, False)
                case "leave":
                    written.leave(name)
                    model.pop(number, None)
                case _:
                    written.mark(name, step == "mark")
                    if number in model:
                        model[number] = step == "mark"
            found = {entry.stream: entry for entry in journal.read(path)}
            assert set(found) == {number for number, works in model.items() if works}
            assert all(entry.digest == bytes([number] * 16) for number, entry in found.items())


_sampling = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1.0]),
    logit_bias=st.dictionaries(st.integers(0, 3), st.just(1.0), max_size=2),
    stop_token_ids=st.frozensets(st.integers(0, 3)),
    grammar=st.sampled_from([None, "a", "b"]),
    allowed_token_ids=st.none() | st.frozensets(st.integers(0, 3)),
    bad_words=st.sampled_from([(), ((1, 2),)]),
    chain=st.sampled_from(
        [None, SamplerChain(dry=Dry(multiplier=1.0)), SamplerChain(mirostat=Mirostat(version=2))]
    ),
    thinking_budget=st.sampled_from([None, ThinkingBudget(begin=((1,),), end=(2,), max_tokens=3)]),
)
_requests = st.builds(
    GenerateRequest,
    request_id=st.text(max_size=3),
    client=st.text(max_size=3),
    prompt_token_ids=st.lists(st.integers(0, 2), max_size=3).map(tuple),
    sampling=_sampling,
)


@given(_requests, _requests, st.integers(), st.integers())
def test_digests_are_of_what_is_computed(
    one: GenerateRequest, other: GenerateRequest, seed: int, stream: int
) -> None:
    again = msgspec.structs.replace(
        one,
        request_id="x",
        client="y",
        sampling=msgspec.structs.replace(one.sampling, seed=seed & (2**62)),
    )
    assert digest(Generate(1, one)) == digest(Generate(stream, again))
    same = (one.prompt_token_ids, one.sampling) == (other.prompt_token_ids, other.sampling)
    assert (digest(Generate(1, one)) == digest(Generate(1, other))) == same
    assert digest(CheckGrammar(1, "a", "c")) != digest(CheckGrammar(1, "b", "c"))

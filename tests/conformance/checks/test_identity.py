"""Test ids and creation times; times are compared with the server's clock, even if that is wrong."""

from __future__ import annotations

import json
from email.utils import formatdate

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline_conformance.checks.identity import distinct_ids, made_now
from plumbline_conformance.transcript.exchange import Exchange, Transcript

TIMES = st.integers(10**9, 4 * 10**9)
LAW = made_now("created")


def answer(created: object, *, clock: int | None = None, name: str = "a") -> Exchange:
    content = json.dumps({"id": name, "created": created}).encode()
    headers = [] if clock is None else [("Date", formatdate(clock, usegmt=True))]
    found = Exchange(method="POST", url="http://x", request_headers={}, request_body=b"{}", status=200)
    found.headers.extend(headers)
    found.frames.append((0.0, content))
    return found


@settings(deadline=None, database=None)
@given(TIMES, st.integers(-(10**7), 10**7))
def test_a_time_is_compared_with_the_clock_of_its_server(clock: int, away: int) -> None:
    accused = list(LAW(answer(clock + away, clock=clock)))

    assert bool(accused) == (abs(away) > 3600)


@settings(deadline=None, database=None)
@given(TIMES)
def test_without_a_clock_seconds_are_believed_and_nothing_else(made: int) -> None:
    assert list(LAW(answer(made))) == list(LAW(answer(made + 0.5))) == []
    assert len(list(LAW(answer(made * 1000)))) == len(list(LAW(answer(0)))) == 1


@pytest.mark.parametrize("clock", ["", "yesterday", "Sun, 99 Nov 2026 12:03:35 GMT"])
def test_a_date_that_is_none_is_no_clock(clock: str) -> None:
    found = answer(10**9)
    found.headers.append(("date", clock))

    assert list(LAW(found)) == []


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=5))
def test_as_many_ids_are_accused_as_were_there_before(names: list[str]) -> None:
    exchanges = [
        msgspec.structs.replace(answer(1, name=name), name=f"request/{number}")
        for number, name in enumerate(names, 1)
    ]
    seen = Transcript(scenario="x", exchanges=exchanges)

    assert len(list(distinct_ids(seen))) == len(names) - len(set(names))

"""Test that timing checks fail only for buffered streams."""

from __future__ import annotations

import pytest
from example_servers.good_server import transcripts
from mutants.mutations import changed

from plumbline_conformance.checks.http.timing import incremental
from plumbline_conformance.transcript.exchange import Exchange

EVENT = b'data: {"choices": []}\n\n'


def stream(*frames: tuple[float, int]) -> Exchange:
    """Return a stream with reads at these times and this many events each."""
    exchange = transcripts()["chat/stream-long"].exchanges[0]
    return changed(exchange, frames=[(at, EVENT * count) for at, count in frames])


@pytest.mark.parametrize(
    ("why", "frames", "accused"),
    [
        ("a prompt of an hour, and an answer after it", [(3600.0, 1), (3640.0, 80)], False),
        ("a cold start", [(60.0 + 0.005 * place, 1) for place in range(100)], False),
        ("a short stream that comes at once", [(30.0, 10)], False),
        ("a quick server", [(0.02, 100)], False),
        ("a steady one", [(0.1 * place, 1) for place in range(100)], False),
        ("two halves", [(1.0, 50), (2.0, 50)], False),
        ("a buffer", [(2.0, 100)], True),
        ("a buffer that is read in pieces", [(2.0, 60), (2.001, 40)], True),
    ],
)
def test_only_a_buffer_is_accused(why: str, frames: list[tuple[float, int]], accused: bool) -> None:
    assert bool(list(incremental(stream(*frames)))) == accused, why


def test_an_event_that_is_cut_into_reads_begins_when_it_is_whole() -> None:
    exchange = changed(stream((0.0, 1)), frames=[(0.1, EVENT[:4]), (2.0, EVENT[4:] + EVENT * 80)])

    assert list(incremental(exchange))

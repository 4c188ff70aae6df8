"""Test that timing checks fail only for buffered streams."""

from __future__ import annotations

import pytest
from example_servers.good_server import transcripts
from mutants.mutations import changed

from plumbline_conformance.checks.http.timing import incremental
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.transcript.exchange import Exchange, Transcript

EVENT = b'data: {"choices": []}\n\n'


def stream(*frames: tuple[float, int]) -> Exchange:
    """Return a stream with reads at these times and this many events each."""
    exchange = transcripts()["chat/stream-long"].exchanges[0]
    return changed(exchange, frames=[(at, EVENT * count) for at, count in frames])


@pytest.mark.parametrize(
    ("why", "frames", "accused"),
    [
        ("a prompt of an hour, and an answer after it", [(3600.0 + 0.5 * n, 1) for n in range(81)], False),
        ("a prompt of an hour, and a buffer after its first event", [(3600.0, 1), (3640.0, 80)], True),
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


def evenly(begins: float, ends: float, early: int = 0) -> list[tuple[float, int]]:
    """Return 96 events over this time, some of them at once."""
    times = [begins + (ends - begins) * n / 95 for n in range(96)]
    return [(0.01 if n < early else at, 1) for n, at in enumerate(times)]


def seen(streams: list[list[tuple[float, int]]], shorts: list[float]) -> Transcript:
    """Return streams, of which each but the first follows a whole answer that took this many seconds."""
    exchanges = [stream(*streams[0])]
    for number, (frames, seconds) in enumerate(zip(streams[1:], shorts, strict=True), 2):
        exchanges += [
            changed(stream((seconds, 1)), name=f"short/{number}"),
            changed(stream(*frames), name=f"stream/{number}"),
        ]
    return Transcript(scenario="chat/stream-long", exchanges=exchanges)


@pytest.mark.parametrize(
    ("why", "streams", "shorts", "verdict"),
    [
        ("a steady one", [evenly(0.1, 5.0)], [], "pass"),
        ("a quick server", [evenly(0.8, 0.9)], [], "pass"),
        ("one wait in a queue", [evenly(8.0, 9.0), evenly(0.1, 1.1)], [0.1], "inconclusive"),
        ("a queue before each", [evenly(8.0, 9.0)] * 3, [8.0, 8.0], "inconclusive"),
        ("a prompt of a minute", [evenly(60.0, 62.0)] * 3, [60.0, 59.0], "inconclusive"),
        ("a recording without short answers", [evenly(8.0, 9.0)], [], "inconclusive"),
        ("a complete answer in pieces", [evenly(8.0, 9.0)] * 3, [0.2, 0.3], "warn"),
        ("a role at once, and then a complete answer", [evenly(8.0, 9.0, early=2)] * 3, [0.2, 0.3], "warn"),
    ],
)
def test_only_a_complete_answer_is_late(
    why: str, streams: list[list[tuple[float, int]]], shorts: list[float], verdict: str
) -> None:
    found = {finding.check: finding.verdict for finding in judge(seen(streams, shorts))}

    assert found["chat/stream-long/first"] == verdict, why


def test_an_event_that_is_cut_into_reads_begins_when_it_is_whole() -> None:
    exchange = changed(stream((0.0, 1)), frames=[(0.1, EVENT[:4]), (2.0, EVENT[4:] + EVENT * 80)])

    assert list(incremental(exchange))

"""Name the exchanges of recordings that were made before requests had names.

The scenario runs once more over the recorded answers: its n-th request has the name of the n-th exchange. Nothing is
sent, and requests that depend on earlier answers come in the recorded order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from plumbline_conformance.suite.scenario import SCENARIOS, Target
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["name_exchanges"]


def name_exchanges(seen: Transcript, target: Target) -> None:
    """Set the names of exchanges without one, in each attempt of a transcript.

    A skipped transcript holds the exchanges of a probe, which no check judges.
    """
    if seen.skipped is not None or seen.scenario not in SCENARIOS:
        return
    for exchanges in (seen.exchanges, *seen.again):
        if not any(exchange.name for exchange in exchanges):
            for exchange, name in zip(exchanges, _names(seen.scenario, exchanges, target), strict=True):
                exchange.name = name


def _names(scenario: str, exchanges: Sequence[Exchange], target: Target) -> list[str]:
    """Return a name for each exchange.

    The scenario may end before the exchanges do. `chat/stream-clock`, which watches the clock, ended later in the
    run: its last group continues. Other requests were sent by an earlier version of the suite: they are `unknown/1` and
    so on, and no check looks at them.
    """
    names = [*islice(_of_requests(scenario, exchanges, target), len(exchanges))]
    group, found, number = names[-1].partition("/") if names else ("", "", "")
    begin = int(number) + 1 if found else 1
    further = range(begin, begin + len(exchanges) - len(names))
    return names + [f"{group if found else 'unknown'}/{number}" for number in further]


def _of_requests(scenario: str, exchanges: Sequence[Exchange], target: Target) -> Iterator[str]:
    steps = SCENARIOS[scenario].steps(target)
    # A scenario that cannot read a recorded answer could not read it in the run either.
    with suppress(StopIteration, LookupError, TypeError, AttributeError, ValueError):
        yield next(steps).name
        for exchange in exchanges:
            yield steps.send(exchange).name

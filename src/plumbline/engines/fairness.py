"""Share the slots of an engine evenly among clients.

A client may have all slots while no other client waits. When another client waits, the next slot goes to the client
with the fewest. Equal clients, and requests of one client, are served in the order of their arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from plumbline.engines.request import RequestState

__all__ = ["fairest", "surplus"]


def fairest(waiting: Sequence[RequestState], running: Sequence[RequestState]) -> int:
    """Return the index of the waiting request to run next.

    Args:
        waiting: at least one request, in order of (priority, arrival).
        running: the requests that have slots.

    Returns:
        Among the requests of the first priority, the first one of the client with the fewest running requests.
    """
    first = waiting[0].request
    counts = _counts(running)
    if not counts[first.client]:
        return 0
    best, fewest = 0, counts[first.client]
    for index, state in enumerate(waiting):
        if state.request.priority != first.priority:
            break
        if counts[state.request.client] < fewest:
            best, fewest = index, counts[state.request.client]
            if not fewest:
                break
    return best


def surplus(running: Sequence[RequestState], candidate: RequestState) -> RequestState | None:
    """Return the running request that should leave its slot to a waiting one, or None.

    It is the last request of the client with the most, if that client has at least two more than the waiting one's, so
    that the two are not preempted in turns. Requests of an earlier priority keep their slots.
    """
    counts = _counts(running)
    least = counts[candidate.request.client] + 2
    most = max(counts.values(), default=0)
    if most < least:
        return None
    return next(
        (
            state
            for state in reversed(running)
            if counts[state.request.client] == most and state.request.priority >= candidate.request.priority
        ),
        None,
    )


def _counts(running: Sequence[RequestState]) -> Counter[str]:
    return Counter(state.request.client for state in running)

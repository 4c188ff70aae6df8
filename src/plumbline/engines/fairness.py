"""Share the slots of an engine evenly among clients.

A client may have all slots while no other client waits. Then:

- The next free slot goes to the client with the fewest; of clients with equally many, to the one that has waited
  longest since it last had a slot. Requests of one client are served in the order of their arrival.
- If no slot becomes free, a client with two less than another gets one of the other's. A client without any gets the
  one that was held longest, after `QUANTUM` seconds. So of k clients at s slots none waits for more than k/s quanta.
- If memory is short, the last request of the client with the most leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from plumbline.engines.request import RequestState

__all__ = ["QUANTUM", "fairest", "last_of_most", "surplus"]

QUANTUM = 1.0
"""Seconds for which a request keeps its slot at least while clients without one wait. It also keeps the slot for as
long again as it took to its first token there: a long prompt would otherwise be computed again and again."""


def fairest(
    waiting: Sequence[RequestState], running: Sequence[RequestState], left: Mapping[str, float]
) -> int:
    """Return the index of the waiting request to run next.

    Args:
        waiting: at least one request, in order of (priority, arrival).
        running: the requests that have slots.
        left: when each client last gave up a slot.

    Returns:
        Among the requests of the first priority, the first one of the client with the fewest running requests.
    """
    counts = _counts(running)
    priority = waiting[0].request.priority
    seen: set[str] = set()
    best, least = 0, (len(running) + 1, 0.0)
    for index, state in enumerate(waiting):
        client = state.request.client
        if client in seen:
            continue
        if state.request.priority != priority:
            break
        seen.add(client)
        rank = counts[client], max(left.get(client, 0.0), state.created)
        if rank < least:
            best, least = index, rank
    return best


def surplus(running: Sequence[RequestState], candidate: RequestState, now: float) -> RequestState | None:
    """Return the running request that should leave its slot to a waiting one, or None.

    It is the last request of the client with the most, if that client has at least two more than the waiting one's, so
    that the two are not preempted in turns. Otherwise a client without a slot gets the one that was held longest, if
    that was long enough. Requests of an earlier priority keep their slots, so clients that have no others are left
    out: they would shield the rest.

    Args:
        running: the requests that have slots, in order of (priority, arrival).
        candidate: the waiting request.
        now: the time, by the clock of `RequestState.created`.
    """
    counts = _counts(running)
    own = counts[candidate.request.client]
    able = [state for state in running if state.request.priority >= candidate.request.priority]
    most = max((counts[state.request.client] for state in able), default=0)
    if most >= own + 2:
        return next(state for state in reversed(able) if counts[state.request.client] == most)
    if own:
        return None
    oldest = min(able, key=lambda state: state.began, default=None)
    return oldest if oldest is not None and _had_its_turn(oldest, now) else None


def last_of_most(running: Sequence[RequestState], start: int = 0) -> RequestState:
    """Return the request to preempt if memory is short: the last one of the client with the most.

    The first of several requests is never chosen, so that every workload ends.

    Args:
        running: the requests that have slots, in order of (priority, arrival).
        start: the first of them that may be chosen; there must be one. Only those of the last priority may be.
    """
    counts = _counts(running)
    able = [each for each in running[start:] if each.request.priority == running[-1].request.priority]
    most = max(counts[each.request.client] for each in able)
    return next(each for each in reversed(able) if counts[each.request.client] == most)


def _had_its_turn(state: RequestState, now: float) -> bool:
    return bool(state.drew) and now - max(state.began + QUANTUM, 2 * state.drew - state.began) >= 0


def _counts(running: Sequence[RequestState]) -> Counter[str]:
    return Counter(state.request.client for state in running)

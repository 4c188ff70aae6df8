"""Keep each request of a core in one of four queues: waiting, running, paused or held back."""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Callable, Sequence

from plumbline.engines.fairness import fairest, last_of_most, surplus
from plumbline.engines.request import RequestState

__all__ = ["RequestQueues"]

_MOST_REMEMBERED = 1024
"""Clients whose last place is remembered while they have no request."""


class RequestQueues:
    """The requests of a core. Waiting and running ones are in the order of (priority, arrival)."""

    def __init__(self) -> None:
        self.mark: Callable[[str, bool], None] = lambda request_id, works: None
        """Is called when a request begins to run, and when it stops."""
        self.waiting: list[RequestState] = []
        self.running: list[RequestState] = []
        self.paused: list[RequestState] = []
        """Requests whose readers do not keep up; they hold no memory of the model."""
        self.held_back: list[RequestState] = []
        """Requests that wait while another runs alone (`trials.py`); they hold no memory of the model either."""
        self._left: dict[str, float] = {}
        """When each client last gave up a place."""
        self.num_preemptions = 0
        self.prefix_queries = 0
        """Tokens of the prompts that were looked up in a prefix cache."""
        self.prefix_hits = 0
        """How many of these tokens it had."""

    @property
    def has_work(self) -> bool:
        """Whether a request runs or waits; paused requests do neither."""
        return bool(self.running or self.waiting or self.held_back)

    def add(self, state: RequestState) -> None:
        """Let a request wait, at the place of its priority and arrival."""
        insort(self.waiting, state, key=_key)

    def fairest(self, among: Sequence[RequestState] | None = None) -> RequestState:
        """Return the waiting request to run next, of all or of some in their order.

        One that was preempted without its next mask is late; it is the next only if all are.
        """
        among = self.waiting if among is None else among
        state = among[fairest(among, self.running, self._left)]
        if state.is_late and (ready := [each for each in among if not each.is_late]):
            return ready[fairest(ready, self.running, self._left)]
        return state

    def surplus(self, long: float = math.inf) -> RequestState | None:
        """Return the running request that should leave its place to the next waiting one; None if none should.

        Args:
            long: a prompt of more tokens waits for another such one that is being computed, and short prompts overtake
                it. If one of them was preempted for it, it would take its place again at once, and so on.
        """
        if not self.waiting or (state := self.fairest()).is_late:
            return None
        if _missing(state) > long and any(_missing(each) > long for each in self.running):
            return None
        return surplus(self.running, state, time.perf_counter())

    def last_of_most(self, start: int = 0) -> RequestState:
        """Return the running request that should leave its memory to those before it; see `fairness`.

        Args:
            start: the first of the running requests that may be chosen; there must be one.
        """
        return last_of_most(self.running, start)

    def start(self, state: RequestState, num_cached: int | None = None) -> None:
        """Move a waiting request to the running ones.

        Args:
            state: the request.
            num_cached: how many of its tokens a prefix cache has; None without a prefix cache.
        """
        self.mark(state.request.request_id, True)
        self.waiting.remove(state)
        insort(self.running, state, key=_key)
        state.began, state.drew = time.perf_counter(), 0.0
        if not state.queued_seconds:  # After a preemption it counts as computed for.
            state.queued_seconds = state.began - state.created
        if num_cached is None or state.started:
            return
        # After a preemption the request finds its own tokens, which does not count as a hit of its prompt.
        state.started = True
        state.num_cached_tokens = num_cached
        self.prefix_queries += state.num_tokens
        self.prefix_hits += num_cached

    def preempt(self, state: RequestState) -> None:
        """Let a running request wait again."""
        self.mark(state.request.request_id, False)
        self._take_out(state)
        self.add(state)
        self.num_preemptions += 1

    def pause(self, state: RequestState) -> bool:
        """Keep a request from running until `resume`; returns False if it is paused already."""
        if state in self.paused:
            return False
        self.mark(state.request.request_id, False)
        self._take_out(state)
        self.paused.append(state)
        return True

    def hold_back(self, state: RequestState) -> None:
        """Keep a waiting request from running until `admit`."""
        self.waiting.remove(state)
        insort(self.held_back, state, key=_key)

    def admit(self, state: RequestState) -> None:
        """Let a request that was held back wait again."""
        self.held_back.remove(state)
        self.add(state)

    def resume(self, state: RequestState) -> None:
        """Let a paused request wait again; others are left alone."""
        if state in self.paused:
            self.paused.remove(state)
            self.add(state)

    def remove(self, state: RequestState) -> None:
        """Forget a request, whichever queue it is in."""
        self.mark(state.request.request_id, False)
        self._take_out(state)

    def _take_out(self, state: RequestState) -> None:
        """Remove a request from the queue that has it, and remember who gave up a place."""
        if state in self.running:
            self.running.remove(state)
            self._left[state.request.client] = time.perf_counter()
            if len(self._left) > _MOST_REMEMBERED:
                present = {each.request.client for each in (*self.running, *self.waiting)}
                self._left = {client: left for client, left in self._left.items() if client in present}
            return
        for queue in (self.waiting, self.paused, self.held_back):
            if state in queue:
                queue.remove(state)
                return


def _missing(state: RequestState) -> int:
    return state.num_tokens - state.num_computed_tokens


def _key(state: RequestState) -> tuple[int, int]:
    return state.key

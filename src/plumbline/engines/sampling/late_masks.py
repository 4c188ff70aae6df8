"""Compute masks that may take long outside of steps, so that no request waits for the grammar of another one.

After each token of such a request its next mask is computed in a thread. Until it is known the request sits out:
cores leave it out of their steps. Clients take turns at the threads, by the time that they have used; a client has
one thread at most. A token advances a grammar within a step, so after a long one all such requests sit out for three
times as long as the others have waited for it: they keep three quarters of the engine, however many grammars are slow.
The threads are not cancelled, because native code cannot be; what an answer may take in all is
bounded (`constraints/lark.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable

from plumbline.engines.request import LateMask, RequestState

__all__ = ["LateMasks"]

_log = logging.getLogger("plumbline.engines")

_THREADS = 2
_NICENESS = 10
"""The threads stand back for steps, where the system has a priority for each thread."""
_REST = 3.0
_MOST_REMEMBERED = 256
"""Clients whose used time is kept."""


class LateMasks:
    """The masks that steps do not wait for. The engine thread asks for them; threads start when first needed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[tuple[RequestState, LateMask]]] = {}
        self._inside: set[str] = set()
        """Clients whose mask is being computed."""
        self._used: dict[str, float] = {}
        self._num_threads = 0
        self._rests_until = 0.0
        """When the next mask may be known, by the monotonic clock."""

    def rest(self, seconds: float) -> None:
        """Leave the next steps to others, who have waited these seconds for a token of a slow grammar."""
        with self._changed:
            self._rests_until = max(self._rests_until, time.monotonic()) + _REST * seconds

    def follow(self, state: RequestState) -> None:
        """Begin to compute the next mask of a request that has taken its tokens of a step, if it may take long."""
        state.late_mask = None
        if state.matcher is None or state.finish_reason is not None or not state.matcher.may_be_slow:
            return
        mask = state.late_mask = LateMask()
        with self._changed:
            self._waiting.setdefault(state.request.client, deque()).append((state, mask))
            if self._num_threads < min(_THREADS, len(self._waiting)):
                self._num_threads += 1
                threading.Thread(target=self._work, name="plumbline-late-masks", daemon=True).start()
            self._changed.notify_all()

    def wait(self, states: Iterable[RequestState], seconds: float = 0.02) -> None:
        """Wait until the mask of one of these requests is known; returns at once if none of them is late.

        For steps with nothing else to compute. They are short, so that new requests and aborts are seen.
        """
        masks = [state.late_mask for state in states if state.is_late and state.late_mask is not None]
        if masks:
            with self._changed:
                self._changed.wait_for(lambda: any(mask.is_known for mask in masks), seconds)

    def _work(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            thread = threading.get_native_id()
            # Where the server itself was started with more, as by `nice -n 19`, 10 would put it before the steps.
            os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next() is not None)
                client = self._next()
                assert client is not None
                state, mask = self._waiting[client].popleft()
                if not self._waiting[client]:
                    del self._waiting[client]
                self._inside.add(client)
            began = time.thread_time()
            _compute(state)
            used = time.thread_time() - began
            with self._changed:
                while (left := self._rests_until - time.monotonic()) > 0:
                    self._changed.wait(left)
                self._inside.discard(client)
                self._count(client, used)
                mask.is_known = True
                self._changed.notify_all()

    def _next(self) -> str | None:
        """Return the client whose turn it is; None if no mask may be computed now."""
        ready = [client for client in self._waiting if client not in self._inside]
        return min(ready, key=lambda client: self._used.get(client, 0.0), default=None)

    def _count(self, client: str, seconds: float) -> None:
        if len(self._used) >= _MOST_REMEMBERED and client not in self._used:
            self._used.clear()
        self._used[client] = self._used.get(client, 0.0) + seconds


def _compute(state: RequestState) -> None:
    if state.finish_reason is not None or state.matcher is None:  # It has been aborted meanwhile.
        return
    try:
        state.matcher.prepare()
    except Exception:  # The step finds the same.
        _log.exception("a mask could not be computed")

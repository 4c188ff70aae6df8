"""Find the request that makes steps fail, so that the others of its batch keep their answers.

A step that raises names no request. Its requests wait again and then run one at a time, each until it has drawn a
token. A request that fails alone ends with an error. Those that pass are held back until the last one has been tried,
and then run together again. Their answers stay the same, because a preemption does not change output.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumbline.engines.request import RequestState
from plumbline.engines.threaded.request_queues import RequestQueues

__all__ = ["Trials"]


class Trials:
    """The requests of a failed step that have not run alone yet.

    Args:
        queues: the requests of the core.
    """

    def __init__(self, queues: RequestQueues) -> None:
        self._queues = queues
        self._suspects: list[RequestState] = []
        self._alone: RequestState | None = None
        self._tokens_before = 0

    def begin(self, suspects: Sequence[RequestState]) -> None:
        """Try these requests one at a time; all of them wait."""
        self._alone = None
        self._suspects = [*self._suspects, *suspects]

    def before_step(self) -> None:
        """Let only the next suspect run."""
        if self._alone is None:
            self._alone = self._next()
            if self._alone is None:
                self._admit_all()
                return
            self._tokens_before = self._alone.num_output_tokens
        for state in [*self._queues.waiting]:
            if state is not self._alone:
                self._queues.hold_back(state)

    def after_step(self) -> RequestState | None:
        """Return the suspect that has passed and must leave its place for the next one, if it still runs."""
        state = self._alone
        if state is None:
            return None
        runs = state in self._queues.running
        if (runs or state in self._queues.waiting) and state.num_output_tokens == self._tokens_before:
            return None
        self._alone = None
        if not self._pending:
            self._admit_all()
            return None
        return state if runs else None

    def _admit_all(self) -> None:
        for state in [*self._queues.held_back]:
            self._queues.admit(state)

    def _next(self) -> RequestState | None:
        """Return the next suspect that can run, moved to the waiting requests."""
        while self._suspects:
            state = self._suspects.pop(0)
            if state in self._queues.held_back:
                self._queues.admit(state)
            if state in self._queues.waiting:
                return state
        return None

    @property
    def _pending(self) -> bool:
        return any(
            state in self._queues.held_back or state in self._queues.waiting for state in self._suspects
        )

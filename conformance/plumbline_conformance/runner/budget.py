"""Bound the tokens and seconds of a run. A scenario that does not fit is reported as skipped.

Before a request is sent, its worst case is reserved: all tokens that it allows for each choice, and its own length. The
usage of the answer replaces the worst case.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from plumbline_conformance.suite.scenario import Request, Scenario, Target
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["Budget", "BudgetTracker", "OverBudget", "cost_of", "spent_on"]

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_GENERATES = ("/chat/completions", "/completions", "/responses", "/responses/compact", "/messages")
_UNLIMITED = 256
"""Tokens assumed for a request without a limit; the suite sends few of them."""
_BYTES_PER_TOKEN = 3
"""Of the text of a request; a low estimate: most tokenizers put more into a token."""


class OverBudget(Exception):  # noqa: N818 - it is a reason, not an error
    """The budget does not allow the next request or scenario."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a run; None means unlimited."""

    tokens: int | None = None
    """Tokens of the whole run."""
    tokens_each: int | None = None
    """Tokens of one scenario."""
    seconds: float | None = None
    """Seconds after which no scenario starts, requests in flight end, and no busy server is waited for."""

    def after(self, tokens: int) -> Budget:
        """Return the rest of the budget after these tokens."""
        left = None if self.tokens is None else max(0, self.tokens - tokens)
        return msgspec.structs.replace(self, tokens=left)


def cost_of(request: Request) -> int:
    """Return the most tokens that a request can cost."""
    if not request.path.startswith(_GENERATES) or request.method not in ("POST", "WEBSOCKET"):
        return 0
    if request.content is not None:
        return len(request.content) // _BYTES_PER_TOKEN
    bodies = request.json if isinstance(request.json, list) else [request.json]
    return sum(_cost(body) for body in bodies if isinstance(body, dict))


def _cost(body: dict[str, Any]) -> int:
    limits = [body[name] for name in _LIMITS if isinstance(body.get(name), int)]
    # A limit that every server refuses, such as -1, costs nothing. If a request has two limits, servers use either one.
    limit = max((value for value in limits if 0 < value <= 100_000), default=0 if limits else _UNLIMITED)
    number = body.get("n")
    count = number if isinstance(number, int) and 1 <= number <= 128 else 1
    prompts = body["prompt"] if isinstance(body.get("prompt"), list) else []
    several = len(prompts) if prompts and not isinstance(prompts[0], int) else 1
    return limit * count * several + len(str(body)) // _BYTES_PER_TOKEN


def spent_on(exchange: Exchange, worst: int) -> int:
    """Return the tokens in the usage of an answer; the worst case if it was accepted and has no usage."""
    if exchange.status >= 400 or (exchange.status == 0 and not exchange.frames):
        return 0
    values = [exchange.json, *exchange.chunks] if b"total_tokens" in exchange.body else []
    totals = [total for value in values if (total := _total(value)) is not None]
    return max(totals, default=worst)


def _total(value: Any) -> int | None:
    if not isinstance(value, dict):
        return None
    response = value.get("response")
    usage = value.get("usage") or (response.get("usage") if isinstance(response, dict) else None)
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) and total >= 0 else None


class BudgetTracker:
    """Track the rest of a budget while scenarios run concurrently.

    Args:
        budget: the limits.
        clock: returns seconds from any origin.
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._began = clock()
        self._spent = 0
        self._reserved = 0

    @property
    def spent(self) -> int:
        """Return the tokens spent so far."""
        return self._spent

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the time is over; infinity without a limit."""
        return (
            math.inf if self._budget.seconds is None else self._began + self._budget.seconds - self._clock()
        )

    @property
    def timeout(self) -> float | None:
        """Return the seconds that a conversation may take; None without a limit."""
        return None if self._budget.seconds is None else max(0.0, self.seconds_left)

    @property
    def time_is_over(self) -> str:
        """Return the reason why a scenario is skipped after the last second."""
        return f"budget: the {self._budget.seconds:g} seconds are over"

    def open(self, wanted: Scenario, target: Target) -> None:
        """Check that a scenario may start.

        Raises:
            OverBudget: its requests may cost more than is left, or the time is over.
        """
        if self.seconds_left <= 0:
            raise OverBudget(self.time_is_over)
        if self._budget.tokens is None and self._budget.tokens_each is None:
            return
        least = _foreseen(wanted, target)
        self._allow(least, 0)

    def reserve(self, request: Request, spent_here: int) -> int:
        """Reserve the worst case of a request, and return it for `settle`.

        Args:
            request: the next request.
            spent_here: tokens that its scenario has cost so far.

        Raises:
            OverBudget: it may cost more than is left.
        """
        worst = cost_of(request)
        self._allow(worst, spent_here)
        self._reserved += worst
        return worst

    def settle(self, exchange: Exchange, worst: int) -> int:
        """Replace a reservation by the tokens of the answer, and return them."""
        self._reserved -= worst
        spent = spent_on(exchange, worst)
        self._spent += spent
        return spent

    def _allow(self, worst: int, spent_here: int) -> None:
        each, total = self._budget.tokens_each, self._budget.tokens
        if each is not None and spent_here + worst > each:
            raise OverBudget(
                f"budget: the scenario may cost {spent_here + worst} tokens, and {each} are allowed for each"
            )
        left = None if total is None else total - self._spent - self._reserved
        if left is not None and worst > left:
            raise OverBudget(f"budget: it may cost {worst} tokens, and {max(left, 0)} of {total} are left")


def _foreseen(wanted: Scenario, target: Target) -> int:
    """Return the worst case of the requests that a scenario sends without any answer."""
    steps = wanted.steps(target)
    total = 0
    try:
        request = next(steps)
        while True:
            total += cost_of(request)
            silence = Exchange(method=request.method, url="", request_headers={}, request_body=b"")
            request = steps.send(silence)
    except StopIteration:
        return total

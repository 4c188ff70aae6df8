"""What a run may cost: tokens and seconds. What does not fit is not sent, and is said.

A request is taken at its worst before it is sent: all the tokens that it allows for each of its choices, and its own
length. When the answer has come, what its usage says is counted instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from plumbline_conformance.suite.model import Request, Scenario, Target
from plumbline_conformance.transcript.model import Exchange

__all__ = ["Budget", "BudgetTracker", "OverBudget", "cost_of", "spent_on"]

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_GENERATES = ("/chat/completions", "/completions", "/responses", "/responses/compact")
_UNLIMITED = 256
"""What a request without a limit is taken for; the suite sends few of them."""
_BYTES_PER_TOKEN = 3
"""Of the text of a request: tokenizers of today get more into one."""


class OverBudget(Exception):  # noqa: N818 - it is a reason, not an error
    """The budget does not allow what comes next."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds; None is no bound."""

    tokens: int | None = None
    """Of the whole run."""
    tokens_each: int | None = None
    """Of one scenario."""
    seconds: float | None = None
    """After which no scenario is begun, and no busy server is waited for."""

    def after(self, tokens: int) -> Budget:
        """What is left of it after so many tokens."""
        left = None if self.tokens is None else max(0, self.tokens - tokens)
        return msgspec.structs.replace(self, tokens=left)


def cost_of(request: Request) -> int:
    """The most tokens that a request can cost."""
    if not request.path.startswith(_GENERATES) or request.method not in ("POST", "WEBSOCKET"):
        return 0
    if request.content is not None:
        return len(request.content) // _BYTES_PER_TOKEN
    bodies = request.json if isinstance(request.json, list) else [request.json]
    return sum(_cost(body) for body in bodies if isinstance(body, dict))


def _cost(body: dict[str, Any]) -> int:
    limits = [body[name] for name in _LIMITS if isinstance(body.get(name), int)]
    # A limit or a count that no server accepts costs nothing but its refusal; of two, servers keep either.
    limit = max((value for value in limits if 0 < value <= 100_000), default=0 if limits else _UNLIMITED)
    number = body.get("n")
    count = number if isinstance(number, int) and 1 <= number <= 128 else 1
    prompts = body["prompt"] if isinstance(body.get("prompt"), list) else []
    several = len(prompts) if prompts and not isinstance(prompts[0], int) else 1
    return limit * count * several + len(str(body)) // _BYTES_PER_TOKEN


def spent_on(exchange: Exchange, worst: int) -> int:
    """The tokens that an answer says it cost; the worst, where it was accepted and says nothing."""
    if exchange.status >= 400 or (exchange.status == 0 and not exchange.frames):
        return 0
    held = [exchange.json, *exchange.chunks] if b"total_tokens" in exchange.body else []
    totals = [total for value in held if (total := _total(value)) is not None]
    return max(totals, default=worst)


def _total(value: Any) -> int | None:
    if not isinstance(value, dict):
        return None
    held = value.get("response")
    usage = value.get("usage") or (held.get("usage") if isinstance(held, dict) else None)
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) and total >= 0 else None


class BudgetTracker:
    """What is left of a budget while scenarios run side by side.

    Args:
        budget: the bounds.
        clock: seconds, from anywhere.
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._began = clock()
        self._spent = 0
        self._reserved = 0

    @property
    def spent(self) -> int:
        """Tokens so far."""
        return self._spent

    @property
    def seconds_left(self) -> float:
        """Seconds until the time is over; without a bound there is no end to them."""
        return (
            math.inf if self._budget.seconds is None else self._began + self._budget.seconds - self._clock()
        )

    def open(self, wanted: Scenario, target: Target) -> None:
        """Ask whether a scenario may begin.

        Raises:
            TooDear: its requests may cost more than is left, or the time is over.
        """
        if self.seconds_left <= 0:
            raise OverBudget(f"budget: {self._budget.seconds:g} seconds are over")
        if self._budget.tokens is None and self._budget.tokens_each is None:
            return
        least = _foreseen(wanted, target)
        self._allow(least, 0)

    def reserve(self, request: Request, spent_here: int) -> int:
        """Set the worst of a request aside; gives it back to be handed to `settle`.

        Args:
            request: what is sent next.
            spent_here: tokens that its scenario has cost so far.

        Raises:
            TooDear: it may cost more than is left.
        """
        worst = cost_of(request)
        self._allow(worst, spent_here)
        self._reserved += worst
        return worst

    def settle(self, exchange: Exchange, worst: int) -> int:
        """Count what an answer did cost; gives it."""
        self._reserved -= worst
        spent = spent_on(exchange, worst)
        self._spent += spent
        return spent

    def _allow(self, worst: int, spent_here: int) -> None:
        each, total = self._budget.tokens_each, self._budget.tokens
        if each is not None and spent_here + worst > each:
            raise OverBudget(
                f"budget: it may cost {spent_here + worst} tokens, and a scenario may cost {each}"
            )
        left = None if total is None else total - self._spent - self._reserved
        if left is not None and worst > left:
            raise OverBudget(f"budget: it may cost {worst} tokens, and {max(left, 0)} of {total} are left")


def _foreseen(wanted: Scenario, target: Target) -> int:
    """The worst of the requests that a scenario sends whatever is answered: it is run against silence."""
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

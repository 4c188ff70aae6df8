"""Hold the keys to their requests and tokens a minute, and to the requests that they may have at the same time.

Budgets refill all the time, so a minute has no beginning at which everybody comes. A request is admitted while the
budget of tokens is not used up; what it uses is taken when it is known. So one request may overdraw it, and the next
ones wait for that: nobody has to guess how long an answer becomes.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Protocol

from plumbline.answer.events import ChoiceEvent, Finish, ReasoningDelta, TextDelta, ToolCallDelta
from plumbline.contract.wire.errors import ApiError, rate_limited
from plumbline.server.limits.claims.hub_messages import LimitVerdict
from plumbline.server.settings.keys import Key, digest_of

__all__ = ["RATES", "Accounts", "Rates", "RequestShare", "SharedAccounts"]

RATES = "rates"
"""Key of the application's state."""
_MINUTE = 60.0
_LEAST = 1e-6
"""Of a request or a token: less than rounding makes of a level."""


class _Budget:
    """An amount a minute."""

    def __init__(self, amount: int, clock: Callable[[], float]) -> None:
        self.amount = amount
        self._clock = clock
        self._level = float(amount)
        self._at = clock()

    @property
    def level(self) -> float:
        """What is left; less than nothing if it is overdrawn."""
        now = self._clock()
        # A clock that is set back gives nothing and takes nothing.
        self._level = min(self.amount, self._level + max(0.0, now - self._at) * self.amount / _MINUTE)
        self._at = now
        return self._level

    def take(self, amount: int) -> None:
        """Use some of it."""
        self._level = self.level - amount

    def wait(self, amount: float) -> float:
        """Return the seconds until this much is there."""
        missing = amount - self.level
        return missing * _MINUTE / self.amount if missing > _LEAST else 0.0


class _Account:
    """What a key has used."""

    def __init__(self, key: Key, clock: Callable[[], float]) -> None:
        self.key = key
        self.requests = _Budget(key.requests, clock) if key.requests else None
        self.tokens = _Budget(key.tokens, clock) if key.tokens else None
        self.running = 0

    def follow(self, old: _Account) -> None:
        """Go on where the account of the same key was with other limits."""
        self.running = old.running
        if old.key.requests == self.key.requests:
            self.requests = old.requests
        if old.key.tokens == self.key.tokens:
            self.tokens = old.tokens


class Accounts:
    """The accounts of all keys that have limits, by the digests of the keys."""

    def __init__(self, keys: tuple[Key, ...], clock: Callable[[], float] = time.monotonic) -> None:
        """Open the accounts.

        Args:
            keys: all keys.
            clock: seconds that never go back.
        """
        self._clock = clock
        self._accounts: dict[bytes, _Account] = {}
        self.use(keys)

    def use(self, keys: tuple[Key, ...]) -> None:
        """Take other keys; those that stay keep what runs, and the budgets whose amounts stay."""
        before = self._accounts
        self._accounts = {}
        for key in keys:
            if key.is_limited:
                account = _Account(key, self._clock)
                if (old := before.get(key.digest)) is not None:
                    account.follow(old)
                self._accounts[key.digest] = account

    def admit(self, key: bytes) -> LimitVerdict:
        """Admit a request, which ends with `end`, or refuse it."""
        account = self._accounts.get(key)
        if account is None:
            return LimitVerdict()
        limits = account.key
        if limits.streams and account.running >= limits.streams:
            message = (
                f"This key may have {limits.streams} requests at the same time; it has {account.running}."
            )
            return LimitVerdict(message, 1, self._headers(account))
        budgets = (("requests", account.requests), ("tokens", account.tokens))
        waits = [(budget.wait(1), name, budget.amount) for name, budget in budgets if budget is not None]
        if waits and max(waits)[0] > 0:  # The longest one, or the next try would be refused for the other.
            return LimitVerdict(*_too_many(*max(waits)), self._headers(account))
        if account.requests is not None:
            account.requests.take(1)
        account.running += 1
        return LimitVerdict(headers=self._headers(account))

    def end(self, key: bytes) -> None:
        """End a request that was admitted."""
        account = self._accounts.get(key)
        if account is not None and account.running:  # The account may be newer than the request.
            account.running -= 1

    def take(self, key: bytes, amount: int) -> None:
        """Take tokens from the budget of a key."""
        account = self._accounts.get(key)
        if account is not None and account.tokens is not None:
            account.tokens.take(amount)

    def headers(self, key: bytes) -> dict[str, str]:
        """Return the headers that official clients read, as OpenAI's service sends them."""
        account = self._accounts.get(key)
        return {} if account is None else self._headers(account)

    def _headers(self, account: _Account) -> dict[str, str]:
        found = {}
        for name, budget in (("requests", account.requests), ("tokens", account.tokens)):
            if budget is not None:
                found[f"x-ratelimit-limit-{name}"] = str(budget.amount)
                found[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(budget.level)))
                found[f"x-ratelimit-reset-{name}"] = _duration(budget.wait(budget.amount))
        return found


class SharedAccounts(Protocol):
    """Accounts that another process keeps for all API servers."""

    async def admit(self, key: bytes) -> LimitVerdict:
        """See `Accounts.admit`."""
        ...

    def end(self, key: bytes) -> None:
        """See `Accounts.end`."""
        ...

    def take(self, key: bytes, amount: int) -> None:
        """See `Accounts.take`."""
        ...


class Rates:
    """Hold requests to the limits of their keys.

    Args:
        keys: all keys.
        shared: the accounts of all API servers of the engine; None if this is the only one.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        keys: tuple[Key, ...],
        shared: SharedAccounts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.accounts = Accounts(keys, clock)
        self._shared = shared
        self._headers: dict[bytes, dict[str, str]] = {}
        """Of keys with limits, as of their last request; only with shared accounts."""
        self.use(keys)

    def use(self, keys: tuple[Key, ...]) -> None:
        """Take other keys; see `Accounts.use`."""
        self.accounts.use(keys)
        self._limited = {key.digest for key in keys if key.is_limited}

    def _digest(self, api_key: str | None) -> bytes | None:
        """Return the digest of a key that has limits."""
        digest = digest_of(api_key) if api_key and self._limited else None
        return digest if digest in self._limited else None

    async def enter(self, api_key: str | None) -> ApiError | None:
        """Admit a request, which ends with `leave`, or return its 429."""
        digest = self._digest(api_key)
        if digest is None:
            return None
        if self._shared is None:
            verdict = self.accounts.admit(digest)
        else:
            verdict = await self._shared.admit(digest)
            self._headers[digest] = verdict.headers
        return rate_limited(verdict.refusal, verdict.retry_after) if verdict.refusal else None

    @asynccontextmanager
    async def admitted(self, api_key: str | None) -> AsyncIterator[None]:
        """Answer a request in this block.

        Raises:
            ApiError: the 429 of a key that has used its share.
        """
        error = await self.enter(api_key)
        if error is not None:
            raise error
        try:
            yield
        finally:
            self.leave(api_key)

    def leave(self, api_key: str | None) -> None:
        """End a request that was admitted."""
        if (digest := self._digest(api_key)) is not None:
            (self._shared or self.accounts).end(digest)

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Return the headers that official clients read, as OpenAI's service sends them."""
        digest = self._digest(api_key)
        if digest is None:
            return {}
        return self.accounts.headers(digest) if self._shared is None else self._headers.get(digest, {})

    def counted(
        self, api_key: str | None, events: AsyncGenerator[ChoiceEvent, None], prompt_tokens: int
    ) -> AsyncGenerator[ChoiceEvent, None]:
        """Take the tokens of an answer from the budget of its key, when they are known.

        Args:
            api_key: the key of the request.
            events: the answer.
            prompt_tokens: what its prompt has.
        """
        digest = self._digest(api_key)
        if digest is None:
            return events
        return _counted(partial((self._shared or self.accounts).take, digest), events, prompt_tokens)


class RequestShare:
    """What an admitted request has of the limits of its key.

    Args:
        rates: admitted it.
        api_key: its key.
    """

    def __init__(self, rates: Rates, api_key: str | None) -> None:
        self._leave: Callable[[], None] | None = partial(rates.leave, api_key)

    def keep(self) -> Callable[[], None]:
        """See `plumbline.contract.wire.call.KeyShare.keep`."""
        leave, self._leave = self._leave, None
        assert leave is not None
        return leave

    def end(self) -> None:
        """End the request, unless its work goes on and has kept the share."""
        if self._leave is not None:
            self._leave()


async def _counted(
    take: Callable[[int], None], events: AsyncGenerator[ChoiceEvent, None], prompt: int
) -> AsyncGenerator[ChoiceEvent, None]:
    unfinished: dict[int, int] = {}  # The deltas of choices without an end.
    try:
        async with aclosing(events):
            async for index, event in events:
                if isinstance(event, Finish):
                    unfinished.pop(index, None)
                    take(event.usage.completion_tokens)
                    if index == 0:  # All choices share the prompt.
                        take(event.usage.prompt_tokens)
                        prompt = 0
                    elif event.usage.repair_prompt_tokens:
                        take(event.usage.repair_prompt_tokens)
                elif isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta):
                    unfinished[index] = unfinished.get(index, 0) + 1
                yield index, event
    except (GeneratorExit, asyncio.CancelledError):
        # A client that leaves before the end would have tokens for nothing; a delta has one at least.
        take(prompt + sum(unfinished.values()))
        raise


def _too_many(wait: float, what: str, limit: int) -> tuple[str, int]:
    """Return the message of a budget that is used up, and the seconds until another try."""
    message = f"Rate limit reached: this key may use {limit} {what} a minute. Please try again in {_duration(wait)}."
    return message, math.ceil(wait)


def _duration(seconds: float) -> str:
    """Return a duration as OpenAI's headers have it, such as `6m0s`, `1.5s` or `20ms`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 10) / 10, 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"

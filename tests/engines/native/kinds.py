"""Kinds of requests: everything that lets a draw depend on the tokens before it, for laws of the engine."""

from __future__ import annotations

import threading
import time
from copy import copy
from typing import Any

from engines.conftest import VOCAB, VOCABULARY, Driver, matcher
from hypothesis import strategies as st

from plumbline.engines.constraints.bans import BanMatcher, TokenTexts
from plumbline.engines.constraints.grammar import GrammarError, Matcher
from plumbline.engines.constraints.thinking_budget import ThinkingBudgetMatcher
from plumbline.port.engine import Dry, SamplerChain, SamplingParams, ThinkingBudget

__all__ = ["KINDS", "Moody", "add", "prompts"]

parts = st.lists(st.integers(2, 6), min_size=1, max_size=6)
prompts = st.builds(lambda part, times, tail: part * times + tail, parts, st.integers(1, 9), parts)
"""Prompts that repeat themselves."""


class Moody:
    """A matcher that forbids a token after each one, and fails after some: the next step of a wrong guess, mostly."""

    def __init__(self) -> None:
        self.taken: list[int] = [0]
        self.is_done = self.may_be_slow = False

    def prepare(self) -> None:
        pass

    def mask_into(self, row: Any) -> None:
        if sum(self.taken[-3:]) % 61 == 0 and len(self.taken) > 4:
            raise GrammarError("Too complex.")
        row.fill(-1 ^ 1 << (self.taken[-1] + 1) % 31)

    def accept(self, token_id: int) -> bool:
        self.taken.append(token_id)
        return sum(self.taken[-3:]) % 67 != 0

    def rollback(self, num_tokens: int) -> None:
        del self.taken[-num_tokens:]

    def copy(self) -> Moody:
        found = copy(self)
        found.taken = self.taken.copy()
        return found


class Slow:
    """A matcher whose masks must be known before a step needs them, some of them after some milliseconds."""

    def __init__(self, inner: Matcher) -> None:
        self.inner = inner
        self.num_taken = 0
        self.is_known = True
        self.lock = threading.Lock()

    @property
    def may_be_slow(self) -> bool:
        return self.num_taken % 4 in (0, 3)

    def prepare(self) -> None:
        assert self.lock.acquire(blocking=False), "two threads use a matcher"
        time.sleep(0.003 * (self.num_taken % 3))
        self.is_known = True
        self.lock.release()

    def mask_into(self, row: Any) -> None:
        assert not self.lock.locked(), "two threads use a matcher"
        assert self.is_known or not self.may_be_slow, "a step waits for a mask that may take long"
        self.inner.mask_into(row)

    def accept(self, token_id: int) -> bool:
        assert not self.lock.locked(), "two threads use a matcher"
        self.num_taken += 1
        self.is_known = False
        return self.inner.accept(token_id)

    def rollback(self, num_tokens: int) -> None:
        self.num_taken -= num_tokens
        self.inner.rollback(num_tokens)

    def copy(self) -> Slow:
        found = Slow(self.inner.copy())
        found.num_taken, found.is_known = self.num_taken, self.is_known
        return found

    @property
    def is_done(self) -> bool:
        return self.inner.is_done


GRAMMARS = {
    "regex": "start: /[a-f]{2,40}/",
    "choice": 'start: "yes, of course" | "yes, perhaps not" | "never"',
    "schema": 'start: %json {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "ready": '
    '{"type": "boolean"}, "sizes": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3}}, '
    '"required": ["name", "ready", "sizes"], "additionalProperties": false}',
    "calls": "start: /[a-d ]{0,9}/ call{1,4}\n"
    'call: "<call>{\\"size\\":" /[0-9]{1,3}/ ",\\"tags\\":[" /[a-d]{2}/ "]}</call>"',
}
BUDGET = ThinkingBudget(max_tokens=5, begin=((9,),), end=(7, 8, 11), inside=True, after=((10,),))
LONG_BUDGET = ThinkingBudget(max_tokens=30, end=(7, 8, 11), inside=True)
BANS: dict[str, Any] = {
    "bad_words": ((6, 7), (12,), (6, 8, 6), (7, 6, 6), (8, 7, 8)),
    "banned_strings": ("ab", "bcd", "#$"),
}
PENALTIES = {"frequency_penalty": 0.02, "presence_penalty": 0.05, "repetition_penalty": 1.05}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "few": {"allowed_token_ids": frozenset({1, 7})},
    "two": {"allowed_token_ids": frozenset({8, 9})},
    "bias": {"logit_bias": {5: 3.0, 6: 3.0, 7: -2.0}},
    "late": {"min_tokens": 45, "stop_token_ids": frozenset({40}), "logit_bias": {40: 50.0}},
    "penalties": {**PENALTIES, "logit_bias": dict.fromkeys(range(5, 8), 9.0)},
    "rewards": {"frequency_penalty": -0.2, "repetition_penalty": 0.9},
    "bans": BANS,
    "few with bans": {**BANS, "allowed_token_ids": frozenset({6, 7, 8})},
    "thinking": {"thinking_budget": BUDGET},
    "long thinking": {"thinking_budget": LONG_BUDGET},
    "all": {"thinking_budget": BUDGET, **BANS, **PENALTIES, "min_tokens": 9},
    "moody": {},
    "chain": {"chain": SamplerChain(dry=Dry(multiplier=0.8), xtc_probability=0.3)},
    **{name: {"grammar": grammar} for name, grammar in GRAMMARS.items()},
    "late regex": {"grammar": "start: /[a-f]{2,20}/", "min_tokens": 15},
    "endless regex": {"grammar": "start: /[a-f]{2,20}/", "ignore_eos": True},
    "penalised schema": {"grammar": GRAMMARS["schema"], **PENALTIES},
    "banned calls": {"grammar": GRAMMARS["calls"], **BANS},
    "slow regex": {"grammar": GRAMMARS["regex"]},
    "slow schema": {"grammar": GRAMMARS["schema"], **PENALTIES},
    "slow calls": {"grammar": GRAMMARS["calls"], **BANS},
}
"""What requests want, by name."""
TEXTS = TokenTexts(VOCABULARY)


def add(driver: Driver, name: str, prompt: list[int], kind: str, **sampling: Any) -> None:
    """Queue a request of a kind, with the matchers that the engine's thread would give it."""
    wanted = {**sampling, **KINDS[kind]}
    found: Matcher | None = Moody() if kind == "moody" else None
    if "grammar" in wanted:
        found = matcher(wanted["grammar"])
        if kind.startswith("slow"):
            found = Slow(found)
    if "thinking_budget" in wanted:
        found = ThinkingBudgetMatcher(wanted["thinking_budget"], found)
    if "bad_words" in wanted:
        params = SamplingParams(**BANS, allowed_token_ids=wanted.get("allowed_token_ids"))
        found = BanMatcher(params, VOCAB, TEXTS, found)
    driver.add(name, prompt, matcher=found, **wanted)

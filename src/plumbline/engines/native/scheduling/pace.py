"""Bound the prompt tokens of a step by the time that they take, so that running streams do not wait for long prompts.

The cost of prompt tokens is counted in units; one unit is what a token costs outside of attention. The time of a unit
is learned from the steps. Tokens do not depend on it, because they do not depend on how a prompt is cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from plumbline.engines.native.models.description import ModelDescription
from plumbline.engines.request import RequestState, images_within

__all__ = ["PromptBudget", "PromptPace", "RowCost", "attention_share", "missing"]

_SHARED_SECONDS = 0.08
"""Time for prompt tokens in a step with running streams; less than half of the gap that is allowed, 0.2 s."""
_ALONE_SECONDS = 1.0
"""Time for prompt tokens in a step without streams: a request that arrives meanwhile waits for it."""
_FIRST_UNITS = 64.0
"""Units of the first steps, while the time of a unit is unknown."""
_LEAST_TOKENS = 8
"""Every step advances a prompt by this many tokens, however slow the machine is."""
_WEIGHT = 0.3
"""Weight of the last step in the moving averages."""

_ROW_WEIGHT = 0.05
"""Weight of the last step in the average cost of a proposed token, which one step shows badly."""
_DEAREST_ROW = 2.0
"""Tokens that a proposed one costs at most."""
_SLOWER_PLAIN, _DEARER_ROW = 0.1, 0.5
"""How much more than its average a step may teach: in parts of a step without proposals, and in tokens for a proposed
one. Something else holds up some steps. Their mean is above what most steps take, and as most have no proposals, their
mean made proposed tokens look half as dear as they are."""


class PromptPace:
    """Decide how many prompt tokens a step computes.

    Args:
        attention_share: the cost of a token's attention to one earlier token, in units.
    """

    def __init__(self, attention_share: float) -> None:
        self._attention_share = attention_share
        self._seconds: dict[bool, float | None] = {False: None, True: None}
        """Seconds of a unit, by whether the prompt is scored."""
        self._decode_seconds = 0.0
        """Seconds of a step without prompt tokens."""
        self._queued = 0.0, 0.0
        """Units and seconds of steps that a GPU still computed when they were observed."""

    def allowance(self, streams: bool, scored: bool) -> float:
        """Return the units that a step may spend on prompts.

        Args:
            streams: whether the step decodes for running streams.
            scored: whether a prompt wants logprobs, which cost more.
        """
        seconds = self._seconds[scored]
        if seconds is None:
            return _FIRST_UNITS
        return (_SHARED_SECONDS if streams else _ALONE_SECONDS) / seconds

    def cost(self, start: int, count: int) -> float:
        """Return the units of `count` tokens from position `start`."""
        return count + self._attention_share * count * (start + count / 2)

    def tokens(self, start: int, units: float) -> int:
        """Return how many tokens from position `start` cost at most `units`, at least a few."""
        # count + share * (start * count + count² / 2) = units
        share = self._attention_share
        linear = 1 + share * start
        count = units / linear if share == 0 else (math.sqrt(linear**2 + 2 * share * units) - linear) / share
        return max(int(count), _LEAST_TOKENS)

    def knows(self, scored: bool) -> bool:
        """Return whether the time of a unit is known."""
        return self._seconds[scored] is not None

    def observe(self, units: float, scored: bool, seconds: float, *, awaited: bool = True) -> None:
        """Learn from a step.

        Args:
            units: spent on prompts.
            scored: whether a prompt wants logprobs.
            seconds: that the step took.
            awaited: whether the device has computed it by then. The time of others is in the next step that is: a part
                of a prompt that draws no token is only launched on a GPU.
        """
        queued_units, queued_seconds = self._queued
        units, seconds = units + queued_units, seconds + queued_seconds
        self._queued = (0.0, 0.0) if awaited else (units, seconds)
        if not awaited:
            return
        if units == 0:
            self._decode_seconds += _WEIGHT * (seconds - self._decode_seconds)
            return
        before = self._seconds[scored]
        # Few tokens measure badly. But after one very slow step no step would have more if all prompts are short.
        if units >= _LEAST_TOKENS or (before is not None and _SHARED_SECONDS / before < _LEAST_TOKENS):
            measured = max(seconds - self._decode_seconds, 1e-6) / units
            self._seconds[scored] = measured if before is None else before + _WEIGHT * (measured - before)


class RowCost:
    """Learn what a proposed token costs beside so many requests, in tokens of steps without proposals.

    A large model reads its weights once for all rows of a step, so a row more costs little; with a small one it costs
    as much as a token does among eight requests.

    Args:
        most_requests: requests of a step that has proposals.
    """

    def __init__(self, most_requests: int) -> None:
        self._plain = [0.0] * (most_requests + 1)
        """Seconds of a step without proposals, by its number of requests; 0 while unknown."""
        self._tokens = [count / (count + 4) for count in range(most_requests + 1)]

    def tokens(self, num_requests: int) -> float:
        """Return the cost of a proposed token in tokens; it pays if it is right with a greater chance."""
        return self._tokens[num_requests]

    def observe(self, num_requests: int, num_proposed: int, seconds: float) -> None:
        """Learn from a step without prompt tokens; steps of more requests are ignored."""
        if num_requests >= len(self._plain):
            return
        plain = self._plain[num_requests]
        if not num_proposed:
            change = min(seconds - plain, _SLOWER_PLAIN * plain)
            self._plain[num_requests] = plain + _ROW_WEIGHT * change if plain else seconds
        elif plain:
            tokens = self._tokens[num_requests]
            found = (seconds - plain) / plain * num_requests / num_proposed
            found = min(max(found, 0.0), tokens + _DEARER_ROW, _DEAREST_ROW)
            self._tokens[num_requests] = tokens + _ROW_WEIGHT * (found - tokens)


class PromptBudget:
    """What the prompts of one step may still take, and what long ones leave to short ones."""

    def __init__(self, pace: PromptPace | None, tokens: int, *, streams: bool) -> None:
        """Begin a step.

        Args:
            pace: bounds the time; None does not.
            tokens: of the step, without its decodes.
            streams: whether it has decodes.
        """
        self._pace, self._streams = pace, streams
        self._has_prompts = False
        self.half = tokens // 2
        """Tokens that half of the step computes; a prompt that needs more is long."""
        if pace is not None:
            self.half = min(self.half, pace.tokens(0, pace.allowance(streams, False) / 2))
        self.kept = 0
        """Tokens that long prompts leave to short ones."""
        self.units = 0.0
        """What the prompts cost so far."""
        self.scores = False
        """Whether one of them wants the logprobs of its tokens."""

    def keep(self, short: Iterable[RequestState]) -> None:
        """Keep up to half of the step for these requests."""
        self.kept = min(self.half, sum(map(missing, short)))

    def affordable(self, state: RequestState, start: int, tokens: int) -> int:
        """Return how many prompt tokens from `start` the step computes, `tokens` at most; the first prompt gets some.

        An image that must be whole is not cut. The first prompt of a step may exceed the budget for one.
        """
        needed = state.num_tokens - start
        kept = self.kept if needed > self.half else 0
        # A whole image may have taken tokens that were kept.
        count = max(0, min(needed, tokens - kept))
        if self._pace is not None:
            count = self._in_time(self._pace, state, start, count, kept)
        for image in images_within(state.images, start, start + count):
            if count and image.whole and start + count < image.end:
                if image.start > start:
                    return image.start - start
                whole = image.end - start
                return whole if whole <= tokens or not self._has_prompts else 0
        return count

    def _in_time(self, pace: PromptPace, state: RequestState, start: int, count: int, kept: int) -> int:
        """Return how many of `count` prompt tokens the step has time for, if it keeps time for `kept` others."""
        scores = self.scores or state.prompt_logprobs is not None
        left = pace.allowance(self._streams, scores) - self.units - (pace.cost(0, kept) if kept else 0.0)
        if left <= 0 and self.units > 0:
            return 0
        return min(count, pace.tokens(start, max(left, 0.0)))

    def spend(self, state: RequestState, start: int, count: int) -> None:
        """Count tokens of a prompt that the step computes."""
        self._has_prompts = True
        if state.num_tokens - start <= self.half:
            self.kept = max(0, self.kept - count)
        if self._pace is not None:
            self.units += self._pace.cost(start, count)
        self.scores = self.scores or state.prompt_logprobs is not None


def missing(state: RequestState) -> int:
    """Return how many tokens of a request are not computed."""
    return state.num_tokens - state.num_computed_tokens


def attention_share(model: ModelDescription) -> float:
    """Return the multiplications of a token's attention to one other, divided by those of its linear layers."""
    attention = sum(2 * layer.mixer.heads * layer.mixer.head_dim for layer in model.layers)
    blocks = [block for layer in model.layers for block in (layer.mixer, layer.feed_forward) if block]
    return attention / sum(block.num_weights(model.hidden_size) for block in blocks)

"""Propose the next tokens of a request, so that one step verifies several of them.

Prompt lookup: if the last tokens occurred before, in the prompt or in the answer, what followed them then is proposed.
Where a grammar allows one token only, or only beginnings of one, that token is proposed. The step computes the proposed
tokens after the last one and draws a token at each place, with the noise of that place (`sampling.py` keys it by seed
and position), the mask of that place, and penalties for the tokens before it. A draw counts if all tokens before it
were proposed rightly. So the tokens are those of plain decoding, also at a temperature, where a row has the same bits
in any batch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from plumbline.engines.constraints.grammar import GrammarError, Matcher, num_words
from plumbline.engines.native.scheduling.pace import RowCost
from plumbline.engines.request import RequestState
from plumbline.engines.sampling.masks import mask_into

__all__ = ["MOST_PROPOSED", "MOST_SPECULATING", "NOTHING", "PromptLookup", "Proposal", "Speculator"]

MOST_SPECULATING = 8
"""Running requests beyond which a step is bound by arithmetic, so that further rows cost what they save."""
_MASK_SECONDS = 1e-3
"""Time after which no more masks are computed for a request's proposal, because the forward pass waits for them."""
_FEW = 4
"""Allowed tokens of which the longest is proposed if the others are beginnings of it."""
_MOST_DOUBTS = 2
"""Tokens from the grammar that a request may draw otherwise before it gets those only that are without choice."""
_SLOW_PAUSE = 32
"""Tokens without a proposal after one mask took that long: without one it is computed beside the forward pass."""
_GRAM = 3
"""Last tokens that must have occurred before."""
_CHANCE = 0.6
"""Chance of a looked up token to be right, of the first requests."""
_WEIGHT = 1 / 8
"""Weight of a request's last looked up token in its chance; a quarter of that for the chance of new requests."""
_PROBE = 32
"""Tokens after which a request looks up one token again whose chance is too small."""
_HOPELESS = 0.9
"""Chance that pays too little: where it is needed, a right token is no reason to look the next one up."""
_NEW_TEXT = 16
"""Look-ups in a row that find nothing, after which only each fourth token is looked up."""
MOST_PROPOSED = 16
"""Tokens of a proposal at most: more cost more than a row of a step that is bound by memory."""
_INDEXED_AT_ONCE = 2048
"""Tokens that one call indexes at most, in some milliseconds: streams wait for it."""
_LONGEST_PAUSE = 64
"""Tokens without a proposal after many wrong ones in a row."""


class PromptLookup:
    """The places of all runs of three tokens of one request; memory is proportional to its tokens.

    Args:
        chance: of its first proposed token to be right.
    """

    __slots__ = (
        *("_begun", "_blank", "_chance", "_followers", "_hopeless", "_indexed", "_misses", "_num_begun"),
        "resume",
    )

    def __init__(self, chance: float = _CHANCE) -> None:
        self._followers: dict[tuple[int, ...], int] = {}
        """Where the token after the latest occurrence of a run is."""
        self._begun: set[tuple[int, ...]] = set()
        """The first two tokens of all runs; empty on CPUs, which never ask for them."""
        self._indexed = self._num_begun = _GRAM
        self._chance = chance
        self._misses = 0
        self._hopeless = False
        self._blank = 0
        self.resume = 0
        """The number of tokens before which there is no proposal."""

    def propose(self, tokens: Sequence[int], most: int, least_chance: float = 0.0) -> list[int]:
        """Return up to `most` tokens that may follow `tokens`, which only grow between calls.

        After a long prompt there are none until some calls have indexed it.

        Args:
            tokens: prompt and answer.
            most: tokens to propose.
            least_chance: that the last proposed token, and with it all others, should have to be right. Where the
                first has less, one is tried now and then.
        """
        end = len(tokens)
        if most < 1 or end < self.resume or not self._index(tokens):
            return []
        followers = self._followers
        self._hopeless = least_chance >= _HOPELESS
        if self._chance < least_chance:
            self.resume = end + _PROBE
        place = followers.get(tuple(tokens[-_GRAM:]))
        if place is None:
            self._blank += 1
            if self._blank >= _NEW_TEXT:
                self.resume = max(self.resume, end + 4)
            return []
        self._blank = 0
        count, chance = 1, self._chance**2
        while chance >= least_chance and count < min(most, MOST_PROPOSED):
            count += 1
            chance *= self._chance
        # What followed may reach the end: then the text has a period, which goes on.
        period = tokens[place:end]
        return [period[i % len(period)] for i in range(count)]

    def may_propose(self, tokens: Sequence[int]) -> bool:
        """Return whether there is a token after which `propose` may return some; `tokens` come before it."""
        if len(tokens) + 1 < self.resume:
            return False
        end = len(tokens)
        seen = min(end, self._num_begun + _INDEXED_AT_ONCE)
        for after in range(self._num_begun, seen):
            self._begun.add(tuple(tokens[after - _GRAM : after - 1]))
        self._num_begun = max(seen, self._num_begun)
        last = tuple(tokens[1 - _GRAM :])
        # The run that ends here has no follower yet.
        return seen < end or last in self._begun or last == tuple(tokens[-_GRAM:-1])

    def _index(self, tokens: Sequence[int]) -> bool:
        """Take the runs of further tokens into the index; returns whether it has all."""
        end = len(tokens)
        indexed = min(end, self._indexed + _INDEXED_AT_ONCE)
        for after in range(self._indexed, indexed):
            self._followers[tuple(tokens[after - _GRAM : after])] = after
        self._indexed = max(indexed, self._indexed)
        return indexed == end

    def observe(self, end: int, proposed: int, accepted: int) -> None:
        """Learn from a verified proposal: propose more after right tokens, pause after wrong ones.

        Args:
            end: tokens of the request by now.
            proposed: tokens of the proposal, at least 1.
            accepted: how many of them were right.
        """
        self._chance = learned(self._chance, proposed, accepted, _WEIGHT)
        if accepted:
            self._misses = 0
            if not self._hopeless:
                self.resume = end
        else:
            self._misses += 1
            self.resume = max(self.resume, end + min(1 << self._misses, _LONGEST_PAUSE))


def learned(chance: float, proposed: int, accepted: int, weight: float) -> float:
    """Return the moving average of right tokens after `accepted` right ones and a wrong one, if there was one."""
    chance = 1 - (1 - chance) * (1 - weight) ** accepted
    return chance if accepted == proposed else chance * (1 - weight)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that may follow those of a request.

    Attributes:
        tokens: the proposed tokens; the matcher allows each of them.
        masks: what the matcher allows before and after each of them, int32 [num_words] each; empty without a matcher,
            and where nothing was computed.
        num_grammatical: how many tokens at the beginning come from the masks.
    """

    tokens: tuple[int, ...] = ()
    masks: tuple[NDArray[np.int32], ...] = ()
    num_grammatical: int = 0

    def cut(self, count: int) -> Proposal:
        """Return the first `count` tokens."""
        return Proposal(self.tokens[:count], self.masks[: count + 1], min(self.num_grammatical, count))


NOTHING = Proposal()


class Speculator:
    """Propose tokens for requests, and learn from what became of them. The engine thread owns it.

    Args:
        vocab_size: tokens of the model.
        texts: the bytes of each token, if they are known.
        clock: returns seconds.
        never: tokens that are not looked up, such as those of images.
    """

    def __init__(
        self,
        vocab_size: int,
        texts: Sequence[bytes] = (),
        clock: Callable[[], float] = time.perf_counter,
        never: frozenset[int] = frozenset(),
    ) -> None:
        self._num_words = num_words(vocab_size)
        self._texts = texts
        self._clock = clock
        self._never = never
        self.row_cost = RowCost(MOST_SPECULATING)
        self._lookups: dict[str, PromptLookup] = {}
        self._chance = _CHANCE
        """Chance of the first looked up token of a request to be right."""
        self._doubts: Counter[str] = Counter()
        """How many tokens from the grammar a request has drawn otherwise."""
        self.num_proposed = 0
        self.num_accepted = 0

    def propose(self, state: RequestState, most: int, num_running: int) -> Proposal:
        """Return up to `most` tokens.

        None for sampler chains and processors, which keep a state of their own, nor where hidden states are wanted.

        Args:
            state: a request that draws in this step.
            most: tokens that may be proposed.
            num_running: requests in the step, at most `MOST_SPECULATING`.
        """
        if state.chain is not None or state.processors is not None or state.sampling.hidden_state:
            return NOTHING
        name = state.request.request_id
        lookup = self._lookups.get(name)
        if lookup is None:
            lookup = self._lookups[name] = PromptLookup(self._chance)
        # A right token saves what a token costs without proposals, and a wrong one is lost.
        guess = lookup.propose(state.token_ids, most, self.row_cost.tokens(num_running))
        if guess:
            # What ends an answer is drawn in any case, so it need not be proposed.
            ends = state.stop_ids | self._never
            guess = list(takewhile(lambda token: token not in ends, guess))
        if state.matcher is None:
            state.next_proposal = lookup.resume
            return Proposal(tuple(guess)) if guess else NOTHING
        if most < 1:
            return NOTHING
        return self._constrained(state, state.matcher, guess, min(most, MOST_PROPOSED))

    def may_propose(self, state: RequestState) -> bool:
        """Return whether tokens may be proposed after the next token of a request, which is not known yet."""
        lookup = self._lookups.get(state.request.request_id)
        return lookup is None or lookup.may_propose(state.token_ids)

    def observe(self, state: RequestState, proposal: Proposal, accepted: int) -> None:
        """Learn how many tokens of a proposal were right; the request has the drawn tokens by now."""
        self.num_proposed += len(proposal.tokens)
        self.num_accepted += accepted
        name = state.request.request_id
        guessed = len(proposal.tokens) - proposal.num_grammatical
        if accepted < proposal.num_grammatical:
            self._doubts[name] += 1
        elif guessed:
            right, lookup = accepted - proposal.num_grammatical, self._lookups[name]
            lookup.observe(state.num_tokens, guessed, right)
            if state.matcher is None:
                state.next_proposal = lookup.resume
            self._chance = learned(self._chance, guessed, right, _WEIGHT / 4)

    def forget(self, state: RequestState) -> None:
        """Drop what is known of a request that ends or waits."""
        self._lookups.pop(state.request.request_id, None)
        self._doubts.pop(state.request.request_id, None)

    def _constrained(self, state: RequestState, matcher: Matcher, guess: list[int], most: int) -> Proposal:
        """Return tokens that follow from the masks, and those of a guess up to the first that is forbidden.

        A copy of the matcher takes them: the request's own advances by drawn tokens only, and a failure here is none
        of the request, which may never come to this place.
        """
        tokens: list[int] = []
        masks: list[NDArray[np.int32]] = []
        num_grammatical = 0
        texts = self._texts if self._doubts[state.request.request_id] < _MOST_DOUBTS else ()
        began = self._clock()
        while not matcher.may_be_slow:
            row = np.empty(self._num_words, dtype=np.int32)
            try:
                mask_into(row, matcher, state.late_ends(len(tokens)))
            except GrammarError:
                break
            masks.append(row)
            if len(tokens) == most:
                break
            if self._clock() - began > _MASK_SECONDS:
                if not tokens:
                    state.next_proposal = state.num_tokens + _SLOW_PAUSE
                break
            token = _follows(row, texts)
            if token is not None:
                num_grammatical += num_grammatical == len(tokens)
                guess = guess[1:] if guess and guess[0] == token else []
            elif guess and _allows(row, guess[0]):
                token, *guess = guess
            else:
                break
            if token in state.end_ids:
                break
            if not tokens:
                matcher = matcher.copy()
            if not matcher.accept(token) or matcher.is_done:
                break
            tokens.append(token)
        count = max(min(len(tokens), len(masks) - 1), 0)
        return Proposal(tuple(tokens), tuple(masks), num_grammatical).cut(count)


def _follows(mask: NDArray[np.int32], texts: Sequence[bytes]) -> int | None:
    """Return the only token that a mask allows, or the longest of a few if the others are beginnings of it.

    A grammar may force a text and leave open how it is cut into tokens, such as `":` after the name of a property.
    """
    words = mask.nonzero()[0]
    if len(words) > _FEW:
        return None
    ids: list[int] = []
    for word in words.tolist():
        bits = int(mask[word]) & 0xFFFFFFFF
        while bits:
            if len(ids) == _FEW:
                return None
            ids.append(word * 32 + (bits & -bits).bit_length() - 1)
            bits &= bits - 1
    if len(ids) == 1:
        return ids[0]
    if not texts:
        return None
    found = max(ids, key=lambda token: len(texts[token]))
    return found if all(texts[token] and texts[found].startswith(texts[token]) for token in ids) else None


def _allows(mask: NDArray[np.int32], token: int) -> bool:
    return bool(int(mask.view(np.uint32)[token // 32]) >> token % 32 & 1)

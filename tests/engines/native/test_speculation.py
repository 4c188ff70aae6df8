"""Laws of speculation: what is proposed, and that wrong proposals cost little; see also test_reproducibility.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from engines.conftest import VOCAB, build_engine, matcher, tiny_model
from engines.native.kinds import KINDS, Moody, add
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline.engines.constraints.bans import BanMatcher
from plumbline.engines.constraints.grammar import GrammarError, Matcher
from plumbline.engines.constraints.thinking_budget import ThinkingBudgetMatcher
from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.scheduling.scheduler import Scheduler
from plumbline.engines.native.scheduling.speculation import PromptLookup, Speculator
from plumbline.engines.request import LateMask, RequestState
from plumbline.engines.sampling.sampler import Sampler
from plumbline.port.engine import GenerateRequest, SamplingParams

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=40)
Build = Callable[..., Any]
SETTINGS = settings(
    max_examples=EXPLORED or 10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
Change = Callable[[Any], Any]


def _count_all(whole: Any) -> Any:
    def filter_and_count(self: Any, logits: Any, states: Any, ahead: Any) -> None:
        whole(self, logits, states, ahead)
        for state, tokens in zip(states, ahead, strict=True):
            self._count(self._filters[state.slot].counts, tokens)

    return filter_and_count


FAULTS: dict[str, tuple[Any, str, Change, str]] = {
    "proposals advance the grammar itself": (
        type(matcher("start: /a/")), "copy", lambda whole: lambda self: self, "schema"),
    "proposals advance the bans themselves": (BanMatcher, "copy", lambda whole: lambda self: self, "few with bans"),
    "proposals spend the budget itself": (
        ThinkingBudgetMatcher, "copy", lambda whole: lambda self: self, "long thinking"),
    "all rows have the first mask": (
        Speculator, "_constrained", lambda whole: lambda *given: replace(
            found := whole(*given), masks=found.masks[:1] * len(found.masks)), "schema"),
    "penalties ignore proposed tokens": (
        Sampler, "_filter", lambda whole: lambda self, logits, states, ahead: whole(
            self, logits, states, [()] * len(ahead)), "rewards"),
    "penalties count wrong tokens": (Sampler, "_filter", _count_all, "rewards"),
    "a minimum ignores proposed tokens": (
        Sampler, "_filter", lambda whole: lambda self, logits, states, ahead: whole(
            self, logits, states, [()] * len(ahead)), "late"),
    "a minimum of a grammar ignores proposed tokens": (
        RequestState, "late_ends", lambda whole: lambda self, ahead=0: whole(self), "late regex"),
    "noise ignores proposed tokens": (
        Sampler, "draw", lambda whole: lambda *given: whole(*given[:-1], [()] * len(given[2])), "bias"),
    "all proposed tokens count": (
        EngineCore, "_take_draws", lambda whole: lambda self, entry, draws: whole(
            self, replace(entry, proposal=replace(entry.proposal, tokens=tuple(t for t, _ in draws[:-1]))), draws),
        "bias"),
}  # fmt: skip
"""What to change, how, and a kind of requests whose answers change by it."""


def answers(engine: Build, kind: str, speculation: bool) -> tuple[Any, int]:
    """Return eight answers to requests of a kind, two at a time, and the tokens that were proposed."""
    driver = engine(speculation=speculation, max_model_len=140, max_num_seqs=2)
    for number in range(8):
        temperature = 0.5 * (number % 2)
        add(driver, str(number), [3, 4, 5, 6] * 4, kind, max_tokens=50, seed=number, temperature=temperature)
    driver.run()
    speculator = driver.core.scheduler.speculator
    return (dict(driver.tokens), driver.finished), speculator.num_proposed if speculation else 0


@cache
def plain_answers(kind: str) -> Any:
    """Return the answers without proposals."""
    return answers(partial(build_engine, tiny_model()), kind, speculation=False)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_request_has_proposals(engine: Build, kind: str) -> None:
    found, proposed = answers(engine, kind, speculation=True)
    assert bool(proposed) == (kind != "chain")
    assert found == plain_answers(kind)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_law_finds_faults(engine: Build, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    owner, name, change, kind = FAULTS[fault]
    expected = plain_answers(kind)
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    assert answers(engine, kind, speculation=True)[0] != expected


class FailsAfter(Moody):
    """A matcher that fails after some tokens, at the mask or at the last of them."""

    def __init__(self, tokens: list[int], at: str) -> None:
        super().__init__()
        self.tokens, self.at = tokens, at

    def mask_into(self, row: Any) -> None:
        if self.at == "mask" and self.taken[1:] == self.tokens:
            raise GrammarError("Too complex.")
        row.fill(0 if self.at == "empty" and self.taken[1:] == self.tokens else -1)

    def accept(self, token_id: int) -> bool:
        self.taken.append(token_id)
        return self.at != "accept" or self.taken[1:] != self.tokens


@given(count=st.integers(0, 5), at=st.sampled_from(["mask", "empty", "accept"]))
def test_a_proposal_ends_before_the_grammar_fails_and_the_request_goes_on(count: int, at: str) -> None:
    """The answer may never come to that place."""
    found = FailsAfter([3, 4, 5, 6, 3][:count], at)
    request = state("a", [3, 4, 5, 6] * 4, found)
    speculator = Speculator(VOCAB, clock=lambda: 0.0)
    speculator.row_cost._tokens[1] = 0.0
    proposal = speculator.propose(request, 4, 1)
    length = max(count - 1, 0) if count or at != "accept" else 4
    assert proposal.tokens == (3, 4, 5, 6)[: min(length, 4)]
    assert len(proposal.masks) == (length + 1 if count or at == "accept" else 0)
    assert request.error is None
    assert found.taken == [0]


class Allows(Moody):
    """A matcher that always allows the same tokens."""

    def __init__(self, allowed: list[int]) -> None:
        super().__init__()
        self.allowed = allowed

    def mask_into(self, row: Any) -> None:
        row.fill(0)
        for token in self.allowed:
            row.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)

    def accept(self, token_id: int) -> bool:
        self.taken.append(token_id)
        return token_id in self.allowed


@given(
    texts=st.lists(st.text("ab", min_size=0, max_size=5).map(str.encode), min_size=VOCAB, max_size=VOCAB),
    allowed=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6, unique=True),
    known=st.booleans(),
)
def test_the_longest_of_a_few_allowed_tokens_is_proposed_if_the_others_begin_it(
    texts: list[bytes], allowed: list[int], known: bool
) -> None:
    speculator = Speculator(VOCAB, texts if known else (), clock=lambda: 0.0)
    request = state("a", [3], Allows(allowed))
    longest = max(texts[token] for token in allowed)
    alike = len(allowed) <= 4 and all(texts[token] and longest.startswith(texts[token]) for token in allowed)
    proposal = speculator.propose(request, 3, 1)
    if len(allowed) == 1:
        assert proposal.tokens == tuple(allowed) * 3
    elif alike and known:
        assert [texts[token] for token in proposal.tokens] == [longest] * 3
        # A request that takes other tokens has no such proposals any more.
        for _ in range(2):
            assert speculator.propose(request, 3, 1).tokens
            speculator.observe(request, proposal, 0)
        assert not speculator.propose(request, 3, 1).tokens
    else:
        assert not proposal.tokens
    assert len(proposal.masks) == 1 + len(proposal.tokens)


@given(spare=st.integers(1, 40), streams=st.integers(1, 8))
def test_proposals_leave_tokens_of_the_budget_to_streams_and_prompts(spare: int, streams: int) -> None:
    """Every stream has a token in each step, and a prompt goes on, beside answers that repeat themselves."""
    config = EngineConfig(
        max_model_len=200, num_blocks=500, max_num_seqs=streams + 1, max_num_batched_tokens=streams + spare
    )
    scheduler = Scheduler(config, speculator=Speculator(96))
    prompt = state("prompt", [2] * 190)
    repeating = [state(str(number), [5] * 8) for number in range(streams)]
    for each in repeating:
        scheduler.add(each)
    for _ in range(60):
        decoding = [each for each in repeating if each.num_tokens - each.num_computed_tokens == 1]
        if len(decoding) == streams and prompt not in (*scheduler.running, *scheduler.waiting):
            scheduler.add(prompt)
        plan = scheduler.plan()
        planned = [entry.state for entry in plan.entries]
        assert plan.num_tokens <= config.max_num_batched_tokens
        assert all(each in planned for each in decoding)
        assert prompt.num_computed_tokens == 190 or prompt not in scheduler.running or prompt in planned
        for entry in plan.entries:
            entry.state.token_ids += [5] * (1 + len(entry.proposal.tokens)) if entry.draws else []
            scheduler.advance(entry)
            if entry.proposal.tokens:
                scheduler.verified(entry, len(entry.proposal.tokens))
        if max(each.num_tokens for each in repeating) > 180:
            break
    assert prompt.num_computed_tokens > 0


@given(late=st.integers(0, 20))
def test_requests_that_wait_for_their_masks_take_no_proposals_from_others(late: int) -> None:
    """Their steps cost nothing, however many they are; a stream beside slow grammars had a fifth of its rate."""
    config = EngineConfig(max_model_len=200, num_blocks=500, max_num_seqs=32, max_num_batched_tokens=400)
    scheduler = Scheduler(config, speculator=Speculator(96))
    waiting = [state(str(number), [5] * 8) for number in range(late)]
    for each in (*waiting, stream := state("stream", [5] * 30)):
        scheduler.add(each)
    for entry in scheduler.plan().entries:
        entry.state.token_ids.append(5)
        scheduler.advance(entry)
    for each in waiting:
        each.late_mask = LateMask()
    (entry,) = scheduler.plan().entries
    assert entry.state is stream
    assert len(entry.proposal.tokens) > 1


def state(name: str, prompt: list[int], found: Matcher | None = None) -> RequestState:
    request = GenerateRequest(
        request_id=name, prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=200, ignore_eos=True)
    )
    return RequestState(request, arrival=1, eos_token_ids=frozenset(), max_model_len=200, matcher=found)


def test_an_answer_that_repeats_itself_takes_fewer_steps(engine: Build) -> None:
    steps = []
    for speculation in (True, False):
        driver = engine(speculation=speculation)
        driver.add("a", [2, 3, 4, 5], max_tokens=120, allowed_token_ids=frozenset({7}))
        driver.run()
        steps.append(driver.core.num_steps)
    assert driver.core.scheduler.speculator is None
    assert steps[0] < steps[1] / 6


@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=80), most=st.integers(0, 20))
def test_a_proposal_is_what_followed_the_last_three_tokens_before(tokens: list[int], most: int) -> None:
    lookup = PromptLookup()
    for end in range(1, len(tokens) + 1):
        known = tokens[:end]
        lookup.resume = 0
        proposal = lookup.propose(known, most)
        places = [n for n in range(3, end) if known[n - 3 : n] == known[-3:]] if end >= 3 else []
        period = known[places[-1] :] * 16 if places else []
        expected = period[: min(16, most)]
        assert proposal == expected


def test_a_long_prompt_is_indexed_over_several_steps() -> None:
    """A prompt of 100,000 tokens at once would hold up every stream for 0.1 s."""
    tokens = [n // 3 for n in range(30_000)] + [7, 8, 9, 10, 11, 7, 8, 9]
    lookup = PromptLookup()
    calls = 1
    while not (proposal := lookup.propose(tokens, 2)):
        assert len(lookup._followers) <= 2048 * calls
        calls += 1
    assert proposal == [10, 11]
    assert calls == 15


@given(outcomes=st.lists(st.booleans(), max_size=40), least=st.floats(0.01, 0.89))
def test_a_proposal_is_as_long_as_its_last_token_is_likely(outcomes: list[bool], least: float) -> None:
    """The chance of a token is the moving average of those before; while it is too small, few are looked up."""
    lookup, tokens, chance = PromptLookup(0.7), [1, 2, 3] * 10, 0.7
    for right in outcomes:
        waited = 0
        while not (proposal := lookup.propose(tokens, 99, least)):
            tokens.append(len(tokens) % 3 + 1)
            waited += 1
        lengths = [n for n in range(1, 17) if chance**n >= least * (1 + 1e-9)]
        assert len(proposal) - max([1, *lengths]) in (
            0,
            1 if abs(chance ** len(proposal) / least - 1) < 1e-9 else 0,
        )
        tokens.append(len(tokens) % 3 + 1)
        doubtful = chance < least
        chance += (1 - chance) / 8 if right else -chance / 8
        lookup.observe(len(tokens), 1, int(right))
        assert lookup.resume >= len(tokens) + (31 if doubtful and not right else 0)
        assert right == (lookup.resume == len(tokens))


@given(rights=st.lists(st.booleans(), max_size=60))
def test_wrong_proposals_become_rare(rights: list[bool]) -> None:
    """After n wrong ones in a row none is made for 2**n tokens, at most 64; a right one ends that."""
    lookup = PromptLookup()
    tokens = [1, 2, 3] * 10
    misses = 0
    for right in rights:
        waited = 0
        while not (proposal := lookup.propose(tokens, 99)):
            tokens += [1, 2, 3][len(tokens) % 3 : len(tokens) % 3 + 1]
            waited += 1
        assert waited == (min(2**misses, 64) if misses else 0)
        lookup.observe(len(tokens), len(proposal), len(proposal) if right else 0)
        misses = 0 if right else misses + 1


@given(TEXTS, st.sampled_from([{}, {"resume": 20}]))
def test_nothing_is_proposed_after_a_token_where_nothing_may_be(
    tokens: list[int], changes: dict[str, int]
) -> None:
    """Else the step after it would have been launched before the proposal."""
    lookup = PromptLookup()
    for name, value in changes.items():
        setattr(lookup, name, value)
    may = lookup.may_propose(tokens)
    for following in range(4):
        other = PromptLookup()
        other.resume = lookup.resume
        assert may or not other.propose([*tokens, following], 4)


def test_new_text_lets_steps_be_launched_ahead() -> None:
    lookup = PromptLookup()
    assert not any(lookup.may_propose(list(range(length))) for length in range(4, 40))
    assert lookup.may_propose([*range(40), 7, 8])

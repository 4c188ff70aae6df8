"""Laws of speculation: the tokens are those of plain decoding, bit for bit, and wrong proposals cost little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plumbline.engines.native.config import EngineConfig
from plumbline.engines.native.scheduler import Scheduler
from plumbline.engines.native.speculation import PromptLookup
from plumbline.engines.port import GenerateRequest, SamplingParams
from plumbline.engines.request import RequestState

Build = Callable[..., Any]
SETTINGS = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
parts = st.lists(st.integers(2, 6), min_size=1, max_size=6)
prompts = st.builds(lambda part, times, tail: part * times + tail, parts, st.integers(1, 9), parts)
"""Prompts that repeat themselves."""


@SETTINGS
@given(
    requests=st.lists(prompts, min_size=1, max_size=4),
    sampling=st.fixed_dictionaries({
        "temperature": st.sampled_from([0.0, 0.3, 1.0]),
        "top_p": st.sampled_from([1.0, 0.8]),
        "seed": st.integers(0, 99),
        "max_tokens": st.integers(1, 60),
        "logprobs": st.sampled_from([None, 2]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.2]),
    }),
    num_blocks=st.sampled_from([256, 18]),
)  # fmt: skip
def test_speculation_changes_no_token_and_no_logprob(
    engine: Build, requests: list[list[int]], sampling: dict[str, Any], num_blocks: int
) -> None:
    outcomes = []
    for speculation in (True, False):
        driver = engine(speculation=speculation, num_blocks=num_blocks, max_model_len=140)
        for number, prompt in enumerate(requests):
            driver.add(str(number), prompt, **sampling)
        driver.run()
        outcomes.append((dict(driver.tokens), dict(driver.logprobs), driver.finished))
    assert outcomes[0] == outcomes[1]


@SETTINGS
@given(
    requests=st.lists(prompts, min_size=1, max_size=5),
    sampling=st.fixed_dictionaries({
        "temperature": st.sampled_from([0.0, 0.3]),
        "seed": st.integers(0, 99),
        "max_tokens": st.integers(1, 60),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.sampled_from([frozenset(), frozenset({7})]),
        "allowed_token_ids": st.sampled_from([None, frozenset({1, 7}), frozenset({8, 9})]),
        "logprobs": st.sampled_from([None, 1]),
        "prompt_logprobs": st.sampled_from([None, 1]),
    }),
    limits=st.sampled_from([
        {"num_blocks": 256}, {"num_blocks": 18, "expected_output_len": 1},
        {"num_blocks": 256, "max_num_batched_tokens": 4, "max_num_seqs": 4},
    ]),
    events=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["abort", "pause", "resume"]), st.integers(0, 4)), max_size=12
    ),
)  # fmt: skip
def test_aborts_pauses_and_preemptions_change_no_token(
    engine: Build,
    requests: list[list[int]],
    sampling: dict[str, Any],
    limits: dict[str, int],
    events: list[tuple[int, str, int]],
) -> None:
    """Whatever happens between steps, an answer is that of plain decoding, or the beginning of it if aborted."""
    plain = engine(speculation=False, max_model_len=140)
    driver = engine(max_model_len=140, **limits)
    for number, prompt in enumerate(requests):
        plain.add(str(number), prompt, **sampling)
        driver.add(str(number), prompt, **sampling)
    plain.run()
    for steps, event, number in events:
        for _ in range(steps):
            driver.step()
            driver.core.check_integrity()
        (driver.abort if event == "abort" else getattr(driver.core, event))(str(number))
        paused = {state.request.request_id for state in driver.core.scheduler.paused}
        assert not paused & set(driver.core.scheduler._lookups)
    for number in range(len(requests)):
        driver.core.resume(str(number))
    driver.run()
    assert set(driver.finished) == set(plain.finished)
    for name, reason in driver.finished.items():
        count = len(driver.tokens[name])
        assert driver.tokens[name] == plain.tokens[name][:count]
        assert driver.logprobs[name] == plain.logprobs[name][: len(driver.logprobs[name])]
        if reason != "abort":
            assert (reason, count) == (plain.finished[name], len(plain.tokens[name]))
            assert driver.prompt_logprobs.get(name) == plain.prompt_logprobs.get(name)
    assert not driver.core.scheduler._lookups


@given(spare=st.integers(1, 40), streams=st.integers(1, 8))
def test_proposals_leave_tokens_of_the_budget_to_streams_and_prompts(spare: int, streams: int) -> None:
    """Every stream has a token in each step, and a prompt goes on, beside answers that repeat themselves."""
    config = EngineConfig(
        max_model_len=200, num_blocks=500, max_num_seqs=streams + 1, max_num_batched_tokens=streams + spare
    )
    scheduler = Scheduler(config, speculates=True)
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
            entry.state.token_ids += [5] * (1 + len(entry.proposal)) if entry.draws else []
            scheduler.advance(entry)
            if entry.proposal:
                scheduler.verified(entry, len(entry.proposal))
        if max(each.num_tokens for each in repeating) > 180:
            break
    assert prompt.num_computed_tokens > 0


def state(name: str, prompt: list[int]) -> RequestState:
    request = GenerateRequest(
        request_id=name, prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=200, ignore_eos=True)
    )
    return RequestState(request, arrival=1, eos_token_ids=frozenset(), max_model_len=200)


def test_an_answer_that_repeats_itself_takes_fewer_steps(engine: Build) -> None:
    steps = []
    for speculation in (True, False):
        driver = engine(speculation=speculation)
        driver.add("a", [2, 3, 4, 5], max_tokens=120, allowed_token_ids=frozenset({7}))
        driver.run()
        steps.append(driver.core.num_steps)
    assert driver.core.scheduler.num_proposed == 0
    assert steps[0] < steps[1] / 6


@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=80), most=st.integers(0, 20))
def test_a_proposal_is_what_followed_the_last_three_tokens_before(tokens: list[int], most: int) -> None:
    lookup = PromptLookup()
    for end in range(1, len(tokens) + 1):
        known = tokens[:end]
        proposal = lookup.propose(known, most)
        places = [n for n in range(3, end) if known[n - 3 : n] == known[-3:]] if end >= 3 else []
        period = known[places[-1] :] * 4 if places else []
        expected = period[: min(4, most)]
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

"""Laws of speculation: the tokens are those of plain decoding, bit for bit, and wrong proposals cost little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plumbline.engines.native.speculation import PromptLookup

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

"""Draws obey seeds, distributions and filters; answers are in their grammars and budgets."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from support.drawn_grammars import STUDY, drawn
from support.weights.engines import Answer, Harness, Reference, decode, encode, token_id

from plumbline.port.engine import RefusedRequestError, ThinkingBudget

from .conftest import NUM_GRAMMARS, PROMPTS, THOROUGH, needs

# Draws


@pytest.mark.parametrize(
    "sampling", [{}, {"top_k": 40, "top_p": 0.9, "min_p": 0.01}, {"frequency_penalty": 0.8}], ids=str
)
def test_a_seed_repeats_alone_and_beside_others(engine: Harness, sampling: dict[str, Any]) -> None:
    def request(seed: int) -> Any:
        return engine.request(PROMPTS[seed % 4], temperature=1.3, seed=seed, max_tokens=12, **sampling)

    seeds = [0, 1, 5, -3, 2**63 - 1, -(2**63)]
    alone = [engine.answers(request(seed))[0].token_ids for seed in seeds]
    beside = engine.answers(*(request(seed) for seed in seeds), *(request(seed) for seed in range(10, 20)))
    assert [answer.token_ids for answer in beside[: len(seeds)]] == alone
    assert len({tuple(tokens) for tokens in alone}) > 1


@pytest.mark.long
def test_draws_follow_the_distribution(engine: Harness, reference: Reference) -> None:
    """First tokens over many seeds, within five standard deviations."""
    number = 2000 if THOROUGH else 150
    prompt = PROMPTS[0]
    temperature = 2.0
    logits = reference.logits(prompt)[-1] / temperature
    wanted = np.exp(logits - logits.max())
    wanted /= wanted.sum()
    answers = engine_in_parts(
        engine,
        [{"temperature": temperature, "seed": seed, "max_tokens": 1} for seed in range(number)],
        prompt,
    )
    counts = Counter(answer.token_ids[0] for answer in answers)
    for token in np.argsort(wanted)[::-1][:10]:
        share = wanted[token]
        assert abs(counts[int(token)] - number * share) <= 5 * np.sqrt(number * share * (1 - share)) + 1


def engine_in_parts(engine: Harness, samplings: list[dict[str, Any]], prompt: list[int]) -> list[Answer]:
    """Answer many requests, no more at a time than the engine takes."""
    found: list[Answer] = []
    for start in range(0, len(samplings), engine.kind.num_places):
        part = samplings[start : start + engine.kind.num_places]
        found += engine.answers(*(engine.request(prompt, **sampling) for sampling in part))
    return found


@pytest.mark.parametrize("filters", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}], ids=str)
def test_filters_leave_what_their_definitions_leave(
    engine: Harness, reference: Reference, filters: dict[str, Any]
) -> None:
    prompt, temperature = PROMPTS[0], 1.5
    logits = reference.logits(prompt)[-1] / temperature
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    order = np.argsort(shares)[::-1]
    before = np.cumsum(shares[order]) - shares[order]
    if "top_k" in filters:
        left = order[: filters["top_k"]]
    elif "top_p" in filters:
        left = order[before < filters["top_p"]]
    else:
        left = order[shares[order] >= filters["min_p"] * shares.max()]
    samplings = [{"temperature": temperature, "seed": seed, "max_tokens": 1, **filters} for seed in range(64)]
    found = {answer.token_ids[0] for answer in engine_in_parts(engine, samplings, prompt)}
    assert found <= {int(token) for token in left}


# Grammars and thinking budgets


def test_answers_under_a_grammar_are_in_it(engine: Harness) -> None:
    """Those of the study greedily, and drawn ones at a temperature that would leave them at once."""
    needs(engine, "grammar")
    tried = [(grammar, pattern, 0.0) for grammar, pattern in STUDY]
    rng = random.Random(5)
    tried += [(*drawn(rng), 1.6) for _ in range(NUM_GRAMMARS)]
    requests = [
        engine.request(
            PROMPTS[index % 20],
            grammar=grammar,
            temperature=temperature,
            seed=index,
            max_tokens=400,
            min_tokens=3,
        )
        for index, (grammar, _, temperature) in enumerate(tried)
    ]
    places = engine.kind.num_places
    found = [
        answer
        for start in range(0, len(requests), places)
        for answer in engine.answers(*requests[start : start + places])
    ]
    for (grammar, pattern, _), answer in zip(tried, found, strict=True):
        assert answer.reason == "stop", (grammar, answer.chunks[-1])
        assert re.fullmatch(pattern, decode(answer.token_ids), re.DOTALL), grammar


def test_a_grammar_that_does_not_compile_is_refused(engine: Harness) -> None:
    needs(engine, "grammar")
    with pytest.raises(RefusedRequestError):
        engine.run(engine.engine.check_grammar("start: unknown_rule"))
    with pytest.raises(RefusedRequestError):
        engine.answer(PROMPTS[0], grammar="start: (")
    assert engine.answer(PROMPTS[0]).reason in ("stop", "length")


@pytest.mark.parametrize("limit", [0, 3, 10])
def test_a_thinking_budget_forces_the_end(engine: Harness, limit: int) -> None:
    needs(engine, "thinking_budget")
    begin, end = token_id("<think>"), token_id("</think>")
    prompt = encode([{"role": "user", "content": "What is 58 plus 67?"}], thinking=True)
    budget = ThinkingBudget(max_tokens=limit, begin=((begin,),), end=(end,))
    free = engine.answer(prompt, max_tokens=120).token_ids
    assert free.index(end) - free.index(begin) - 1 > 10, "the model thinks longer if it may"
    found = engine.answer(prompt, max_tokens=120, thinking_budget=budget).token_ids
    assert found.index(end) - found.index(begin) - 1 == limit
    assert found[: found.index(end)] == free[: found.index(end)]
    if "grammar" in engine.features:
        grammar = 'start: "<think>" /[^<]*/ "</think>" "done"'
        beside = engine.answer(prompt, max_tokens=120, thinking_budget=budget, grammar=grammar).token_ids
        assert beside.index(end) - beside.index(begin) - 1 <= limit
        assert decode(beside[beside.index(end) + 1 :]) == "done"

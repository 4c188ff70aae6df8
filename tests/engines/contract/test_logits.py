"""Penalties, bias, bans and ends change the logits as the definitions that are written here."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.weights.engines import Harness, Reference, decode

from plumbline.port.engine import RefusedRequestError

from .conftest import INFINITE, PROMPTS, STEPS, needs

# What changes the logits


def penalised(repetition: float, frequency: float, presence: float) -> Any:
    """Return the definitions of the three penalties: CTRL (2019) and the OpenAI reference."""

    def adjust(row: NDArray[np.float64], prompt: list[int], output: list[int]) -> NDArray[np.float64]:
        for token in {*prompt, *output}:
            row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
        for token, times in Counter(output).items():
            row[token] -= frequency * times + presence
        return row

    return adjust


@pytest.mark.parametrize(
    "penalties", [(1.3, 0.0, 0.0), (1.0, 1.1, 0.0), (1.0, 0.0, 1.4), (1.1, 0.4, -0.6)], ids=str
)
def test_penalties_follow_their_definitions(
    engine: Harness, reference: Reference, penalties: tuple[float, float, float]
) -> None:

    repetition, frequency, presence = penalties
    needs(engine, "repetition_penalty", "frequency_penalty", "presence_penalty")
    for prompt in PROMPTS[:3]:
        found = engine.answer(
            prompt,
            max_tokens=STEPS,
            ignore_eos=True,
            repetition_penalty=repetition,
            frequency_penalty=frequency,
            presence_penalty=presence,
        )
        assert found.token_ids == reference.greedy(prompt, STEPS, penalised(*penalties))


def test_bias_moves_and_bans_tokens(engine: Harness, reference: Reference) -> None:
    prompt = PROMPTS[1]
    plain = reference.greedy(prompt, 8)
    bias = {plain[0]: INFINITE, plain[2]: -100.0, 77: 9.5}

    def adjust(row: NDArray[np.float64], _prompt: list[int], _output: list[int]) -> NDArray[np.float64]:
        for token, value in bias.items():
            row[token] += value
        return row

    found = engine.answer(prompt, max_tokens=STEPS, ignore_eos=True, logit_bias=bias)
    assert found.token_ids == reference.greedy(prompt, STEPS, adjust)
    forced = engine.answer(prompt, max_tokens=5, ignore_eos=True, logit_bias={5: 100.0})
    assert forced.token_ids == [5] * 5


def test_only_allowed_ids_are_drawn(engine: Harness, reference: Reference) -> None:
    allowed = frozenset({9, 40, 41, 300, 301, 302, 703})

    def adjust(row: NDArray[np.float64], _prompt: list[int], _output: list[int]) -> NDArray[np.float64]:
        banned = np.ones(len(row), bool)
        banned[sorted(allowed)] = False
        row[banned] = INFINITE
        return row

    found = engine.answer(PROMPTS[0], max_tokens=STEPS, ignore_eos=True, allowed_token_ids=allowed)
    assert found.token_ids == reference.greedy(PROMPTS[0], STEPS, adjust)
    sampled = engine.answer(
        PROMPTS[0], max_tokens=40, ignore_eos=True, allowed_token_ids=allowed, temperature=2.0, seed=3
    )
    assert set(sampled.token_ids) <= allowed


def test_bad_words_never_come(engine: Harness, reference: Reference) -> None:
    needs(engine, "bad_words")
    plain = reference.greedy(PROMPTS[0], 12)
    banned = ((plain[0],), tuple(plain[3:5]))
    found = engine.answer(PROMPTS[0], max_tokens=30, ignore_eos=True, bad_words=banned).token_ids
    assert plain[0] not in found
    pairs = list(pairwise(found))
    assert banned[1] not in pairs


def test_banned_strings_never_come(engine: Harness, reference: Reference) -> None:
    needs(engine, "banned_strings", "grammar")
    text = decode(reference.greedy(PROMPTS[0], 12))
    word = max(re.findall(r"[a-z]+", text), key=len)
    for seed in range(4):
        found = engine.answer(
            PROMPTS[0], max_tokens=40, temperature=1.0, seed=seed, banned_strings=(word, "e")
        )
        assert "e" not in decode(found.token_ids).lower()
        assert word not in decode(found.token_ids).lower()


# Ends


def test_a_stop_id_ends_the_answer_and_belongs_to_it(engine: Harness, reference: Reference) -> None:
    plain = reference.greedy(PROMPTS[2], 12)
    stop = plain[6]
    found = engine.answer(PROMPTS[2], max_tokens=12, ignore_eos=True, stop_token_ids=frozenset({stop, 1000}))
    assert found.token_ids == plain[: plain.index(stop) + 1]
    assert found.reason == "stop"


def test_no_end_comes_before_min_tokens(engine: Harness, reference: Reference) -> None:
    eos = reference.eos
    short = next(p for p in PROMPTS if len(reference.greedy(p, 30, ends=True)) < 20)
    length = len(reference.greedy(short, 30, ends=True))

    def adjust(row: NDArray[np.float64], _prompt: list[int], output: list[int]) -> NDArray[np.float64]:
        if len(output) < length + 5:
            row[eos] = INFINITE
        return row

    found = engine.answer(short, max_tokens=length + 12, min_tokens=length + 5)
    assert found.token_ids == reference.greedy(short, length + 12, adjust, ends=True)


def test_ignore_eos_goes_on_to_the_limit(engine: Harness, reference: Reference) -> None:
    short = next(p for p in PROMPTS if len(reference.greedy(p, 30, ends=True)) < 20)
    found = engine.answer(short, max_tokens=40, ignore_eos=True)
    assert reference.eos in found.token_ids[:-1]
    assert (len(found.token_ids), found.reason) == (40, "length")
    beside_stop = engine.answer(
        short, max_tokens=40, ignore_eos=True, min_tokens=10, stop_token_ids=frozenset({1000})
    )
    assert beside_stop.token_ids == found.token_ids


def test_no_tokens_can_be_asked_for(engine: Harness) -> None:
    found = engine.answer(PROMPTS[0], max_tokens=0, prompt_logprobs=1)
    assert (found.token_ids, found.reason) == ([], "length")
    assert found.chunks[0].prompt_logprobs is not None
    assert engine.answer(PROMPTS[0], max_tokens=0).token_ids == []


def test_the_context_bounds_an_answer(engine: Harness) -> None:
    limit = engine.engine.info.max_model_len
    prompt = (PROMPTS[0] * (limit // len(PROMPTS[0]) + 1))[: limit - 9]
    found = engine.answer(prompt, max_tokens=None, ignore_eos=True)
    assert (len(prompt) + len(found.token_ids), found.reason) == (limit, "length")
    with pytest.raises(RefusedRequestError):
        engine.answer((prompt * 2)[: limit + 1])

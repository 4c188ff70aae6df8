"""Tokens and logprobs of an engine are those of transformers on the pocket model."""

from __future__ import annotations

import numpy as np
import pytest
from support.weights.engines import Answer, Harness, Reference, prompts

from .conftest import PROMPTS, STEPS, needs


@pytest.mark.parametrize("batch", [1, pytest.param(8, marks=pytest.mark.long), 32])
def test_greedy_tokens_are_those_of_the_reference(engine: Harness, reference: Reference, batch: int) -> None:
    """In batches of prompts of several lengths, each with a number of tokens of its own."""
    chosen = (PROMPTS + prompts(12, seed=2))[: max(batch, 10)]
    steps = [STEPS - index % 5 for index in range(len(chosen))]
    requests = [
        engine.request(prompt, max_tokens=number, ignore_eos=True)
        for prompt, number in zip(chosen, steps, strict=True)
    ]
    found: list[Answer] = []
    for start in range(0, len(requests), batch):
        found += engine.answers(*requests[start : start + batch])
    for prompt, number, answer in zip(chosen, steps, found, strict=True):
        assert answer.token_ids == reference.greedy(prompt, number)
        assert answer.reason == "length"
        assert [chunk.finish_reason for chunk in answer.chunks[:-1]] == [None] * (len(answer.chunks) - 1)


def test_an_answer_ends_with_its_end_of_sequence(engine: Harness, reference: Reference) -> None:
    for prompt, answer in zip(
        PROMPTS[:5], engine.answers(*(engine.request(p, max_tokens=200) for p in PROMPTS[:5])), strict=True
    ):
        assert answer.token_ids == reference.greedy(prompt, 200, ends=True)
        assert answer.reason == "stop"


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_logprobs_are_those_of_the_raw_distribution(engine: Harness, reference: Reference, top: int) -> None:
    """Whatever temperature, filters and penalties do to the draw."""
    for prompt in PROMPTS[:4]:
        answer = engine.answer(
            prompt, max_tokens=12, logprobs=top, temperature=0.8, seed=7, top_k=20, frequency_penalty=0.5
        )
        table = reference.logprobs([*prompt, *answer.token_ids])[len(prompt) - 1 :]
        assert len(answer.logprobs) == len(answer.token_ids)
        for token, entry, row in zip(answer.token_ids, answer.logprobs, table, strict=False):
            assert entry.token_id == token
            assert entry.logprob == pytest.approx(row[token], abs=engine.kind.tolerance)
            assert len(entry.top) == top
            best = np.sort(row)[::-1][:top]
            assert [value for _, value in entry.top] == pytest.approx(list(best), abs=engine.kind.tolerance)
            assert all(value == pytest.approx(row[t], abs=engine.kind.tolerance) for t, value in entry.top)


def test_logprobs_of_chosen_ids_come_besides(engine: Harness, reference: Reference) -> None:
    needs(engine, "logprob_token_ids")
    answer = engine.answer(PROMPTS[0], max_tokens=4, logprobs=2, logprob_token_ids=(700, 30))
    table = reference.logprobs([*PROMPTS[0], *answer.token_ids])[len(PROMPTS[0]) - 1 :]
    for entry, row in zip(answer.logprobs, table, strict=False):
        found = dict(entry.top)
        assert {700, 30} <= found.keys()
        assert found[700] == pytest.approx(row[700], abs=engine.kind.tolerance)


def test_prompt_logprobs_are_those_of_the_prompt(engine: Harness, reference: Reference) -> None:
    needs(engine, "prompt_logprobs")
    for prompt in PROMPTS[:4]:
        # Twice: the second time the prompt may be in a cache, and the logprobs are due all the same.
        for _ in range(2):
            answer = engine.answer(prompt, max_tokens=2, prompt_logprobs=3)
            entries = answer.chunks[0].prompt_logprobs
            assert entries is not None
            assert entries[0] is None
            assert len(entries) == len(prompt)
            table = reference.logprobs(prompt)
            for token, entry, row in zip(prompt[1:], entries[1:], table, strict=False):
                assert entry is not None
                assert entry.token_id == token
                assert entry.logprob == pytest.approx(row[token], abs=engine.kind.tolerance)
                assert [v for _, v in entry.top] == pytest.approx(
                    list(np.sort(row)[::-1][:3]), abs=engine.kind.tolerance
                )

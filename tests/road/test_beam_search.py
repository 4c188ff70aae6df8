"""Laws of beam search, over a toy model that is a table.

- A search that is wide enough finds what trying all sequences finds, in the same order.
- A narrow search is that of the definition, step by step.
- A failure ends all requests of the search.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import scripted_info

from plumbline.answer.dialects.kinds.plain import PLAIN
from plumbline.answer.road.beam_search import Beam, search_beams
from plumbline.answer.road.errors import GenerationError
from plumbline.answer.road.prepare import PreparedTurn
from plumbline.answer.structured_output.constraints import Constraint
from plumbline.answer.turn import TokenPrompt, Turn
from plumbline.engines.scripted import ScriptedEngine
from plumbline.port.engine import GenerateRequest, SamplingParams, TokenChunk, TokenLogprob

VOCAB, END = 4, 3
PROMPT = (0, 2)


def distribution(seed: int, tokens: tuple[int, ...]) -> list[float]:
    """The logprobs of the toy model after some tokens."""
    rng = random.Random(f"{seed}/{tokens}")
    weights = [rng.random() + 0.05 for _ in range(VOCAB)]
    return [math.log(weight / sum(weights)) for weight in weights]


class Table(ScriptedEngine):
    """An engine that knows the toy model."""

    def __init__(self, seed: int, fails_at: int = -1) -> None:
        self.num_requests = self.num_open = 0

        def script(request: GenerateRequest) -> list[TokenChunk]:
            self.num_requests += 1
            if self.num_requests == fails_at:
                return [TokenChunk(finish_reason="error", error="broken")]
            assert request.sampling.max_tokens == 1
            values = distribution(seed, tuple(request.prompt_token_ids))
            order = sorted(range(VOCAB), key=lambda token: -values[token])[: request.sampling.logprobs]
            entry = TokenLogprob(order[0], values[order[0]], tuple((token, values[token]) for token in order))
            return [TokenChunk(token_ids=(order[0],), logprobs=(entry,))]

        super().__init__(scripted_info(vocab_size=VOCAB, eos_token_ids=frozenset({END})), script)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        self.num_open += 1
        try:
            async for chunk in super().generate(request):
                yield chunk
        finally:
            self.num_open -= 1


async def search(engine: Table, width: int, length: int, penalty: float, **sampling: Any) -> list[Beam]:
    turn = Turn(prompt=TokenPrompt(PROMPT), sampling=SamplingParams(**sampling), num_choices=width)
    prepared = PreparedTurn(turn, PROMPT, Constraint(), PLAIN, PLAIN.frame(PROMPT, None))
    return await search_beams(engine, prepared, "r", max_tokens=length, length_penalty=penalty)


def scored(seed: int, tokens: tuple[int, ...], penalty: float, ends: bool) -> float:
    total = sum(distribution(seed, PROMPT + tokens[:i])[token] for i, token in enumerate(tokens))
    return float(total / (len(PROMPT) + len(tokens) - ends) ** penalty)


penalties = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0])


@given(st.integers(0, 10**6), st.integers(1, 3), penalties, st.booleans())
def test_a_wide_search_finds_what_trying_everything_finds(
    seed: int, length: int, penalty: float, ignore_eos: bool
) -> None:
    width = VOCAB**length
    found = asyncio.run(search(Table(seed), width, length, penalty, ignore_eos=ignore_eos))
    everything: dict[tuple[int, ...], float] = {}
    for size in range(1, length + 1):
        for tokens in itertools.product(range(VOCAB), repeat=size):
            ends = not ignore_eos and tokens[-1] == END
            early = not ignore_eos and END in tokens[:-1]
            if not early and (ends or size == length):
                everything[tokens] = scored(seed, tokens, penalty, ends)
    best = sorted(everything, key=lambda tokens: -everything[tokens])[:width]
    assert [beam.token_ids for beam in found] == best


@given(st.integers(0, 10**6), st.integers(1, 2), st.integers(1, 5), penalties)
def test_a_narrow_search_follows_the_definition(seed: int, width: int, length: int, penalty: float) -> None:
    open_: list[Any] = [()]
    complete: list[Any] = []
    for _ in range(length):
        longer: list[Any] = []
        for tokens in open_:
            values = distribution(seed, PROMPT + tokens)
            for token in sorted(range(VOCAB), key=lambda token: -values[token])[: 2 * width]:
                (complete if token == END else longer).append((*tokens, token))
        open_ = sorted(longer, key=lambda tokens: -scored(seed, tokens, penalty, False))[:width]
    every = [(scored(seed, tokens, penalty, tokens[-1] == END), tokens) for tokens in complete + open_]
    expected = [tokens for _, tokens in sorted(every, key=lambda pair: -pair[0])[:width]]
    found = asyncio.run(search(Table(seed), width, length, penalty))
    assert [beam.token_ids for beam in found] == expected
    assert [beam.ended for beam in found] == [tokens[-1] == END for tokens in expected]


async def test_a_failure_ends_all_requests_of_the_search() -> None:
    engine = Table(1, fails_at=4)
    with pytest.raises(GenerationError):
        await search(engine, 3, 5, 1.0)
    assert engine.num_open == 0

"""Search for the likeliest answers by beam search, with one request of one token per beam and step.

The definition is vLLM's: each step extends every beam by its 2 * width likeliest tokens and keeps the `width` best
beams. A beam that takes an end of sequence is complete. The score of a beam is its summed logprob divided by its length
(prompt included, end of sequence excluded) to the power of the length penalty. The engine's prefix cache holds what the
beams share, so a step computes little more than one block of each beam.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from plumbline.answer.road.errors import raise_if_failed
from plumbline.answer.road.prepare import PreparedTurn
from plumbline.port.engine import (
    Engine,
    GenerateRequest,
    MediaPrompt,
    RefusedRequestError,
    SamplingParams,
    TokenLogprob,
)

__all__ = ["MAX_BEAM_TOKENS", "Beam", "search_beams"]

T = TypeVar("T")

MAX_BEAM_TOKENS = 4096
"""The width times the output length that a request may search. Each of them costs a request of one token."""


@dataclass(frozen=True, slots=True)
class Beam:
    """One candidate answer."""

    token_ids: tuple[int, ...] = ()
    logprob: float = 0.0
    ended: bool = False
    """Whether its last token is an end of sequence."""

    def score(self, num_prompt_tokens: int, length_penalty: float) -> float:
        """Return the logprob, divided by a power of the length."""
        length = num_prompt_tokens + len(self.token_ids) - self.ended
        return float(self.logprob / length**length_penalty)


async def search_beams(
    engine: Engine,
    prepared: PreparedTurn,
    request_id: str,
    client: str = "",
    *,
    max_tokens: int,
    length_penalty: float,
) -> list[Beam]:
    """Return the best beams, as many as the turn has choices, best first.

    Raises:
        GenerationError, AbortedError, EngineFullError, EngineClosedError: from the engine.
    """
    width = prepared.turn.num_choices
    if max_tokens == 0:
        return [Beam()] * width
    placeholders = set(engine.info.modalities.values())
    ends = frozenset() if prepared.turn.sampling.ignore_eos else engine.info.eos_token_ids

    def best(beams: Sequence[Beam]) -> list[Beam]:
        size = len(prepared.prompt_token_ids)
        return sorted(beams, key=lambda beam: -beam.score(size, length_penalty))[:width]

    beams, complete = [Beam()], list[Beam]()
    for step in range(max_tokens):
        asked = [
            _likeliest(engine, prepared, beam, f"{request_id}-b{step}-{number}", client, 2 * width)
            for number, beam in enumerate(beams)
        ]
        extended: list[Beam] = []
        for beam, entry in zip(beams, await _together(asked), strict=True):
            for token_id, logprob in entry.top:
                if token_id in placeholders:
                    continue  # It would stand for an image in the prompt of the next step.
                longer = Beam((*beam.token_ids, token_id), beam.logprob + logprob, token_id in ends)
                (complete if longer.ended else extended).append(longer)
        beams, complete = best(extended), best(complete)
        if not beams:
            break
    return best([*complete, *beams])


async def _likeliest(
    engine: Engine, prepared: PreparedTurn, beam: Beam, request_id: str, client: str, count: int
) -> TokenLogprob:
    """Return the likeliest tokens after a beam."""
    request = GenerateRequest(
        request_id=request_id,
        prompt_token_ids=(*prepared.prompt_token_ids, *beam.token_ids),
        media=None
        if prepared.media is None
        else MediaPrompt((*prepared.media.token_ids, *beam.token_ids), prepared.media.items),
        adapter=prepared.turn.adapter,
        sampling=SamplingParams(temperature=0.0, max_tokens=1, logprobs=count),
        priority=prepared.turn.priority,
        cache_salt=prepared.turn.cache_salt,
        client=client,
        patient=bool(beam.token_ids),  # A search that has begun is not refused.
    )
    found: TokenLogprob | None = None
    async with aclosing(engine.generate(request)) as chunks:
        async for chunk in chunks:
            raise_if_failed(chunk)
            found = found or (chunk.logprobs[0] if chunk.logprobs else None)
    if found is None:
        raise RefusedRequestError(
            "'use_beam_search' is not supported: this engine does not return logprobs",
            param="use_beam_search",
        )
    return found


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all at once; the first failure, or a cancellation, ends all of them."""
    tasks = [asyncio.create_task(item) for item in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

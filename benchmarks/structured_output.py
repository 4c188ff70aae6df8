"""Measure the cost of a grammar: tokens per second at batch 8, free text and a JSON schema in turn.

Both generate the same number of tokens from the same prompts with the same sampling, A B A B … in one process, so that
load on the machine affects both. The cost of a mask alone is measured with a matcher that accepts the same tokens.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np

from plumbline.answer.structured_output.grammar.builder import GrammarBuilder
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.engines.constraints.grammar import LarkCompiler, num_words
from plumbline.port.engine import Engine, GenerateRequest, SamplingParams
from plumbline.server.loading.engines import vocabulary
from plumbline.server.loading.served_model import ServedModel, load
from plumbline.server.settings import Settings

__all__ = ["measure"]

BATCH = 8
MAX_TOKENS = 160

SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 100,  # More than fits: every request is as long as the limit.
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "city": {"enum": ["Berlin", "Lagos", "Lima", "Oslo", "Tokyo"]},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        },
        "required": ["name", "age", "city", "tags"],
        "additionalProperties": False,
    },
}


async def generate(
    engine: Engine, prompts: list[list[int]], grammar: str | None, name: str
) -> tuple[float, list[Any]]:
    """Generate one batch; returns tokens per second and the tokens."""

    async def one(index: int) -> list[int]:
        sampling = SamplingParams(
            temperature=1.0, seed=index, max_tokens=MAX_TOKENS, ignore_eos=True, grammar=grammar
        )
        request = GenerateRequest(
            request_id=f"{name}-{index}", prompt_token_ids=prompts[index], sampling=sampling
        )
        tokens: list[int] = []
        async with aclosing(engine.generate(request)) as chunks:
            async for chunk in chunks:
                tokens += chunk.token_ids
        return tokens

    started = time.perf_counter()
    found = await asyncio.gather(*(one(index) for index in range(len(prompts))))
    return sum(map(len, found)) / (time.perf_counter() - started), found


async def _rounds(model: ServedModel, grammar: str, rounds: int) -> dict[str, Any]:
    engine, tokenizer = model.engine, model.renderer.tokenizer
    prompts = [tokenizer.encode_text(f"List {index + 3} people as JSON.\n") for index in range(BATCH)]
    await engine.start()
    speeds: dict[str, list[float]] = {"free": [], "json_schema": []}
    tokens: list[Any] = []
    for number in range(rounds + 1):
        for name, constraint in (("free", None), ("json_schema", grammar)):
            speed, found = await generate(engine, prompts, constraint, f"{name}-{number}")
            assert all(len(each) == MAX_TOKENS for each in found), "a request ended early"
            if number:  # The first round warms up.
                speeds[name].append(speed)
            tokens = found
    await engine.stop()
    ratios = [
        constrained / free for free, constrained in zip(speeds["free"], speeds["json_schema"], strict=True)
    ]
    return {
        "batch": BATCH,
        "tokens": BATCH * MAX_TOKENS,
        "rounds": rounds,
        "free_tokens_per_second": statistics.median(speeds["free"]),
        "json_schema_tokens_per_second": statistics.median(speeds["json_schema"]),
        "json_schema_ratio_to_free": statistics.median(ratios),
        "json_schema_ratio_to_free_range": [min(ratios), max(ratios)],
        **await _masks(model, grammar, tokens),
    }


async def _masks(model: ServedModel, grammar: str, answers: list[list[int]]) -> dict[str, float]:
    """Measure computing a mask and accepting a token, in microseconds."""
    info = model.engine.info
    compiler = LarkCompiler(vocabulary(model.renderer.tokenizer, info.eos_token_ids, info.vocab_size))
    started = time.perf_counter()
    await compiler.compile(grammar)
    compiled = time.perf_counter() - started
    row = np.zeros(num_words(info.vocab_size), dtype=np.int32)
    masks: list[float] = []
    accepts: list[float] = []
    for tokens in answers:
        matcher = await compiler.compile(grammar)
        for token in tokens:
            before = time.perf_counter()
            matcher.mask_into(row)
            between = time.perf_counter()
            matcher.accept(token)
            masks.append(between - before)
            accepts.append(time.perf_counter() - between)
    return {
        "compile_ms": compiled * 1e3,
        "mask_us": statistics.median(masks) * 1e6,
        "mask_us_mean": statistics.mean(masks) * 1e6,
        "mask_us_p99": statistics.quantiles(masks, n=100)[98] * 1e6,
        "accept_us": statistics.median(accepts) * 1e6,
    }


def measure(folder: Path, *, rounds: int = 5) -> dict[str, Any]:
    """Measure the model in `folder`; returns one row."""
    model = load(Settings(models=(("", str(folder)),), enable_prefix_caching=False))
    tokenizer: TextTokenizer = model.renderer.tokenizer
    builder = GrammarBuilder(tokenizer.added, tokenizer.special_ids)
    return asyncio.run(_rounds(model, builder.build(builder.json(SCHEMA)), rounds))


if __name__ == "__main__":
    print(json.dumps(measure(Path(__file__).parent.parent / "src/plumbline/pocket/model"), indent=1))

"""Measure what a token of a long prompt costs on our own engine, in CPU time of one core.

    python -m benchmarks.long_prompts --to result.json

The engine runs in this process, bound to one core, and computes new prompts of each length, with answers of one token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from benchmarks.serving.vllm_engine import SHAPES, make
from plumbline.port.engine import Engine, GenerateRequest, SamplingParams
from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings

__all__ = ["measure"]

LENGTHS = (1000, 4000, 16000)
_ids = count()
_choose = random.Random(0)


def measure(shape: str, lengths: Sequence[int] = LENGTHS, rounds: int = 3) -> list[dict[str, Any]]:
    """Return the median of tokens per second of each length, and its cost beside that of the first.

    Args:
        shape: of `SHAPES`.
        lengths: tokens of a prompt.
        rounds: how often each is measured.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(make(shape, Path(folder)), shape, lengths, rounds))


async def _measure(model: Path, shape: str, lengths: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    given = Settings(
        models=(("", str(model)),),
        engine="plumbline",
        max_model_len=max(lengths) + 16,
        kv_cache_bytes=1 << 30,
    )
    engine = load(given).engine
    await engine.start()
    await _seconds(engine, 100)
    found = {length: [await _seconds(engine, length) for _ in range(rounds)] for length in lengths}
    await engine.stop()
    costs = {length: statistics.median(seconds) / length for length, seconds in found.items()}
    return [
        {
            "model": shape,
            "prompt_tokens": length,
            "tokens_per_second": round(1 / cost, 1),
            "cost_beside_first": round(cost / costs[lengths[0]], 2),
        }
        for length, cost in costs.items()
    ]


async def _seconds(engine: Engine, length: int) -> float:
    """Return the CPU time of a new prompt."""
    ids = [_choose.randrange(300, engine.info.vocab_size) for _ in range(length)]
    sampling = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    began = time.process_time()
    async for _ in engine.generate(
        GenerateRequest(request_id=str(next(_ids)), prompt_token_ids=ids, sampling=sampling)
    ):
        pass
    return time.process_time() - began


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_prompts", description=__doc__)
    parser.add_argument("--shape", default="155 M", choices=list(SHAPES))
    parser.add_argument("--lengths", nargs="*", type=int, default=list(LENGTHS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    result = {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment()}
    result["long_prompts"] = measure(options.shape, options.lengths, options.rounds)
    print(json.dumps(result["long_prompts"], indent=1))
    if options.to is not None:
        options.to.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

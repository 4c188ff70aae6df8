"""Compare our own engine with llama.cpp's on GGUF files, by the tokens per second of one core.

    python -m benchmarks.gguf_engines --kinds Q8_0 Q4_K_M --to result.json

`--engine auto` chooses by what this shows. Both engines run in this process, bound to one core, with their default
options. They are measured in turn, A B A B …, by the CPU time of the process, so other load of the machine matters
little. llama-cpp-python rounds the weights. Requests share nothing, and answers are random.
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
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from benchmarks.serving.vllm_engine import SHAPES, make
from plumbline.pocket.to_gguf import quantise, write
from plumbline.port.engine import Engine, GenerateRequest, SamplingParams
from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings

__all__ = ["measure"]

KINDS = ("F32", "F16", "Q8_0", "Q4_0", "Q6_K", "Q5_K_M", "Q4_K_M")
ENGINES = ("plumbline", "llama_cpp")
LOADS = {
    "concurrency 1": (1, 16, 32),
    "concurrency 8": (8, 16, 16),
    "concurrency 32": (32, 16, 8),
    "prompt of 700": (1, 700, 1),
}
"""Requests at a time, tokens of a prompt, and tokens of an answer."""
_CONTEXT = 1024
_ids = count()
_choose = random.Random(0)


def measure(shapes: Sequence[str], kinds: Sequence[str] = KINDS, rounds: int = 5) -> list[dict[str, Any]]:
    """Return medians and ranges for each model, type of weights, load and engine.

    Args:
        shapes: names of `SHAPES`.
        kinds: types of weights.
        rounds: how often each is measured.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            whole = Path(folder) / f"{shape.replace(' ', '')}.gguf"
            write(make(shape, Path(folder)), whole)
            for kind in kinds:
                file = whole
                if kind != "F32":
                    file = whole.with_suffix(f".{kind}.gguf")
                    quantise(whole, file, kind)
                for row in asyncio.run(_measure_file(file, rounds)):
                    rows.append({"model": shape, "weights": kind, **row})
                    print(json.dumps(rows[-1]), flush=True)
    return rows


async def _measure_file(file: Path, rounds: int) -> list[dict[str, Any]]:
    engines: dict[str, Engine] = {}
    for name in ENGINES:
        given = Settings(models=(("", str(file)),), engine=name, max_model_len=_CONTEXT)  # type: ignore[arg-type]
        engines[name] = load(given).engine
        await engines[name].start()
        await _tokens(engines[name], 2, 16, 16)
    rows = [row for load_name in LOADS for row in [await _measure_load(engines, load_name, rounds)]]
    for engine in engines.values():
        await engine.stop()
    return rows


async def _measure_load(engines: dict[str, Engine], name: str, rounds: int) -> dict[str, Any]:
    requests, prompt, answer = LOADS[name]
    rates: dict[str, list[float]] = {each: [] for each in engines}
    for _ in range(rounds):
        for each, engine in engines.items():
            began = time.process_time()
            tokens = await _tokens(engine, requests, prompt, answer)
            tokens = tokens if answer > 1 else prompt
            rates[each].append(tokens / (time.process_time() - began))
    ours, theirs = rates.values()
    return {
        "load": name,
        "unit": "tokens/s of one core",
        **{each: round(statistics.median(found), 1) for each, found in rates.items()},
        "ratio": round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 2),
        **{f"range_{each}": [round(min(found), 1), round(max(found), 1)] for each, found in rates.items()},
    }


async def _tokens(engine: Engine, requests: int, prompt: int, answer: int) -> int:
    """Answer so many requests at a time, and return the tokens of their answers."""
    return sum(await asyncio.gather(*(_one(engine, prompt, answer) for _ in range(requests))))


async def _one(engine: Engine, prompt: int, answer: int) -> int:
    ids = [_choose.randrange(300, engine.info.vocab_size) for _ in range(prompt)]
    sampling = SamplingParams(temperature=1.0, seed=next(_ids), max_tokens=answer, ignore_eos=True)
    request = GenerateRequest(request_id=str(next(_ids)), prompt_token_ids=ids, sampling=sampling)
    return sum([len(chunk.token_ids) async for chunk in engine.generate(request)])


def rows_by_load(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table of ratios."""
    yield "| model, weights | " + " | ".join(LOADS) + " |"
    yield "|---|" + "---|" * len(LOADS)
    names = dict.fromkeys((row["model"], row["weights"]) for row in rows)
    for model, kind in names:
        found = [row for row in rows if (row["model"], row["weights"]) == (model, kind)]
        cells = (f"{row['plumbline']:,.0f} / {row['llama_cpp']:,.0f} ({row['ratio']})" for row in found)
        yield f"| {model}, {kind} | {' | '.join(cells)} |"


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gguf_engines", description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=["pocket", "155 M"], choices=list(SHAPES))
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    result = {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment()}
    result["gguf_engines"] = measure(options.shapes, options.kinds, options.rounds)
    print("\n".join(rows_by_load(result["gguf_engines"])))
    if options.to is not None:
        options.to.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

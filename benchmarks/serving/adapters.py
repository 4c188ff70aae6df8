"""Measure what adapters cost a decode step of our engine on a CPU, without HTTP.

    python -m benchmarks.serving.adapters --to result.json

All engines have the same random weights and are measured in turn. Requests have no adapter in an engine without places
for them, none in one with places, all the same one, or each another one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import environment
from benchmarks.serving.vllm_engine import SHAPES
from plumbline.engines.native.adapter_table import AdapterTable, PreparedAdapter
from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.models import describe, random_model
from plumbline.engines.native.runner import ModelRunner
from plumbline.port.engine import GenerateRequest, SamplingParams
from plumbline_kernels.cpu.library import load
from plumbline_kernels.lora import padded_rank

KINDS = ("no places", "without an adapter", "one adapter", "adapters of their own")
MOST = 8


def build(shape: str, rank: int, places: bool) -> EngineCore:
    """Make an engine of random weights, with `MOST` random adapters of all layers if it has places for them."""
    config = {
        "model_type": "qwen3",
        "max_position_embeddings": 1024,
        "torch_dtype": "bfloat16",
        **SHAPES[shape],
    }
    model = random_model(describe(config), library=load())
    limits = EngineConfig(
        max_model_len=512, num_blocks=512, max_num_seqs=32, speculation=False, enable_prefix_caching=False
    )
    table = AdapterTable(model, capacity=MOST, max_rank=rank) if places else None
    runner = ModelRunner(
        model, num_blocks=limits.num_blocks, block_size=limits.block_size, device=torch.device("cpu")
    )
    core = EngineCore(limits, runner, frozenset())
    if table is not None:
        for number in range(MOST):
            core.adapters[str(number)] = table.put(_random(model, rank, number))
    return core


def _random(model: Any, rank: int, seed: int) -> PreparedAdapter:
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for place in model.places:
        stored = padded_rank(rank * len(place.names))
        down = torch.randn(stored, place.inputs, generator=generator) * 0.01
        up = torch.randn(sum(place.widths), stored, generator=generator) * 0.01
        parts.append(
            (place.layer.adapters, place.layer.adapters.prepare(down.to(model.dtype), up.to(model.dtype)))
        )
    return PreparedAdapter(parts, 0)


def tokens_per_second(core: EngineCore, adapters: list[str | None], length: int) -> float:
    """Decode one request for each adapter, and return the tokens per second after the prompts."""
    for number, adapter in enumerate(adapters):
        sampling = SamplingParams(temperature=0.0, max_tokens=length)
        core.add(
            GenerateRequest(
                request_id=str(number), prompt_token_ids=[5, 6, 7], adapter=adapter, sampling=sampling
            )
        )
    core.step()
    began, before = time.perf_counter(), core.generation_tokens
    while core.has_work:
        core.step()
    return (core.generation_tokens - before) / (time.perf_counter() - began)


def measure(shape: str, rank: int, rounds: int) -> list[dict[str, Any]]:
    """Return the median tokens per second of each kind, and of the ratios to an engine without places."""
    engines = {places: build(shape, rank, places) for places in (False, True)}
    rows = []
    for concurrency in (1, 8):
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind in KINDS:
                own = [str(number) for number in range(concurrency)]
                given = {"one adapter": ["0"] * concurrency, "adapters of their own": own}
                adapters = given.get(kind, [None] * concurrency)
                found[kind].append(tokens_per_second(engines[kind != KINDS[0]], adapters, 48))
        for kind, values in found.items():
            ratios = [value / base for value, base in zip(values, found[KINDS[0]], strict=True)]
            rows.append({
                "model": shape,
                "rank": rank,
                "concurrency": concurrency,
                "requests": kind,
                "tokens_per_second": round(statistics.median(values)),
                "ratio": round(statistics.median(ratios), 2),
            })  # fmt: skip
    return rows


def main() -> None:
    """Measure and print, or write with `--to`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure("155 M", 16, options.rounds)
    result = {"date": datetime.now(UTC).date().isoformat(), "environment": environment(), "adapters": rows}
    if options.to is not None:
        options.to.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    for row in rows:
        print("  ".join(str(value) for value in row.values()))


if __name__ == "__main__":
    main()

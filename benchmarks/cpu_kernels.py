"""Measure the compiled kernels of a CPU: our engine with tiles, without them and on torch, and transformers'.

    python -m benchmarks.cpu_kernels --to result.json

The engines run in this process and are measured in turn, A B C A B C …, with random weights in bf16. A prompt is new in
each round, so no cache helps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.environment import environment
from benchmarks.serving.vllm_engine import POCKET
from plumbline.port.engine import Engine, GenerateRequest, SamplingParams
from plumbline.server.loading.native import native_model as model
from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings
from plumbline_kernels.cpu.library import load as compiled_kernels

__all__ = ["measure"]

_COMMON: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 1024,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen 3, 0.2 B": {
        "model_type": "qwen3",
        "num_hidden_layers": 14,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "Qwen 3.5, 0.2 B": {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 12,
        "intermediate_size": 3584,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
    },
    "Granite 4 H, 0.2 B": {
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 12,
        "layer_types": (["linear_attention"] * 5 + ["full_attention"]) * 2,
        "shared_intermediate_size": 2048,
        "num_local_experts": 0,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "mamba_n_heads": 32,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
    },
}
"""The layers of releases, fewer of them and with few tokens: other engines have the same output layer."""
ENGINES: dict[str, dict[str, Any]] = {
    "compiled": {"engine": "plumbline"},
    "without tiles": {"engine": "plumbline"},
    "torch": {"engine": "plumbline", "compile": "off"},
    "transformers": {"engine": "transformers"},
}
"""Options of the server. A processor without AMX has no tiles."""
LOADS = {"decodes of 1": (1, 16, 25), "decodes of 16": (16, 16, 25), "prompt of 1,000": (1, 1000, 1)}
"""Requests at a time, tokens of a prompt and of an answer."""
_ids = count()
_choose = random.Random(0)


def measure(
    shapes: Sequence[str] = tuple(SHAPES), engines: Sequence[str] = tuple(ENGINES), rounds: int = 3
) -> list[dict[str, Any]]:
    """Return the medians of tokens per second for each shape, load and engine.

    Args:
        shapes: names of `SHAPES`.
        engines: names of `ENGINES`; others are compared with the first.
        rounds: how often each is measured.
    """
    with tempfile.TemporaryDirectory() as folder:
        return [
            row
            for name in shapes
            for row in asyncio.run(_measure(name, _made(SHAPES[name], Path(folder) / name), engines, rounds))
        ]


def _made(shape: dict[str, Any], target: Path) -> Path:
    import torch
    import transformers

    from plumbline.pocket.folder import write_text_model

    write_text_model(POCKET, target)
    torch.manual_seed(0)
    made: Any = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**_COMMON, **shape)
    )
    made.bfloat16().save_pretrained(target)
    return target


def _engine(kind: str, folder: Path) -> Engine:
    """Return an engine; the kernels are compiled without tiles for one of them."""
    flags = ["-mno-amx-bf16"] if kind == "without tiles" else []
    given = Settings(models=(("", str(folder)),), max_model_len=2048, kv_cache_bytes=1 << 29, **ENGINES[kind])
    with patch.object(model, "compiled_kernels", partial(compiled_kernels, *flags)):
        return load(given).engine


async def _measure(name: str, folder: Path, kinds: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    engines = {kind: _engine(kind, folder) for kind in kinds}
    for engine in engines.values():
        await engine.start()
        await _seconds(engine, 1, 16, 4)
    rows = []
    for load_name, (together, prompt, answer) in LOADS.items():
        found: dict[str, list[float]] = {kind: [] for kind in engines}
        for _ in range(rounds):
            for kind, engine in engines.items():
                found[kind].append(await _seconds(engine, together, prompt, answer))
        tokens = together * (prompt if answer == 1 else answer)
        rows.append({
            "model": name,
            "load": load_name,
            "tokens_per_second": {
                kind: round(tokens / statistics.median(seconds), 1) for kind, seconds in found.items()
            },
            "times_as_fast_as": {
                kind: [round(b / a, 2) for a, b in zip(found[kinds[0]], found[kind], strict=True)]
                for kind in kinds[1:]
            },
        })  # fmt: skip
    for engine in engines.values():
        await engine.stop()
    return rows


async def _seconds(engine: Engine, together: int, prompt: int, answer: int) -> float:
    """Return how long requests take that begin at the same time."""

    async def one() -> None:
        ids = [_choose.randrange(300, 4000) for _ in range(prompt)]
        sampling = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)
        request = GenerateRequest(request_id=str(next(_ids)), prompt_token_ids=ids, sampling=sampling)
        async for _ in engine.generate(request):
            pass

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(together)))
    return time.perf_counter() - began


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_kernels", description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
    }
    result["cpu_kernels"] = measure(options.shapes, options.engines, options.rounds)
    print(json.dumps(result["cpu_kernels"], indent=1))
    if options.to is not None:
        options.to.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

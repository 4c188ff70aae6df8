"""Measure tokens per second of our server on a GPU, with our engine and with transformers', on the same random weights.

    python -m benchmarks.gpu.serving --to result.json

The servers have their default options and run one after the other, in each round. Greedy answers of chat completions
are streamed and do not end before their last token. `share` is the time in which the GPU could read the weights once
for each step at its bandwidth, as a part of the time that the steps took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.environment import environment
from benchmarks.roofline.devices import DEVICES
from benchmarks.roofline.shapes import SHAPES, ModelShape
from benchmarks.serving.processes import RunningServer, free_port, started
from benchmarks.serving.vllm_engine import POCKET, tokens_per_second
from plumbline.pocket.folder import text_config, write_text_model

__all__ = ["measure"]

CONCURRENCIES = (1, 8, 64, 256)
TOKENS = 128
ENGINES = ("plumbline", "transformers")
_MODEL = "bench"


def make(shape: ModelShape | None, folder: Path) -> Path:
    """Write a dense model of a shape with random weights, or the pocket model."""
    target = folder / (shape.name.replace(" ", "") if shape else "pocket")
    write_text_model(POCKET, target)
    if shape is None:
        return target
    config = Qwen3Config(**text_config(POCKET))
    sizes = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 8192,
    }
    for name, value in sizes.items():
        setattr(config, name, value)
    config.layer_types = ["full_attention"] * shape.layers
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(target)
    del model
    torch.cuda.empty_cache()
    return target


@contextmanager
def serving(engine: str, model: Path) -> Iterator[RunningServer]:
    """Run our server with an engine until the block ends."""
    port = free_port()
    command = [sys.executable, "-m", "plumbline", "serve", "--model", str(model)]
    command += ["--engine", engine, "--served-model-name", _MODEL, "--port", str(port)]
    began = time.perf_counter()
    with started(command, port, patience=180) as process:
        yield RunningServer(
            engine, f"http://127.0.0.1:{port}", _MODEL, process.pid, time.perf_counter() - began
        )


def measure(
    shapes: Sequence[ModelShape | None], engines: Sequence[str], concurrencies: Sequence[int], rounds: int
) -> Iterator[dict[str, Any]]:
    """Yield the medians for each model, engine and concurrency."""
    name = torch.cuda.get_device_name()
    bandwidth = next((device.bandwidth for device in DEVICES if device.name in name), None)
    for shape in shapes:
        with tempfile.TemporaryDirectory() as folder:
            model = make(shape, Path(folder))
            size = sum(each.stat().st_size for each in model.glob("*.safetensors"))
            runs: dict[tuple[str, int], list[float]] = {}
            ready: dict[str, float] = {}
            for _ in range(rounds):
                for engine in engines:
                    with serving(engine, model) as server:
                        ready[engine] = round(server.seconds_to_ready, 1)
                        for concurrency in concurrencies:
                            # The first answers compile kernels.
                            asyncio.run(tokens_per_second(server, concurrency, concurrency, 8))
                            found = asyncio.run(tokens_per_second(server, concurrency, concurrency, TOKENS))
                            print(
                                f"{engine} {concurrency}: {found:.0f} tokens/s", file=sys.stderr, flush=True
                            )
                            runs.setdefault((engine, concurrency), []).append(found)
            for (engine, concurrency), found in runs.items():
                rate = statistics.median(found)
                row = {
                    "model": shape.name if shape else "pocket",
                    "engine": engine,
                    "concurrency": concurrency,
                    "tokens_per_second": round(rate, 1),
                    "range": [round(min(found), 1), round(max(found), 1)],
                    "seconds_to_ready": ready[engine],
                }
                if bandwidth:
                    row["share"] = round(size / bandwidth * rate / concurrency, 3)
                print(json.dumps(row), flush=True)
                yield row


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.serving", description=__doc__)
    dense = {"pocket": None} | {shape.name: shape for shape in SHAPES if not shape.experts}
    parser.add_argument("--shapes", nargs="*", default=list(dense), choices=list(dense))
    parser.add_argument("--concurrencies", nargs="*", type=int, default=list(CONCURRENCIES))
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        "environment": environment(),
    }
    result["serving"] = list(
        measure(
            [dense[name] for name in options.shapes], options.engines, options.concurrencies, options.rounds
        )
    )
    if options.to is not None:
        options.to.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

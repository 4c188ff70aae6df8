"""Try tiles and launch options of the kernels on a GPU, and print the fastest: `python -m benchmarks.gpu.tune`.

Each entry of `tuning.json` is tried with the operations that use it. A candidate's score is the mean of the logarithms
of its times over those of the entry that is there now, so each operation counts alike. Processes compile all
candidates at first, because compiling takes most of the time, and Triton keeps what it compiled. The result is
written with `--to`; `tuning.json` is edited by hand, because the entries also have to pass the gates of other
generations (tests/kernels/test_compile.py).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.further import LATENT, NET, mixers, narrow_operations
from benchmarks.gpu.operations import KernelCall, Maker, operations
from benchmarks.gpu.timing import gpu_seconds
from benchmarks.roofline.shapes import LOADS, SHAPES, ModelShape, StepLoad
from plumbline_kernels._backend import tuning

__all__ = ["CANDIDATES"]

CANDIDATES: dict[str, dict[str, tuple[int, ...]]] = {
    "attention_decode_64": {"tile": (32, 64, 128), "num_warps": (2, 4, 8), "num_stages": (2, 3, 4)},
    "attention_decode_128": {"tile": (32, 64, 128), "num_warps": (2, 4, 8), "num_stages": (2, 3, 4)},
    "attention_prefill_64": {
        "block_m": (64, 128),
        "tile": (32, 64, 128),
        "num_warps": (4, 8),
        "num_stages": (2, 3),
    },
    "attention_prefill_128": {
        "block_m": (64, 128),
        "tile": (32, 64, 128),
        "num_warps": (4, 8),
        "num_stages": (2, 3),
    },
    "narrow_decode": {
        "block_n": (16, 32, 64, 128),
        "block_k": (128, 256),
        "num_warps": (4, 8),
        "num_stages": (2, 3, 4),
    },
    "narrow_prefill": {
        "block_n": (32, 64, 128),
        "block_k": (64, 128),
        "num_warps": (4, 8),
        "num_stages": (2, 3),
    },
    "narrow_widen": {"block_n": (8, 16, 32), "block_k": (128, 256, 512), "num_warps": (4, 8)},
    "experts_narrow_decode": {
        "block_n": (32, 64, 128),
        "block_k": (64, 128, 256),
        "num_warps": (4, 8),
        "num_stages": (2, 3, 4),
    },
    "experts_narrow_prefill": {
        "block_m": (64, 128),
        "block_n": (64, 128),
        "block_k": (64, 128),
        "num_warps": (4, 8),
        "num_stages": (2, 3),
    },
    "experts_decode": {
        "block_n": (32, 64, 128),
        "block_k": (64, 128, 256),
        "num_warps": (4, 8),
        "num_stages": (3, 4, 5),
    },
    "experts_prefill": {
        "block_m": (64, 128),
        "block_n": (128, 256),
        "block_k": (32, 64),
        "num_warps": (4, 8),
        "num_stages": (3, 4),
    },
    "latent_attention": {
        "block_m": (16, 32, 64),
        "tile": (16, 32, 64),
        "num_warps": (4, 8),
        "num_stages": (1, 2, 3),
    },
    "lora_decode": {
        "block_n": (64, 128),
        "block_k": (64, 128, 256),
        "num_warps": (2, 4),
        "num_stages": (2, 3, 4),
    },
    "lora_prefill": {"block_m": (64, 128), "block_n": (64, 128), "num_warps": (4, 8), "num_stages": (2, 3)},
    "rope_kv": {"heads": (4, 8, 16), "num_warps": (1, 2, 4)},
    "sample_threshold": {"block": (2048, 4096, 8192), "num_warps": (8, 16, 32)},
    "sample_draw": {"block": (512, 1024, 2048), "num_warps": (2, 4, 8)},
    "delta_rule": {"block_v": (16, 32, 64), "num_warps": (1, 2, 4)},
    "silu_mul": {"block": (512, 1024, 2048), "num_warps": (2, 4, 8)},
    "bitmask": {"block": (1024, 2048, 4096), "num_warps": (2, 4, 8)},
}
"""The values that are tried of each entry."""
DECODES, PROMPTS = LOADS[:4], LOADS[4:]
_USES = {
    "attention_decode_64": ("attention decode", DECODES),
    "attention_decode_128": ("attention decode", DECODES),
    "attention_prefill_64": ("attention prefill", PROMPTS),
    "attention_prefill_128": ("attention prefill", PROMPTS),
    "narrow_decode": ("narrow linear", DECODES[:2]),
    "narrow_prefill": ("narrow linear", DECODES[2:3]),
    "narrow_widen": ("narrow linear", PROMPTS[:1]),
    "experts_narrow_decode": ("narrow experts", DECODES[:3]),
    "experts_narrow_prefill": ("narrow experts", PROMPTS[:1]),
    "experts_decode": ("experts", DECODES[:3]),
    "experts_prefill": ("experts", PROMPTS),
    "latent_attention": ("latent attention", (*DECODES, PROMPTS[0])),
    "lora_decode": ("lora_add", DECODES[:2]),
    "lora_prefill": ("lora_add", PROMPTS),
    "rope_kv": ("rope_kv_write", (DECODES[3], PROMPTS[0])),
    "sample_threshold": ("sample", DECODES),
    "sample_draw": ("sample", DECODES),
    "delta_rule": ("delta rule", DECODES),
    "silu_mul": ("silu_mul", (DECODES[3], PROMPTS[0])),
    "bitmask": ("apply_bitmask", DECODES[2:]),
}
"""The operation and the loads that an entry is tried with."""


def uses(make: Maker, name: str) -> Iterator[tuple[str, KernelCall]]:
    """Yield the operations that an entry is tried with, by their labels."""
    wanted, loads = _USES[name]
    steps: list[tuple[ModelShape | None, StepLoad]] = [(shape, load) for shape in SHAPES for load in loads]
    for shape, load in [*steps, *((None, load) for load in loads)]:
        found = (
            mixers(make, LATENT, NET, load)
            if shape is None
            else itertools.chain(operations(make, shape, load), narrow_operations(make, shape, load))
        )
        for each in found:
            size = name.rpartition("_")[2]
            if each.name.startswith(wanted) and (
                not size.isdigit() or (shape is not None and int(size) == shape.head_dim)
            ):
                yield f"{shape.name if shape else 'mixers'}, {load.name}, {each.name}", each


def options_of(name: str) -> list[dict[str, int]]:
    """Return the candidates of an entry, the present one first."""
    lists = CANDIDATES[name]
    given = dict(tuning(name))
    found = [given | dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    return [given] + [each for each in found if each != given]


def compile_share(name: str, index: int, count: int) -> None:
    """Compile every `count`-th candidate, by running it once."""
    make = Maker(torch.device("cuda"), torch.bfloat16)
    present, candidates = dict(tuning(name)), options_of(name)[index::count]
    for _, each in uses(make, name):
        for candidate in candidates:
            tuning(name).update(candidate)
            _tried(each, 0)
        tuning(name).update(present)


def _tried(each: KernelCall, runs: int) -> float:
    """Return the seconds of an operation; infinite if it does not fit the GPU."""
    try:
        if not runs:
            each.call(*each.arguments)
            torch.cuda.synchronize()
            return 0.0
        return gpu_seconds(lambda: each.call(*each.arguments), runs)
    except Exception as error:
        if "out of resource" not in str(error) and "out of memory" not in str(error):
            print(f"  {each.name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return math.inf


def measured(name: str, until: float) -> list[dict[str, Any]]:
    """Return the candidates of an entry with their times, the best first."""
    make = Maker(torch.device("cuda"), torch.bfloat16)
    candidates = options_of(name)
    present = candidates[0]
    times: list[dict[str, float]] = [{} for _ in candidates]
    for label, each in uses(make, name):
        for candidate, found in zip(candidates, times, strict=True):
            if time.monotonic() < until:
                tuning(name).update(candidate)
                found[label] = _tried(each, 9)
        tuning(name).update(present)
    rows = []
    for candidate, found in zip(candidates, times, strict=True):
        known = [label for label in found if label in times[0]]
        ratios = [math.log(found[label] / times[0][label]) for label in known]
        score = math.exp(sum(ratios) / len(ratios)) if ratios and math.inf not in found.values() else math.inf
        rows.append({"options": candidate, "score": round(score, 4)})
        rows[-1]["us"] = {label: round(found[label] * 1e6, 1) for label in known}
    return sorted(rows, key=lambda row: row["score"])


def main() -> None:
    """Compile, measure, print the best."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tune", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CANDIDATES), help="entries of tuning.json")
    parser.add_argument("--processes", type=int, default=12, help="that compile")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    if options.share is not None:
        for name in options.names:
            compile_share(name, options.share, options.processes)
        return
    command = [sys.executable, "-m", "benchmarks.gpu.tune", *options.names]
    command += ["--processes", str(options.processes), "--share"]
    started = [
        subprocess.Popen([*command, str(index)], stdout=subprocess.DEVNULL)
        for index in range(options.processes)
    ]
    for process in started:
        process.wait()
    print(f"compiled; {until - time.monotonic():.0f} s are left", flush=True)
    result = {}
    for name in options.names:
        result[name] = measured(name, until)
        for row in result[name][:4]:
            print(name, row["score"], json.dumps(row["options"]), flush=True)
        if options.to is not None:
            options.to.write_text(
                json.dumps({"gpu": torch.cuda.get_device_name(), "entries": result}), "utf-8"
            )


if __name__ == "__main__":
    main()

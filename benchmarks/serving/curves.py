"""Measure how our own engine grows: with requests at a time, with the length of a prompt, and in memory.

    python -m benchmarks.serving.curves --to result.json

Beside the result it draws the curves (`result.svg`), for which matplotlib must be installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.environment import environment
from benchmarks.serving.native import answer, prompts, throughput
from benchmarks.serving.peers import PROMPTS
from benchmarks.serving.processes import RunningServer, free_port, started
from benchmarks.serving.vllm_engine import make

__all__ = ["draw", "measure"]

SHAPES = {"4.2 M": 64, "155 M": 24}
"""Models, and tokens of an answer."""
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WORDS = (50, 100, 200, 400, 800, 1600, 3200, 6000)
"""Words of a prompt; a word has 2.7 tokens."""
_CONTEXT = 20_000
_TITLES = {
    "concurrency": ("requests at a time", "tokens/s of all answers"),
    "prompt": ("tokens of a prompt", "tokens/s of the prompt"),
    "memory": ("requests at a time", "MB in memory"),
}


async def prefill(server: RunningServer, words: int, seed: int) -> tuple[int, float]:
    """Return the tokens of a new prompt of so many words, and the seconds until its answer of one token."""
    choose = random.Random(seed)
    prompt = " ".join(choose.choice(PROMPTS[choose.randrange(len(PROMPTS))].split()) for _ in range(words))
    async with httpx2.AsyncClient(timeout=300) as client:
        began = time.perf_counter()
        tokens, _ = await answer(client, server, prompt, 1)
        return tokens, time.perf_counter() - began


def measure(rounds: int = 3) -> list[dict[str, Any]]:
    """Return a point of each curve per row: the median of the rounds and their range."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            port = free_port()
            command = ["plumbline", "serve", "--engine", "plumbline", "--served-model-name", "bench"]
            command += ["--model", str(make(shape, Path(folder))), "--max-num-seqs", "256"]
            command += ["--max-model-len", str(_CONTEXT), "--store", "none", "--port", str(port)]
            command += ["--kv-cache-bytes", str(2 << 30)]
            with started(command, port, patience=100) as process:
                server = RunningServer("plumbline", f"http://127.0.0.1:{port}", "bench", process.pid, 0.0)
                for row in _points(shape, server, rounds):
                    print(json.dumps(row), flush=True)
                    rows.append(row)
    return rows


def _points(shape: str, server: RunningServer, rounds: int) -> Iterator[dict[str, Any]]:
    max_tokens = SHAPES[shape]
    asyncio.run(throughput(server, 8, 8, max_tokens))
    for concurrency in CONCURRENCIES:
        requests = max(concurrency, 8)
        rates = [
            asyncio.run(throughput(server, prompts(16, requests, seed), concurrency, max_tokens))
            for seed in range(rounds)
        ]
        yield _point(shape, "concurrency", concurrency, rates)
        yield _point(shape, "memory", concurrency, [_resident(server.pid)])
    for words in WORDS:
        runs = [asyncio.run(prefill(server, words, seed)) for seed in range(rounds)]
        yield _point(shape, "prompt", runs[0][0], [tokens / seconds for tokens, seconds in runs])


def _point(shape: str, curve: str, x: int, values: list[float]) -> dict[str, Any]:
    return {
        "model": shape,
        "curve": curve,
        "x": x,
        "median": round(statistics.median(values), 1),
        "range": [round(min(values), 1), round(max(values), 1)],
    }


def _resident(pid: int) -> float:
    """Return the memory that a process has now, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS"))


def draw(rows: list[dict[str, Any]], target: Path) -> None:
    """Draw the curves as SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "plumbline"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    for axis, (curve, (x_label, y_label)) in zip(axes, _TITLES.items(), strict=True):
        for shape in SHAPES:
            points = [row for row in rows if row["curve"] == curve and row["model"] == shape]
            x = [row["x"] for row in points]
            axis.plot(x, [row["median"] for row in points], marker="o", markersize=3, label=shape)
            low, high = zip(*(row["range"] for row in points), strict=True)
            axis.fill_between(x, low, high, alpha=0.2)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(x, [str(value) for value in x], fontsize=7)
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        axis.grid(visible=True, which="both", alpha=0.2)
        axis.legend()
    figure.savefig(target, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--to", type=Path, required=True)
    arguments = parser.parse_args()
    found = measure(arguments.rounds)
    result = {"date": datetime.now(UTC).isoformat(), "environment": environment(), "curves": found}
    arguments.to.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(found, arguments.to.with_suffix(".svg"))

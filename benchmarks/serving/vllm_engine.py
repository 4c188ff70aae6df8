"""Measure tokens per second of our server on vLLM's engine and of vLLM's own server, on the same weights.

    python -m benchmarks.serving.vllm_engine --bin .nox/.peer-vllm/bin --to result.json

Both have one compute thread and are measured in turn, A B A B …, while the other one is stopped, because vLLM's worker
takes a third of a core when it waits: streamed chat completions of greedy tokens without an end, read by a client of
raw sockets, which takes little of the other core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from benchmarks.serving.peers import PROMPTS
from benchmarks.serving.processes import THREADS, RunningServer, free_port, posted, started

__all__ = ["SHAPES", "measure", "tokens_per_second"]

ROOT = Path(__file__).parents[2]
POCKET = ROOT / "src/plumbline/pocket/model"
SHAPES: dict[str, dict[str, int]] = {
    "pocket": {},
    "4.2 M": {"hidden_size": 256, "intermediate_size": 800, "num_hidden_layers": 5},
    "155 M": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 4096,
    },
}
"""The pocket model, and the sizes of models with its architecture and random weights."""
LOADS = {"pocket": (64, 4), "4.2 M": (64, 4), "155 M": (24, 1)}
"""Tokens of a request, and requests for each place."""
CONCURRENCIES = (1, 8, 32, 128)
_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
_MODEL = "bench"


def make(name: str, folder: Path) -> Path:
    """Return the folder of a shape's model."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from plumbline.pocket.folder import text_config, write_text_model

    target = folder / name.replace(" ", "")
    write_text_model(POCKET, target)
    if not SHAPES[name]:
        return target
    config = Qwen3Config(**text_config(POCKET))
    for key, value in SHAPES[name].items():
        setattr(config, key, value)
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).bfloat16().save_pretrained(target)
    return target


@contextmanager
def serving(binaries: Path, model: Path) -> Iterator[list[RunningServer]]:
    """Run our server and vLLM's on a model, until the block ends."""
    common = ["--served-model-name", _MODEL, "--max-model-len", "1024", "--max-num-seqs", "128"]
    with ExitStack() as stack:
        servers = []
        for name, command in (
            (
                "plumbline",
                ["plumbline", "serve", "--model", str(model), "--engine", "vllm", *common,
                 "--kv-cache-bytes", str(1 << 30), "--engine-args", "enforce_eager=true"],
            ),
            (
                "vllm",
                ["vllm", "serve", str(model), *common, "--host", "127.0.0.1", "--enforce-eager"],
            ),
        ):  # fmt: skip
            port = free_port()
            variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", **THREADS}
            # Both engines would bind their thread to the same core.
            variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
            run = [str(binaries / command[0]), *command[1:], "--port", str(port)]
            process = stack.enter_context(started(run, port, patience=300, **variables))
            servers.append(RunningServer(name, f"http://127.0.0.1:{port}", _MODEL, process.pid, 0.0))
        yield servers


async def _one(server: RunningServer, prompt: str, max_tokens: int) -> int:
    """Stream one answer; return its tokens."""
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    port = int(server.base_url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(posted("/v1/chat/completions", body))
    last = b""
    while data := await reader.read(1 << 16):
        last = (last + data)[-4096:]
    writer.close()
    found = _USAGE.findall(last)
    if not found:
        raise RuntimeError(f"{server.name} gave no usage: {last.decode(errors='replace')}")
    return int(found[-1])


async def tokens_per_second(server: RunningServer, concurrency: int, requests: int, max_tokens: int) -> float:
    """Request answers, `concurrency` at a time; return their tokens per second."""
    gate = asyncio.Semaphore(concurrency)

    async def run(index: int) -> int:
        async with gate:
            return await _one(server, PROMPTS[index % len(PROMPTS)], max_tokens)

    began = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(run, range(requests))))
    if tokens != requests * max_tokens:
        raise RuntimeError(f"{server.name} gave {tokens} tokens instead of {requests * max_tokens}")
    return tokens / (time.perf_counter() - began)


@contextmanager
def alone(server: RunningServer, servers: Sequence[RunningServer]) -> Iterator[None]:
    """Stop the processes of all other servers until the block ends."""
    others = [process for other in servers if other is not server for process in _tree(other.pid)]
    for process in others:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in reversed(others):
            os.kill(process, signal.SIGCONT)


def _tree(pid: int) -> list[int]:
    """Return a process and all that it has started (Linux)."""
    found = [pid]
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # The thread has ended meanwhile.
            for child in (thread / "children").read_text().split():
                found += _tree(int(child))
    return found


def measure(binaries: Path, shapes: Sequence[str] = tuple(SHAPES), rounds: int = 5) -> list[dict[str, Any]]:
    """Return the medians for each model and concurrency.

    Args:
        binaries: the folder of the programs `vllm` and `plumbline`.
        shapes: names of `SHAPES`.
        rounds: how often each is measured.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            with serving(binaries, make(shape, Path(folder))) as servers:
                rows += list(_rows(shape, servers, rounds))
    return rows


def _rows(shape: str, servers: Sequence[RunningServer], rounds: int) -> Iterator[dict[str, Any]]:
    max_tokens, each = LOADS[shape]
    for server in servers:
        asyncio.run(tokens_per_second(server, 8, 8, max_tokens))
    for concurrency in CONCURRENCIES:
        runs: dict[str, list[float]] = {server.name: [] for server in servers}
        for _ in range(rounds):
            for server in servers:
                requests = each * concurrency
                with alone(server, servers):
                    runs[server.name].append(
                        asyncio.run(tokens_per_second(server, concurrency, requests, max_tokens))
                    )
        row = {
            "model": shape,
            "concurrency": concurrency,
            "tokens_per_second": statistics.median(runs["plumbline"]),
            "tokens_per_second_vllm": statistics.median(runs["vllm"]),
            "ratio": statistics.median(a / b for a, b in zip(runs["plumbline"], runs["vllm"], strict=True)),
            "range": [min(runs["plumbline"]), max(runs["plumbline"])],
            "range_vllm": [min(runs["vllm"]), max(runs["vllm"])],
        }
        print(json.dumps(row), flush=True)
        yield row


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.vllm_engine", description=__doc__)
    parser.add_argument("--bin", type=Path, required=True, help="folder of the programs vllm and plumbline")
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    result = {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment()}
    result["vllm_engine"] = measure(options.bin, options.shapes, options.rounds)
    if options.to is not None:
        options.to.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

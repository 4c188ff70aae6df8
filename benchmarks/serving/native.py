"""Measure our own engine over HTTP beside vLLM's server and llama.cpp's, which all have their default options.

    python -m benchmarks.serving.native --vllm DIR --llama-server DIR --to result.json

llama-server also runs the weights rounded to Q8_0 and Q4_0, where llama-cpp-python is installed, which rounds them.
All servers run at the same time and are measured in turn, A B C A B C …, while the others are stopped. Answers have the
same number of tokens; long prompts differ from each other from the first word on, so no cache helps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from benchmarks.environment import environment
from benchmarks.serving.peers import PROMPTS
from benchmarks.serving.processes import Server, free_port, started
from benchmarks.serving.vllm_engine import SHAPES, alone, make
from plumbline.pocket.to_gguf import quantise, write

__all__ = ["answer", "measure", "summaries"]

LOADS = {"pocket": (64, 4), "4.2 M": (64, 4), "155 M": (24, 1)}
"""Tokens of an answer, and answers for each place."""
CONCURRENCIES = (1, 8, 32)
WORDS = (250, 900)
"""Words of the long prompts."""
_MODEL = "bench"
_CONTEXT = "4096"


def commands(model: Path, vllm: Path | None, llama: Path | None) -> dict[str, list[str]]:
    """Return the command of each server that is installed."""
    ours = [
        "plumbline",
        "serve",
        "--model",
        str(model),
        "--engine",
        "plumbline",
        "--served-model-name",
        _MODEL,
    ]
    ours += ["--max-model-len", _CONTEXT]
    found = {"plumbline": ours, "plumbline int8": [*ours, "--quantization", "int8"]}
    found["plumbline int4"] = [*ours, "--quantization", "int4"]
    if vllm is not None:
        found["vllm"] = [str(vllm / "vllm"), "serve", str(model), "--served-model-name", _MODEL]
        found["vllm"] += ["--max-model-len", _CONTEXT, "--host", "127.0.0.1"]
    if llama is not None:
        file = (
            model.parent / f"{model.name}.gguf"
            if model.name != "model"
            else Path(tempfile.mkdtemp()) / "pocket.gguf"
        )
        write(model, file)
        files = {"llama-server": file}
        if find_spec("llama_cpp") is not None:
            for kind in ("Q8_0", "Q4_0"):
                files[f"llama-server {kind}"] = file.with_suffix(f".{kind}.gguf")
                quantise(file, files[f"llama-server {kind}"], kind)
        for name, each in files.items():
            found[name] = [str(llama / "llama-server"), "-m", str(each), "--alias", _MODEL]
    return found


@contextmanager
def serving(model: Path, vllm: Path | None, llama: Path | None) -> Iterator[list[Server]]:
    """Run all servers on a model until the block ends."""
    with ExitStack() as stack:
        servers = []
        for name, command in commands(model, vllm, llama).items():
            port = free_port()
            variables = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
            run = [*command, "--port", str(port)]
            process = stack.enter_context(started(run, port, patience=400, **variables))
            servers.append(Server(name, f"http://127.0.0.1:{port}", _MODEL, process.pid, 0.0))
        yield servers


async def answer(client: httpx.AsyncClient, server: Server, prompt: str, max_tokens: int) -> tuple[int, int]:
    """Request one answer; return the tokens of the prompt and of the answer."""
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    usage: dict[str, int] = {}
    async with client.stream("POST", f"{server.base_url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {") and (found := json.loads(line[6:]).get("usage")):
                usage = found
    return usage["prompt_tokens"], usage["completion_tokens"]


async def throughput(server: Server, concurrency: int, requests: int, max_tokens: int) -> float:
    """Return tokens per second of `requests` answers, `concurrency` at a time."""
    gate = asyncio.Semaphore(concurrency)
    # llama-server closes kept connections after some requests, which a client may notice too late.
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:

        async def run(index: int) -> int:
            async with gate:
                prompt = f"{index} {PROMPTS[index % len(PROMPTS)]}"
                return (await answer(client, server, prompt, max_tokens))[1]

        began = time.perf_counter()
        tokens = sum(await asyncio.gather(*map(run, range(requests))))
        return tokens / (time.perf_counter() - began)


async def prefill(server: Server, words: int, seed: int) -> tuple[int, float]:
    """Return the tokens of a new prompt of so many words, and the seconds until its answer of one token."""
    choose = random.Random(seed)
    prompt = " ".join(choose.choice(PROMPTS[choose.randrange(len(PROMPTS))].split()) for _ in range(words))
    async with httpx.AsyncClient(timeout=300) as client:
        began = time.perf_counter()
        tokens, _ = await answer(client, server, prompt, 1)
        return tokens, time.perf_counter() - began


def measure(
    vllm: Path | None, llama: Path | None, shapes: Sequence[str] = tuple(SHAPES), rounds: int = 5
) -> list[dict[str, Any]]:
    """Return medians and ranges for each model and load.

    Args:
        vllm: the folder of the program `vllm`, if it is installed.
        llama: the folder of `llama-server`.
        shapes: names of `SHAPES`.
        rounds: how often each is measured.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            with serving(make(shape, Path(folder)), vllm, llama) as servers:
                rows += list(_rows(shape, servers, rounds))
    return rows


def _rows(shape: str, servers: Sequence[Server], rounds: int) -> Iterator[dict[str, Any]]:
    max_tokens, each = LOADS[shape]
    for server in servers:
        with alone(server, servers):
            asyncio.run(throughput(server, 8, 8, max_tokens))
    for concurrency in CONCURRENCIES:
        runs: dict[str, list[float]] = {server.name: [] for server in servers}
        for _ in range(rounds):
            for server in servers:
                with alone(server, servers):
                    rate = asyncio.run(
                        throughput(server, concurrency, max(each * concurrency, 4), max_tokens)
                    )
                runs[server.name].append(rate)
        yield from summaries({"model": shape, "load": f"concurrency {concurrency}", "unit": "tokens/s"}, runs)
    for words in WORDS:
        runs = {server.name: [] for server in servers}
        tokens = 0
        for number in range(rounds):
            for server in servers:
                with alone(server, servers):
                    tokens, seconds = asyncio.run(prefill(server, words, seed=number))
                runs[server.name].append(tokens / seconds)
        yield from summaries({"model": shape, "load": f"prompt of {tokens}", "unit": "tokens/s"}, runs)


def summaries(row: dict[str, Any], runs: dict[str, list[float]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each server, with its ratio to ours without options in the same rounds."""
    for name, values in runs.items():
        ratios = [value / ours for value, ours in zip(values, runs["plumbline"], strict=True)]
        found = {
            **row,
            "server": name,
            "median": round(statistics.median(values), 1),
            "range": [round(min(values), 1), round(max(values), 1)],
            "ratio_to_ours": round(statistics.median(ratios), 2),
        }
        print(json.dumps(found), flush=True)
        yield found


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.native", description=__doc__)
    parser.add_argument("--vllm", type=Path, help="folder of the program vllm")
    parser.add_argument("--llama-server", type=Path, help="folder of the program llama-server")
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    result = {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment()}
    result["native"] = measure(options.vllm, options.llama_server, options.shapes, options.rounds)
    if options.to is not None:
        options.to.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

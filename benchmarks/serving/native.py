"""Measure our own engine over HTTP beside vLLM's server and llama.cpp's, which all have their default options.

    python -m benchmarks.serving.native --vllm DIR --llama-server DIR --to result.json

llama-server also runs the weights rounded to Q8_0 and Q4_0, where llama-cpp-python is installed, which rounds them.
All servers run at the same time and are measured in turn, A B C A B C …, while the others are stopped. Answers have the
same number of tokens; prompts differ from each other from the first word on, so no cache helps.
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

import httpx2
from tokenizers import Tokenizer

from benchmarks.environment import environment
from benchmarks.serving.peers import PROMPTS
from benchmarks.serving.processes import RunningServer, free_port, started
from benchmarks.serving.vllm_engine import POCKET, SHAPES, alone, make
from plumbline.pocket.to_gguf import quantise, write

__all__ = ["answer", "measure", "prompts", "summaries", "throughput"]

MAX_TOKENS = {"pocket": 64, "4.2 M": 64, "155 M": 24}
"""Tokens of an answer."""
PROMPT_TOKENS = (16, 250, 2000)
CONCURRENCIES = (1, 8, 32)
_WORDS = sorted({word for prompt in PROMPTS for word in prompt.split()})
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
    if model.name != "pocket":  # Which loses more than the start allows.
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
def serving(model: Path, vllm: Path | None, llama: Path | None) -> Iterator[list[RunningServer]]:
    """Run all servers on a model until the block ends."""
    with ExitStack() as stack:
        servers = []
        for name, command in commands(model, vllm, llama).items():
            port = free_port()
            variables = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
            run = [*command, "--port", str(port)]
            process = stack.enter_context(started(run, port, patience=400, **variables))
            servers.append(RunningServer(name, f"http://127.0.0.1:{port}", _MODEL, process.pid, 0.0))
        yield servers


async def answer(
    client: httpx2.AsyncClient, server: RunningServer, prompt: str, max_tokens: int
) -> tuple[int, int]:
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


def prompts(tokens: int, count: int, seed: int) -> list[str]:
    """Return random prompts of about so many tokens of the pocket model, whose tokenizer all these models have."""
    tokenizer = Tokenizer.from_file(str(POCKET / "tokenizer.json"))
    choose = random.Random(seed)
    texts = (" ".join(choose.choices(_WORDS, k=tokens)) for _ in range(count))
    return [tokenizer.decode(tokenizer.encode(text).ids[:tokens]) for text in texts]


async def throughput(server: RunningServer, texts: Sequence[str], concurrency: int, max_tokens: int) -> float:
    """Return tokens per second of the answers to these prompts, `concurrency` at a time."""
    gate = asyncio.Semaphore(concurrency)
    # llama-server closes kept connections after some requests, which a client may notice too late.
    limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=0)
    async with httpx2.AsyncClient(timeout=300, limits=limits) as client:

        async def run(text: str) -> int:
            async with gate:
                return (await answer(client, server, text, max_tokens))[1]

        began = time.perf_counter()
        tokens = sum(await asyncio.gather(*map(run, texts)))
        return tokens / (time.perf_counter() - began)


def measure(
    vllm: Path | None,
    llama: Path | None,
    shapes: Sequence[str] = tuple(SHAPES),
    rounds: int = 5,
    lengths: Sequence[int] = PROMPT_TOKENS,
    concurrencies: Sequence[int] = CONCURRENCIES,
) -> list[dict[str, Any]]:
    """Return medians and ranges for each model and load.

    Args:
        vllm: the folder of the program `vllm`, if it is installed.
        llama: the folder of `llama-server`.
        shapes: names of `SHAPES`.
        rounds: how often each is measured.
        lengths: tokens of a prompt.
        concurrencies: requests at a time.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            with serving(make(shape, Path(folder)), vllm, llama) as servers:
                for server in servers:
                    with alone(server, servers):
                        asyncio.run(throughput(server, prompts(16, 8, seed=-1), 8, MAX_TOKENS[shape]))
                for length in lengths:
                    for concurrency in concurrencies:
                        rows += cell(shape, servers, length, concurrency, rounds)
    return rows


def cell(
    shape: str, servers: Sequence[RunningServer], length: int, concurrency: int, rounds: int
) -> list[dict[str, Any]]:
    """Measure one load on all servers in turn."""
    runs: dict[str, list[float]] = {server.name: [] for server in servers}
    # Short answers of few requests take so little time that a moment decides.
    requests = concurrency if length > 1000 or shape == "155 M" else max(2 * concurrency, 4)
    for number in range(rounds):
        texts = prompts(length, requests, seed=1000 * length + 10 * concurrency + number)
        for server in servers:
            with alone(server, servers):
                rate = asyncio.run(throughput(server, texts, concurrency, MAX_TOKENS[shape]))
            runs[server.name].append(rate)
    row = {"model": shape, "prompt_tokens": length, "concurrency": concurrency, "unit": "tokens/s"}
    return list(summaries(row, runs))


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
    parser.add_argument("--lengths", nargs="*", type=int, default=list(PROMPT_TOKENS))
    parser.add_argument("--concurrencies", nargs="*", type=int, default=list(CONCURRENCIES))
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    result = {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment()}
    result["native"] = measure(
        options.vllm,
        options.llama_server,
        options.shapes,
        options.rounds,
        options.lengths,
        options.concurrencies,
    )
    if options.to is not None:
        options.to.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""Measure tokens per second over HTTP on one GGUF file: our server, llama.cpp's and llama-cpp-python's.

    python -m benchmarks.serving.gguf --file pocket.gguf --llama-server PATH --llama-python PYTHON --to result.json

All servers run at the same time with one compute thread each and are measured in turn, A B C A B C …. Ours and
llama.cpp's have 32 slots of 1,024 tokens. The server of llama-cpp-python computes one request at a time and gives no
usage in streams: its tokens are its deltas and the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from benchmarks.environment import environment
from benchmarks.serving.peers import MAX_TOKENS, PROMPTS
from benchmarks.serving.processes import THREADS, Server, cpu_seconds, free_port, started

LOADS = ((1, 8), (8, 32), (32, 64))
"""Concurrency and requests."""


@contextmanager
def serve(name: str, command: list[str], ready: str) -> Iterator[Server]:
    """Run a server until the block ends; `PORT` in the command is replaced."""
    port = free_port()
    began = time.perf_counter()
    given = [part.replace("PORT", str(port)) for part in command]
    with started(given, port, ready=ready, **THREADS) as process:
        yield Server(name, f"http://127.0.0.1:{port}/v1", "bench", process.pid, time.perf_counter() - began)


async def one(client: httpx.AsyncClient, server: Server, prompt: str) -> tuple[int, str]:
    """Stream one answer; return its tokens and its text."""
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    tokens, deltas, text = 0, 1, ""
    async with client.stream("POST", f"{server.base_url}/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            for choice in chunk["choices"]:
                delta = choice["delta"]
                piece = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
                deltas += bool(piece)
                text += piece
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
    return tokens or deltas, text


async def load(server: Server, concurrency: int, requests: int) -> dict[str, Any]:
    """Request answers, `concurrency` at a time."""
    async with httpx.AsyncClient(
        timeout=300, limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=0)
    ) as client:
        gate = asyncio.Semaphore(concurrency)

        async def run(index: int) -> tuple[int, str]:
            async with gate:
                return await one(client, server, PROMPTS[index % len(PROMPTS)])

        cpu, began = cpu_seconds(server.pid), time.perf_counter()
        found = await asyncio.gather(*map(run, range(requests)))
        wall, cpu = time.perf_counter() - began, cpu_seconds(server.pid) - cpu
    tokens = sum(number for number, _ in found)
    texts = [" ".join(text.split()) for _, text in found]
    return {"tokens": tokens, "wall": tokens / wall, "cpu": tokens / cpu if cpu else None, "texts": texts}


def measure(servers: list[Server], rounds: int) -> list[dict[str, Any]]:
    """Return medians for each load and server, with the ratios of the first server to the others."""
    rows: list[dict[str, Any]] = []
    for server in servers:
        asyncio.run(load(server, 4, 8))
    for concurrency, requests in LOADS:
        runs: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
        for _ in range(rounds):
            for server in servers:
                runs[server.name].append(asyncio.run(load(server, concurrency, requests)))
        ours = runs[servers[0].name]
        for name, theirs in runs.items():
            row: dict[str, Any] = {
                "concurrency": concurrency,
                "server": name,
                "tokens": theirs[0]["tokens"],
                "tokens_per_second": statistics.median(run["wall"] for run in theirs),
                "range": [min(run["wall"] for run in theirs), max(run["wall"] for run in theirs)],
                "tokens_per_cpu_second": statistics.median(run["cpu"] for run in theirs),
                "same_texts": sum(a == b for a, b in zip(theirs[0]["texts"], ours[0]["texts"], strict=True)),
                "requests": requests,
                "ours_to_it": statistics.median(
                    a["wall"] / b["wall"] for a, b in zip(ours, theirs, strict=True)
                ),
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    """Start the servers, measure them and write the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.gguf", description=__doc__)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--llama-server", help="llama.cpp's server, built from its source")
    parser.add_argument("--llama-python", help="a Python with llama-cpp-python[server]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    file = str(options.file)
    plumbline = [
        str(Path(sys.executable).parent / "plumbline"), "serve", "--model", file, "--port", "PORT",
        "--served-model-name", "bench", "--max-num-seqs", "32", "--max-model-len", "1024",
        "--engine-args", "n_threads=1", "n_threads_batch=1",
    ]  # fmt: skip
    commands = {
        "plumbline": (plumbline, "/health"),
        "plumbline, one pool": ([*plumbline, "kv_unified=true"], "/health"),
    }
    if options.llama_server:
        commands["llama-server"] = (
            [options.llama_server, "-m", file, "--port", "PORT", "--host", "127.0.0.1", "-np", "32", "-c", "32768",
             "-t", "1", "-tb", "1", "--jinja"],
            "/health",
        )  # fmt: skip
    if options.llama_python:
        commands["llama-cpp-python"] = (
            [options.llama_python, "-m", "llama_cpp.server", "--model", file, "--port", "PORT", "--n_ctx", "8192",
             "--n_threads", "1", "--n_threads_batch", "1", "--interrupt_requests", "false", "--model_alias", "bench"],
            "/v1/models",
        )  # fmt: skip
    with ExitStack() as stack:
        servers = [stack.enter_context(serve(name, *given)) for name, given in commands.items()]
        rows = measure(servers, options.rounds)
    if options.to is not None:
        result = {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment()}
        options.to.write_text(json.dumps({**result, "gguf": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""Measure our server on llama.cpp and llama.cpp's own server over HTTP, both with their default options.

    python -m benchmarks.serving.gguf --llama-server DIR [--model FILE] --to result.json

Both serve one file, of the pocket model or a published one, and are measured in turn, A B A B …, while the others are
stopped. Answers have 64 tokens. Prompts differ from each other from the first word on, so no cache helps. A published
file gets prompts of this documentation's prose, and llama-server as many slots as requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.environment import environment
from benchmarks.serving.native import PROMPT_TOKENS, answer, prompts, summaries, throughput
from benchmarks.serving.processes import RunningServer, free_port, started
from benchmarks.serving.vllm_engine import POCKET, alone
from plumbline.pocket.to_gguf import write

__all__ = ["measure"]

REQUESTS = {1: 8, 8: 24, 32: 64}
"""By concurrency."""
MAX_TOKENS = 64
WINDOW = 4096
"""Tokens of a request to a published model, and of each slot of llama-server."""
PROSE = Path(__file__).parents[2] / "docs"
_MODEL = "bench"


@contextmanager
def serving(commands: Mapping[str, Sequence[str]]) -> Iterator[list[RunningServer]]:
    """Run servers until the block ends."""
    with ExitStack() as stack:
        servers = []
        for name, command in commands.items():
            port = free_port()
            process = stack.enter_context(started([*command, "--port", str(port)], port))
            servers.append(RunningServer(name, f"http://127.0.0.1:{port}", _MODEL, process.pid, 0.0))
        yield servers


def measure(
    llama: Path | None,
    lengths: Sequence[int] = PROMPT_TOKENS,
    rounds: int = 5,
    others: Mapping[str, Sequence[str]] | None = None,
) -> list[dict[str, Any]]:
    """Return medians and ranges for each length of prompts, concurrency and server.

    Args:
        llama: the folder of the program `llama-server`, if it is installed.
        lengths: tokens of a prompt.
        rounds: how often each is measured.
        others: further options of our server, by a name, to compare the default with.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pocket.gguf"
        write(POCKET, file)
        ours = ["plumbline", "serve", "--model", str(file), "--served-model-name", _MODEL]
        commands = {"plumbline": ours} | {name: [*ours, *given] for name, given in (others or {}).items()}
        if llama is not None:
            commands["llama-server"] = [str(llama / "llama-server"), "-m", str(file), "--alias", _MODEL]
        with serving(commands) as servers:
            return list(_rows(servers, lengths, rounds))


def measure_published(llama: Path | None, file: Path, rounds: int = 5) -> list[dict[str, Any]]:
    """Return medians and ranges of a published file, for each load and server.

    Args:
        llama: the folder of the program `llama-server`, if it is installed.
        file: a GGUF file of a model that our own engine has.
        rounds: how often each is measured.
    """
    ours = ["plumbline", "serve", "--model", str(file), "--served-model-name", _MODEL, "--store", "none"]
    ours += ["--engine", "plumbline", "--max-model-len", str(WINDOW)]
    commands = {"plumbline": ours, "plumbline, no speculation": [*ours, "--no-speculation"]}
    if llama is not None:
        slots = max(REQUESTS)
        own = ["-m", str(file), "--alias", _MODEL, "-np", str(slots), "-c", str(slots * WINDOW)]
        commands["llama-server"] = [str(llama / "llama-server"), *own, "-t", str(os.cpu_count() or 1)]
    rows: list[dict[str, Any]] = []
    with serving(commands) as servers:
        for server in servers:
            with alone(server, servers):
                asyncio.run(throughput(server, prose(50, 4, seed=-1), 4, 8))
        for concurrency, requests in REQUESTS.items():
            row = {"model": file.name, "prompt_words": 50, "concurrency": concurrency, "unit": "tokens/s"}
            rows += summaries(row, _in_turn(servers, rounds, concurrency, requests))
        row = {"model": file.name, "prompt_words": 1300, "concurrency": 1, "unit": "tokens of the prompt/s"}
        rows += summaries(row, _in_turn(servers, rounds))
    return rows


def _in_turn(
    servers: Sequence[RunningServer], rounds: int, concurrency: int = 1, requests: int = 0
) -> dict[str, list[float]]:
    """Return what each server does in each round: tokens per second of answers, or of prompts without `requests`."""
    runs: dict[str, list[float]] = {server.name: [] for server in servers}
    for number in range(rounds):
        texts = prose(50 if requests else 1300, requests or 3, seed=1000 * concurrency + number)
        for server in servers:
            with alone(server, servers):
                job = (
                    throughput(server, texts, concurrency, MAX_TOKENS) if requests else reading(server, texts)
                )
                runs[server.name].append(asyncio.run(job))
    return runs


async def reading(server: RunningServer, texts: Sequence[str]) -> float:
    """Return tokens per second of prompts, one after the other, each with an answer of one token."""
    async with httpx2.AsyncClient(timeout=300) as client:
        began = time.perf_counter()
        tokens = sum([(await answer(client, server, text, 1))[0] for text in texts])
        return tokens / (time.perf_counter() - began)


def prose(words: int, count: int, seed: int) -> list[str]:
    """Return parts of this documentation of so many words, each behind words of its own."""
    pages = (path.read_text("utf-8") for path in sorted((PROSE / "guides").glob("*.md")))
    every = re.sub(r"[^A-Za-z ,.;:'()-]", " ", " ".join(pages)).split()
    choose = random.Random(seed)
    starts = [choose.randrange(len(every) - words) for _ in range(count)]
    return [" ".join([*choose.choices(every, k=4), *every[start : start + words]]) for start in starts]


def _rows(servers: Sequence[RunningServer], lengths: Sequence[int], rounds: int) -> Iterator[dict[str, Any]]:
    for server in servers:
        with alone(server, servers):
            asyncio.run(throughput(server, prompts(16, 8, seed=-1), 8, MAX_TOKENS))
    for length in lengths:
        for concurrency, requests in REQUESTS.items():
            runs: dict[str, list[float]] = {server.name: [] for server in servers}
            for number in range(rounds):
                texts = prompts(length, requests, seed=1000 * length + 10 * concurrency + number)
                for server in servers:
                    with alone(server, servers):
                        runs[server.name].append(
                            asyncio.run(throughput(server, texts, concurrency, MAX_TOKENS))
                        )
            row = {"model": "pocket", "prompt_tokens": length, "concurrency": concurrency, "unit": "tokens/s"}
            yield from summaries(row, runs)


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.gguf", description=__doc__)
    parser.add_argument("--llama-server", type=Path, help="folder of the program llama-server")
    parser.add_argument(
        "--model", type=Path, metavar="FILE", help="a published GGUF file; default: the pocket model"
    )
    parser.add_argument("--lengths", nargs="*", type=int, default=list(PROMPT_TOKENS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    result = {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment()}
    if options.model is None:
        result["gguf"] = measure(options.llama_server, options.lengths, options.rounds)
    else:
        result["gguf"] = measure_published(options.llama_server, options.model, options.rounds)
    if options.to is not None:
        options.to.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

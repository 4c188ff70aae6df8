"""Measure our server on llama.cpp and llama.cpp's own server over HTTP, both with their default options.

    python -m benchmarks.serving.gguf --llama-server DIR --to result.json

Both serve one file of the pocket model, and are measured in turn, A B A B …, while the other one is stopped. Answers
have 64 tokens. Prompts differ from each other from the first word on, so no cache helps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

from benchmarks.environment import environment
from benchmarks.serving.native import answer, summaries
from benchmarks.serving.peers import PROMPTS
from benchmarks.serving.processes import Server, free_port, started
from benchmarks.serving.vllm_engine import POCKET, alone
from plumbline.pocket.to_gguf import write

__all__ = ["measure"]

PROMPT_TOKENS = (16, 250, 2000)
REQUESTS = {1: 8, 8: 24, 32: 64}
"""By concurrency."""
MAX_TOKENS = 64
_MODEL = "bench"
_WORDS = sorted({word for prompt in PROMPTS for word in prompt.split()})


def prompts(tokens: int, count: int, seed: int) -> list[str]:
    """Return random prompts of about so many tokens of the pocket model."""
    tokenizer = Tokenizer.from_file(str(POCKET / "tokenizer.json"))
    choose = random.Random(seed)
    texts = (" ".join(choose.choices(_WORDS, k=tokens)) for _ in range(count))
    return [tokenizer.decode(tokenizer.encode(text).ids[:tokens]) for text in texts]


async def throughput(server: Server, texts: Sequence[str], concurrency: int) -> float:
    """Return tokens per second of the answers to these prompts, `concurrency` at a time."""
    gate = asyncio.Semaphore(concurrency)
    # llama-server closes kept connections after some requests, which a client may notice too late.
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:

        async def run(text: str) -> int:
            async with gate:
                return (await answer(client, server, text, MAX_TOKENS))[1]

        began = time.perf_counter()
        tokens = sum(await asyncio.gather(*map(run, texts)))
        return tokens / (time.perf_counter() - began)


@contextmanager
def serving(commands: Mapping[str, Sequence[str]]) -> Iterator[list[Server]]:
    """Run servers until the block ends."""
    with ExitStack() as stack:
        servers = []
        for name, command in commands.items():
            port = free_port()
            process = stack.enter_context(started([*command, "--port", str(port)], port))
            servers.append(Server(name, f"http://127.0.0.1:{port}", _MODEL, process.pid, 0.0))
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


def _rows(servers: Sequence[Server], lengths: Sequence[int], rounds: int) -> Iterator[dict[str, Any]]:
    for server in servers:
        with alone(server, servers):
            asyncio.run(throughput(server, prompts(16, 8, seed=-1), 8))
    for length in lengths:
        for concurrency, requests in REQUESTS.items():
            runs: dict[str, list[float]] = {server.name: [] for server in servers}
            for number in range(rounds):
                texts = prompts(length, requests, seed=1000 * length + 10 * concurrency + number)
                for server in servers:
                    with alone(server, servers):
                        runs[server.name].append(asyncio.run(throughput(server, texts, concurrency)))
            row = {"model": "pocket", "prompt_tokens": length, "concurrency": concurrency, "unit": "tokens/s"}
            yield from summaries(row, runs)


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.gguf", description=__doc__)
    parser.add_argument("--llama-server", type=Path, help="folder of the program llama-server")
    parser.add_argument("--lengths", nargs="*", type=int, default=list(PROMPT_TOKENS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    result = {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment()}
    result["gguf"] = measure(options.llama_server, options.lengths, options.rounds)
    if options.to is not None:
        options.to.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

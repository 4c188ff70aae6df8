"""Measure our server on llama.cpp and llama.cpp's own server over HTTP, both with their default options.

    python -m benchmarks.serving.gguf --llama-server DIR --to result.json

Both serve one file of the pocket model, and are measured in turn, A B A B …, while the other one is stopped. Answers
have 64 tokens. Prompts differ from each other from the first word on, so no cache helps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from benchmarks.serving.native import PROMPT_TOKENS, prompts, summaries, throughput
from benchmarks.serving.processes import RunningServer, free_port, started
from benchmarks.serving.vllm_engine import POCKET, alone
from plumbline.pocket.to_gguf import write

__all__ = ["measure"]

REQUESTS = {1: 8, 8: 24, 32: 64}
"""By concurrency."""
MAX_TOKENS = 64
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

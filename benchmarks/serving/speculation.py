"""Measure what proposed tokens gain: our server beside itself with --no-speculation, on the same requests.

    python -m benchmarks.serving.speculation --to result.json

Both servers run at the same time and are measured in turn, A B B A …, while the other one is stopped. Answers have
seeds, so both servers must give the same ones, which is checked. The pocket model answers the tasks it is trained for;
models of random weights repeat themselves when greedy, so they draw at temperature 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.environment import environment
from benchmarks.serving.processes import RunningServer, free_port, started
from benchmarks.serving.vllm_engine import SHAPES, alone, make

__all__ = ["measure"]

_MODEL = "bench"
_WORDS = (
    "barn",
    "candle",
    "drift",
    "ember",
    "fable",
    "garnet",
    "hollow",
    "island",
    "jigsaw",
    "kettle",
    "lantern",
)
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "quantity": {"type": "integer", "minimum": 0, "maximum": 999},
        "description": {"type": "string", "maxLength": 40},
        "available": {"type": "boolean"},
    },
    "required": ["name", "quantity", "description", "available"],
    "additionalProperties": False,
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "reserve_table",
        "description": "Reserve a table.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"restaurant": {"type": "string", "maxLength": 20}, "guests": {"type": "integer"}},
            "required": ["restaurant", "guests"],
            "additionalProperties": False,
        },
    },
}


def _chat(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 128, **fields}


def _text(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(_WORDS, k=count))


def _schema(seed: int) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "item", "schema": _SCHEMA, "strict": True}}
    prompt = f"Name: {_text(seed, 1)}, quantity: {seed}, description: {_text(seed + 1, 3)}, available: yes. Write JSON."
    return _chat(prompt, response_format=form)


def _call(seed: int) -> dict[str, Any]:
    prompt = f"Reserve a table for {seed % 9 + 1} at {_text(seed, 1)}."
    return _chat(prompt, tools=[_TOOL], tool_choice="required")


def _copy(seed: int) -> dict[str, Any]:
    return _chat(f"Repeat after me: {_text(seed, 30)}")


def _edit(seed: int) -> dict[str, Any]:
    """Return a request for JSON with the content of the prompt, without a grammar."""
    document = {"name": _text(seed, 2), "tags": _text(seed + 1, 6).split(), "size": seed}
    return _chat(f"Repeat after me: {json.dumps(document)}")


def _penalised(seed: int) -> dict[str, Any]:
    return {**_copy(seed), "frequency_penalty": 0.05, "presence_penalty": 0.05}


def _fresh(seed: int) -> dict[str, Any]:
    return _chat(_text(seed, 10), temperature=1.3, ignore_eos=True)


TASKS: dict[str, Callable[[int], dict[str, Any]]] = {
    "JSON of a schema": _schema,
    "tool call": _call,
    "copied text": _copy,
    "copied JSON": _edit,
    "copied text, penalties": _penalised,
    "text without repeats": _fresh,
}


@contextmanager
def serving(model: Path) -> Iterator[list[RunningServer]]:
    """Run a server with and one without speculation until the block ends."""
    with ExitStack() as stack:
        servers = []
        for name, options in (("speculation", []), ("plain", ["--no-speculation"])):
            port = free_port()
            command = [
                str(Path(sys.executable).parent / "plumbline"),
                "serve",
                "--model",
                str(model),
                "--port",
                str(port),
            ]
            command += [
                "--engine",
                "plumbline",
                "--served-model-name",
                _MODEL,
                "--max-model-len",
                "2048",
                *options,
            ]
            process = stack.enter_context(started(command, port, HF_HUB_OFFLINE="1"))
            servers.append(RunningServer(name, f"http://127.0.0.1:{port}", _MODEL, process.pid, 0.0))
        yield servers


async def answers(
    server: RunningServer, bodies: Sequence[dict[str, Any]], concurrency: int
) -> tuple[int, float, list[Any]]:
    """Return the tokens of some answers, the seconds that they took, and the answers."""
    gate = asyncio.Semaphore(concurrency)
    async with httpx2.AsyncClient(timeout=300) as client:

        async def one(number: int, body: dict[str, Any]) -> tuple[int, Any]:
            async with gate:
                wanted = {"model": server.model, "temperature": 0, "seed": number, **body}
                response = await client.post(f"{server.base_url}/v1/chat/completions", json=wanted)
                response.raise_for_status()
                found = response.json()
                message = found["choices"][0]["message"]
                calls = [call["function"] for call in message.get("tool_calls") or ()]
                return found["usage"]["completion_tokens"], (message.get("content"), calls)

        began = time.perf_counter()
        found = await asyncio.gather(*(one(number, body) for number, body in enumerate(bodies)))
        seconds = time.perf_counter() - began
    return sum(tokens for tokens, _ in found), seconds, [answer for _, answer in found]


def measure(
    shapes: Sequence[str] = ("pocket", "155 M"),
    tasks: Sequence[str] = tuple(TASKS),
    concurrencies: Sequence[int] = (1, 8),
    rounds: int = 5,
) -> list[dict[str, Any]]:
    """Return the medians of both servers and the median ratio for each model, task and concurrency."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            with serving(make(shape, Path(folder))) as servers:
                for task in tasks:
                    rows += [_row(shape, servers, task, concurrency, rounds) for concurrency in concurrencies]
    return rows


def _row(
    shape: str, servers: Sequence[RunningServer], task: str, concurrency: int, rounds: int
) -> dict[str, Any]:
    runs: dict[str, list[float]] = {server.name: [] for server in servers}
    count = 30 + 10 * concurrency if shape == "pocket" else max(concurrency, 2)
    for number in range(rounds + 1):
        totals = {server.name: [0, 0.0] for server in servers}
        # Whichever server is measured first in a pair is a little slower.
        for half, order in enumerate((servers, servers[::-1])):
            bodies = [TASKS[task](2000 * number + 1000 * half + index) for index in range(count)]
            if shape != "pocket":
                bodies = [{**body, "temperature": 1.0, "max_tokens": 64} for body in bodies]
            found = []
            for server in order:
                with alone(server, servers):
                    tokens, seconds, given = asyncio.run(answers(server, bodies, concurrency))
                found.append(given)
                totals[server.name][0] += tokens
                totals[server.name][1] += seconds
            if found[0] != found[1]:
                raise RuntimeError(f"{task}: the servers gave different answers")
        if number:  # The first round warms up: grammars are compiled, programs recorded.
            for name, (tokens, seconds) in totals.items():
                runs[name].append(tokens / seconds)
    ratios = [a / b for a, b in zip(runs["speculation"], runs["plain"], strict=True)]
    row = {
        "model": shape,
        "task": task,
        "concurrency": concurrency,
        "unit": "tokens/s",
        **{name: round(statistics.median(values)) for name, values in runs.items()},
        "ratio": round(statistics.median(ratios), 2),
        "range": [round(min(ratios), 2), round(max(ratios), 2)],
    }
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.speculation", description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=["pocket", "155 M"], choices=list(SHAPES))
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--concurrencies", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    result = {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment()}
    result["speculation"] = measure(options.shapes, options.tasks, options.concurrencies, options.rounds)
    if options.to is not None:
        options.to.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""Measure where a decode step of our engine goes, in a server that streams answers to clients.

    python -m benchmarks.decode_steps --to result.json

The server is a child process that times the parts of its steps, by the wall clock and by the CPU time of the engine's
thread. A part that takes longer than its CPU time waits: for the interpreter, which also serves HTTP, or for a core.
The kernels' helper threads are not in the CPU time. Steps with prompts, and with fewer requests, are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.environment import environment
from benchmarks.serving.peers import PROMPTS
from benchmarks.serving.processes import free_port, started
from benchmarks.serving.vllm_engine import SHAPES, make

__all__ = ["measure"]

CONCURRENCIES = (1, 8, 32)
TOKENS = {"pocket": 128, "4.2 M": 128, "155 M": 32}
"""Tokens of an answer."""
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 400}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
LOADS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 1, "top_p": 0.95},
    "JSON": {
        "temperature": 1,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "item", "schema": _SCHEMA, "strict": True},
        },
    },
}
"""Fields of the requests."""
PARTS = ("plan", "stage", "masks", "forward", "logits", "draw", "settle", "between")
"""Of a step; `between` is from the end of one to the beginning of the next: chunks out, messages in."""
HOST = ("plan", "stage", "masks", "draw", "settle", "between")
"""Parts that are no products with weights and no attention."""
_MODEL = "bench"


class StepTimes:
    """Add up the times of the parts of steps, by the number of requests in a step."""

    def __init__(self) -> None:
        self._steps: dict[int, list[dict[str, tuple[float, float]]]] = defaultdict(list)
        self._current: dict[str, tuple[float, float]] = {}
        self._requests = 0
        self._ended: tuple[float, float] | None = None

    def watch(self, target: Path) -> None:
        """Time the parts in this process from here on, and write the steps to `target` when the engine stops."""
        from plumbline.engines.native.core import EngineCore
        from plumbline.engines.native.engine import NativeEngine
        from plumbline.engines.native.models.transformer import Transformer
        from plumbline.engines.native.runner import ModelRunner
        from plumbline.engines.native.scheduling.scheduler import Scheduler, StepPlan
        from plumbline.engines.native.slots import Slots
        from plumbline.engines.sampling.masks import MaskWorker

        def planned(plan: StepPlan) -> None:
            decodes = plan.num_decodes == len(plan.entries) == plan.num_tokens
            self._requests = plan.num_decodes if decodes else 0

        self._time(Scheduler, "plan", "plan", planned)
        self._time(Slots, "stage", "stage")
        self._time(MaskWorker, "start", "masks")
        self._time(MaskWorker, "wait", "masks")
        self._time(ModelRunner, "forward", "forward")
        self._time(Transformer, "compute_logits", "logits")
        self._time(ModelRunner, "sample", "sample")
        self._time(EngineCore, "_settle", "settle")
        step = EngineCore._step

        def timed(core: EngineCore) -> None:
            now = _now()
            if self._ended is not None:
                self._add("between", self._ended, now)
            step(core)
            if self._requests:
                self._steps[self._requests].append(self._current)
            self._current, self._requests = {}, 0
            self._ended = _now() if core.has_work else None

        EngineCore._step = timed  # type: ignore[method-assign]
        stop = NativeEngine.stop

        async def stopped(engine: NativeEngine) -> None:
            await stop(engine)
            await asyncio.to_thread(target.write_text, json.dumps(self._steps), "utf-8")

        NativeEngine.stop = stopped  # type: ignore[method-assign]

    def _time(self, owner: type, method: str, part: str, then: Callable[[Any], None] | None = None) -> None:
        function = getattr(owner, method)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = _now()
            result = function(*arguments, **named)
            self._add(part, began, _now())
            if then is not None:
                then(result)
            return result

        setattr(owner, method, timed)

    def _add(self, part: str, began: tuple[float, float], ended: tuple[float, float]) -> None:
        wall, used = self._current.get(part, (0.0, 0.0))
        self._current[part] = wall + ended[0] - began[0], used + ended[1] - began[1]


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def serve(target: Path, arguments: list[str]) -> None:
    """Run the command line in this process, and write the times of its steps to a file."""
    from plumbline.cli import main as command_line

    StepTimes().watch(target)
    command_line(arguments)


async def _answers(address: str, concurrency: int, load: str, tokens: int) -> None:
    """Stream as many answers as there are places, all at the same time."""
    async with httpx2.AsyncClient(timeout=300) as client:

        async def one(number: int) -> None:
            body = {
                "model": _MODEL,
                "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
                "max_tokens": tokens,
                "ignore_eos": True,
                "seed": number,
                "stream": True,
                **LOADS[load],
            }
            async with client.stream("POST", f"{address}/v1/chat/completions", json=body) as response:
                response.raise_for_status()
                async for _ in response.aiter_raw():
                    pass

        await asyncio.gather(*map(one, range(concurrency)))


def measure(
    shapes: Sequence[str] = ("pocket", "155 M"),
    loads: Sequence[str] = tuple(LOADS),
    concurrencies: Sequence[int] = CONCURRENCIES,
    rounds: int = 3,
) -> list[dict[str, Any]]:
    """Return the medians of the parts for each model, load and concurrency.

    Args:
        shapes: names of `SHAPES`.
        loads: names of `LOADS`.
        concurrencies: requests at a time.
        rounds: how often each is measured, all in turn.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            model = make(shape, Path(folder))
            for load in loads:
                target = Path(folder) / "steps.json"
                port = free_port()
                command = [sys.executable, "-m", __spec__.name, "--serve", str(target)]
                command += ["serve", "--model", str(model), "--port", str(port), "--engine", "plumbline"]
                command += ["--served-model-name", _MODEL, "--max-model-len", "2048", "--no-speculation"]
                with started(command, port, HF_HUB_OFFLINE="1"):
                    for _ in range(rounds):
                        for concurrency in concurrencies:
                            asyncio.run(
                                _answers(f"http://127.0.0.1:{port}", concurrency, load, TOKENS[shape])
                            )
                steps = json.loads(target.read_text("utf-8"))
                rows += [
                    _row(steps[str(count)], {"model": shape, "load": load, "concurrency": count})
                    for count in concurrencies
                ]
    return rows


def _row(steps: list[dict[str, tuple[float, float]]], row: dict[str, Any]) -> dict[str, Any]:
    """Return the medians of the parts in microseconds, and the share of what is not the model."""
    for step in steps:
        sample, logits = step.pop("sample"), step.get("logits", (0.0, 0.0))
        step["draw"] = sample[0] - logits[0], sample[1] - logits[1]
    wall, used = (
        {part: statistics.median(step.get(part, (0.0, 0.0))[kind] for step in steps) for part in PARTS}
        for kind in (0, 1)
    )
    totals = [sum(step.get(part, (0.0, 0.0))[0] for part in PARTS) for step in steps]
    shares = [
        sum(step.get(part, (0.0, 0.0))[0] for part in HOST) / total
        for step, total in zip(steps, totals, strict=True)
    ]
    quarters = statistics.quantiles(shares, n=4)
    row |= {
        "steps": len(steps),
        "step_us": round(1e6 * statistics.median(totals)),
        "us": {part: round(1e6 * wall[part]) for part in PARTS},
        "cpu_us": {part: round(1e6 * used[part]) for part in PARTS},
        "host_share": round(statistics.median(shares), 3),
        "host_share_quarters": [round(quarters[0], 3), round(quarters[2], 3)],
    }
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode_steps", description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=["pocket", "155 M"], choices=list(SHAPES))
    parser.add_argument("--loads", nargs="*", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--concurrencies", nargs="*", type=int, default=list(CONCURRENCIES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    result = {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment()}
    result["decode_steps"] = measure(options.shapes, options.loads, options.concurrencies, options.rounds)
    if options.to is not None:
        options.to.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()

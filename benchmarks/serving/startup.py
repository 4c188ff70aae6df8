"""Measure the time from starting the process to the end of the first answer, and its memory."""

from __future__ import annotations

import json
import statistics
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.serving.processes import peak_memory, serve

__all__ = ["measure"]


def measure(folder: Path, *, rounds: int = 5) -> dict[str, Any]:
    """Return medians over new processes. Goal: under 6 s and under 1 GB on two cores."""
    seconds: list[float] = []
    memory: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        with serve("plumbline", folder) as server:
            body = {
                "model": server.model,
                "messages": [{"role": "user", "content": "Hello!"}],
                "max_tokens": 16,
            }
            request = urllib.request.Request(
                f"{server.base_url}/chat/completions",
                json.dumps(body).encode(),
                {"content-type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
            seconds.append(time.perf_counter() - started)
            memory.append(peak_memory(server.pid) / 1e6)
    return {
        "seconds_to_first_answer": statistics.median(seconds),
        "seconds_range": [min(seconds), max(seconds)],
        "peak_memory_mb": max(memory),
        "rounds": rounds,
    }

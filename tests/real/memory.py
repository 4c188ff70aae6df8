"""Measure the start of a server with a model, and whether its processes have the memory that it announces."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from own_server.launch import free_port

from .http import get, post
from .vocabulary import Verdict

__all__ = ["start_and_memory"]

_CACHE = 128 * 1024**2
_SEQUENCES = 256
_CLOSE = 0.1
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_PLAN = re.compile(r"memory +([\d.]+) (\w+) now, ([\d.]+) (\w+) at most; weights ([\d.]+) (\w+)")


def start_and_memory(file: Path) -> Verdict:
    """Start a server twice, fill its cache, and compare what its processes have with what it announces.

    The peak is that of both processes together: the highest sum while they start, and then the sum of the highest.
    """
    seconds, cpu = [], []
    for last in (False, True):
        began = time.monotonic()
        with _server(file) as (base, processes, printed, starting):
            seconds.append(time.monotonic() - began)
            cpu.append(sum(map(_cpu, processes())))
            if not last:
                continue
            plan = _PLAN.search(printed())
            if plan is None:
                return Verdict("no plan", [f"no plan of memory was printed: {printed()!r:.300}"])
            now, most, weights = (float(plan[i]) * _UNITS[plan[i + 1]] for i in (1, 3, 5))
            rest = sum(_status(process, "VmRSS") for process in processes())
            for process in processes():
                Path(f"/proc/{process}/clear_refs").write_text("5")  # Begins the highest anew.
            _fill(base)
            peak = max(starting, sum(_status(process, "VmHWM") for process in processes()))
    problems = [
        f"{name}: {size / 2**20:,.0f} MiB instead of the {planned / 2**20:,.0f} that were announced"
        for name, size, planned in (("at rest", rest, now), ("at its peak", peak, most))
        if abs(size - planned) > _CLOSE * planned
    ]
    line = (
        f"ready after {seconds[0]:.1f} and {seconds[1]:.1f} s ({cpu[0]:.1f} and {cpu[1]:.1f} s of CPU); at rest "
        f"{rest / 2**20:,.0f} MiB of {now / 2**20:,.0f}, with a full cache of {_CACHE // 2**20} MiB and "
        f"{_SEQUENCES} sequences {peak / 2**20:,.0f} of {most / 2**20:,.0f}, "
        f"{peak / (weights + _CACHE):.2f} times weights and cache"
    )
    row = {
        "CPU to ready, s": f"{cpu[1]:.1f}",
        "at rest, MiB (announced)": f"{rest / 2**20:,.0f} ({now / 2**20:,.0f})",
        "at the peak, MiB (announced)": f"{peak / 2**20:,.0f} ({most / 2**20:,.0f})",
    }
    return Verdict(line, problems, row=row)


@contextmanager
def _server(file: Path) -> Iterator[tuple[str, Any, Any, int]]:
    """Yield the URL of a server, functions that return its processes and what it prints, and its highest memory."""
    port = free_port()
    command = [sys.executable, "-m", "plumbline", "serve", "--model", str(file), "--port", str(port)]
    command += ["--store", "none", "--kv-cache-bytes", str(_CACHE), "--max-model-len", "1024"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen(command, stderr=output)

        def printed() -> str:
            output.seek(0)
            return output.read()

        def processes() -> list[int]:
            tasks = Path(f"/proc/{process.pid}/task").iterdir()
            children = " ".join(task.joinpath("children").read_text() for task in tasks).split()
            return [process.pid, *map(int, children)]

        highest = 0
        try:
            while True:
                assert process.poll() is None, printed()
                with suppress(OSError):
                    get(f"http://127.0.0.1:{port}/health/ready")
                    break
                with suppress(OSError):  # A process that ends, such as a compiler.
                    highest = max(highest, sum(_status(each, "VmRSS") for each in processes()))
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port}/v1", processes, printed, highest
        finally:
            process.terminate()
            process.wait(90)


def _fill(base: str) -> None:
    """Fill the cache with sequences that run at the same time."""
    model = get(f"{base}/models")["data"][0]["id"]
    each = 16 * _blocks(base) // _SEQUENCES
    draw = random.Random(1)
    # Prompts are short, so that all sequences run before the first one ends.
    prompts = [[draw.randrange(1000, 20_000) for _ in range(4)] for _ in range(_SEQUENCES)]

    def ask(prompt: list[int]) -> None:
        fields = {"model": model, "prompt": prompt, "max_tokens": each - len(prompt), "ignore_eos": True}
        post(f"{base}/completions", fields)

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _blocks(base: str) -> int:
    """Return the blocks of the cache."""
    import urllib.request

    with urllib.request.urlopen(f"{base.removesuffix('/v1')}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = re.findall(r"^plumbline_kv_blocks\S* ([\d.e+]+)$", text, re.MULTILINE)
    return int(float(found[0]))


def _status(process: int, name: str) -> int:
    """Return a size of a process in bytes."""
    text = Path(f"/proc/{process}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


def _cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

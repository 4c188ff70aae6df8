"""Run the benchmarks (`nox -s bench`), print tables, and write them with the environment to benchmarks/results/."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "conformance/reference_parsers")]

from environment import run as run_with_other_parsers  # noqa: E402

from benchmarks import quantization, structured_output  # noqa: E402
from benchmarks.environment import environment  # noqa: E402
from benchmarks.serving import api_servers, gguf, native, startup, store, streams, vllm_engine  # noqa: E402
from benchmarks.serving import peers as serving  # noqa: E402
from benchmarks.serving.processes import available  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
VLLM = ROOT / ".nox" / ".peer-vllm" / "bin"
LLAMA_SERVER = ROOT / ".nox" / ".peer-llama-server" / "bin"
PEERS = ("transformers", "transformers-cb")
PARTS = (
    "micro",
    "parsers",
    "startup",
    "structured_output",
    "serving",
    "streams",
    "api_servers",
    "store",
    "vllm_engine",
    "native",
    "gguf",
    "quantization",
)

COLUMNS = {
    "micro": {
        "name": "benchmark",
        "median_us": "median us",
        "us_per_event": "us/event",
        "us_per_request": "us/request",
        "us_per_token": "us/token",
    },
    "parsers": {
        "dialect": "dialect",
        "case": "case",
        "tokens": "tokens",
        "us_per_token_plumbline": "us/token",
        "us_per_token_vLLM": "vLLM",
        "us_per_token_SGLang": "SGLang",
        "other_message": "another message",
    },
    "structured_output": {
        "batch": "batch",
        "free_tokens_per_second": "free tokens/s",
        "json_schema_tokens_per_second": "schema tokens/s",
        "json_schema_ratio_to_free": "ratio",
        "mask_us": "mask us",
        "mask_us_p99": "p99",
        "accept_us": "accept us",
        "compile_ms": "compile ms",
    },
    "vllm_engine": {
        "model": "model",
        "concurrency": "concurrency",
        "tokens_per_second": "tokens/s",
        "tokens_per_second_vllm": "vLLM's server",
        "ratio": "ratio",
    },
    "native": {
        "model": "model",
        "prompt_tokens": "prompt",
        "concurrency": "concurrency",
        "server": "server",
        "median": "tokens/s",
        "range": "range",
        "ratio_to_ours": "to ours",
    },
    "gguf": {
        "prompt_tokens": "prompt",
        "concurrency": "concurrency",
        "server": "server",
        "median": "tokens/s",
        "range": "range",
        "ratio_to_ours": "to ours",
    },
    "quantization": {
        "weights": "weights",
        "tokens": "tokens",
        "perplexity": "perplexity",
        "same_choice_percent": "same token %",
        "same_answers_percent": "same answer %",
    },
    "streams": {
        "server": "server",
        "streams": "streams",
        "events_per_second": "events/s",
        "delay_ms": "delay ms",
        "delay_ms_p99": "p99",
        "delay_ms_max": "longest",
        "server_cpu": "CPU",
    },
    "api_servers": {
        "api_servers": "API servers",
        "events": "events",
        "events_per_second": "events/s",
        "api_server_us": "API server us/event",
        "engine_process_us": "engine process us/event",
        "memory_mb": "MB",
        "kb_per_stream": "KB/stream",
        "most_events_per_second": "most events/s",
        "ratio": "ratio",
    },
    "store": {"name": "what", "median_ms": "median ms", "p99_ms": "p99", "count": "measured"},
    "serving": {
        "server": "server",
        "concurrency": "concurrency",
        "tokens": "tokens",
        "tokens_per_second": "tokens/s",
        "tokens_per_second_ratio_to_transformers": "to its default",
        "tokens_per_second_ratio_to_transformers-cb": "to its batching",
        "tokens_per_cpu_second": "tokens/CPU s",
        "tokens_per_cpu_second_ratio_to_transformers": "to its default",
        "tokens_per_cpu_second_ratio_to_transformers-cb": "to its batching",
        "ttft_ms": "TTFT ms",
        "tpot_ms": "TPOT ms",
        "peak_memory_mb": "peak MB",
        "same_text_as_peers": "same text",
    },
}


def main() -> None:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        choices=PARTS,
        metavar="PART",
        help=f"what to measure: {', '.join(PARTS)} (default: all)",
    )
    parser.add_argument(
        "--model",
        type=Path,
        default=ROOT / "src/plumbline/pocket/model",
        help="model folder to serve (default: the pocket model)",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of startup, structured_output and serving (default 5)"
    )
    parser.add_argument(
        "--passes",
        type=int,
        default=1,
        help="passes of micro and parsers; each row keeps the fastest (default 1)",
    )
    parser.add_argument("--name", default="cpu", help="part of the file name of the results")
    options = parser.parse_args()
    parts = options.parts or PARTS
    result: dict[str, Any] = {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
    }
    if "micro" in parts:
        result["micro"] = micro(options.passes)
    if "parsers" in parts:
        result["parsers"], versions = parsers(options.passes)
        result["environment"]["packages"] |= versions
    if "startup" in parts:
        result["startup"] = startup.measure(options.model, rounds=options.rounds)
    if "structured_output" in parts:
        result["structured_output"] = [structured_output.measure(options.model, rounds=options.rounds)]
    if "serving" in parts:
        names = ["plumbline", *(name for name in PEERS if available(name))]
        if len(names) == 1:
            print("transformers serve is not installed: no peer in this run", file=sys.stderr)
        result["serving"] = serving.measure(options.model, names, rounds=options.rounds)
    if "streams" in parts:
        result["streams"] = streams.measure()
    if "api_servers" in parts:
        result["api_servers"] = api_servers.measure()
    if "store" in parts:
        result["store"] = store.measure()
    measure_beside_engines(parts, options.rounds, result)
    if "quantization" in parts:
        result["quantization"] = quantization.measure()
    show(result)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{result['taken'][:10]}-{options.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(path.relative_to(ROOT))


def measure_beside_engines(parts: Sequence[str], rounds: int, result: dict[str, Any]) -> None:
    """Measure the parts that need engines of others, as far as these are installed."""
    if "vllm_engine" in parts:
        if (VLLM / "plumbline").is_file():
            result["vllm_engine"] = vllm_engine.measure(VLLM, rounds=rounds)
        else:
            print("vLLM is not installed (`nox -s engines -- vllm` installs it)", file=sys.stderr)
    if "native" in parts:
        peers = [path if path.is_dir() else None for path in (VLLM, LLAMA_SERVER)]
        if None in peers:
            print(
                "vLLM or llama-server is not installed (`nox -s peers -- vllm llama-server`)", file=sys.stderr
            )
        result["native"] = native.measure(*peers, rounds=rounds)
    if "gguf" in parts:
        if find_spec("llama_cpp") is not None:
            llama = LLAMA_SERVER if LLAMA_SERVER.is_dir() else None
            result["gguf"] = gguf.measure(llama, rounds=rounds)
        else:
            print(
                "llama-cpp-python is not installed (`CMAKE_ARGS=-DGGML_NATIVE=OFF pip install llama-cpp-python` "
                "builds it like llama-server)",
                file=sys.stderr,
            )


def micro(passes: int) -> list[dict[str, Any]]:
    """Run the pytest-benchmark suite and reduce it to medians and costs per unit.

    All rounds of one row take place within a moment, so another load on the machine can slow down all of them. Several
    passes spread them out.
    """
    fastest: dict[str, dict[str, Any]] = {}
    for _ in range(passes):
        for row in _pass():
            before = fastest.get(row["name"])
            if before is None or row["stats"]["min"] < before["stats"]["min"]:
                fastest[row["name"]] = row
    return [
        {
            "name": row["name"],
            "median_us": row["stats"]["median"] * 1e6,
            "min_us": row["stats"]["min"] * 1e6,
            "rounds": row["stats"]["rounds"],
            **row["extra_info"],
        }
        for row in fastest.values()
    ]


def _pass() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "micro.json"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                str(ROOT / "benchmarks/micro"),
                f"--benchmark-json={path}",
            ],
            check=True,
            cwd=ROOT,
        )
        found: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["benchmarks"]
        return found


def parsers(passes: int) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Measure our parsers and those of other servers, if installed; return rows and the versions of the servers."""
    done = run_with_other_parsers(["benchmarks/parsers.py", "--passes", str(passes)])
    done.check_returncode()
    found = json.loads(done.stdout)
    if not found["peers"]:
        print(
            "neither vLLM's nor SGLang's parsers can be imported (`nox -s differential` installs them)",
            file=sys.stderr,
        )
    return [
        {
            "dialect": row["dialect"],
            "case": row["case"],
            "tokens": row["tokens"],
            **{f"us_per_token_{name}": cost for name, cost in row["us_per_token"].items()},
            "other_message": ", ".join(
                name for name, same in row.get("same_message", {}).items() if not same
            ),
            "failed": row.get("failed", {}),
        }
        for row in found["rows"]
    ], found["peers"]


def show(result: dict[str, Any]) -> None:
    """Print the results as tables."""
    console = Console(width=140)
    for part, keys in COLUMNS.items():
        rows = result.get(part)
        if rows:
            table = Table(*keys.values(), title=part)
            for row in rows:
                table.add_row(*(_cell(row.get(key)) for key in keys))
            console.print(table)
    if "startup" in result:
        console.print("startup", result["startup"])


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "" if value is None else str(value)


if __name__ == "__main__":
    main()

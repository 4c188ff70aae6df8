"""`nox -s bench`: run everything, print a table, and write it with its environment to benchmarks/results/."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.differential.environment import run as run_beside_peers  # noqa: E402

from benchmarks import forms, serving, startup  # noqa: E402
from benchmarks.environment import environment  # noqa: E402
from benchmarks.servers import available  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
PEERS = ("transformers", "transformers-cb")

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
        "reading": "reading",
        "tokens": "tokens",
        "us_per_token_plumbline": "us/token",
        "us_per_token_vLLM": "vLLM",
        "us_per_token_SGLang": "SGLang",
        "other_message": "another message",
    },
    "forms": {
        "batch": "batch",
        "free_tokens_per_second": "free tokens/s",
        "json_schema_tokens_per_second": "schema tokens/s",
        "json_schema_ratio_to_free": "ratio",
        "mask_us": "mask us",
        "mask_us_p99": "p99",
        "accept_us": "accept us",
        "compile_ms": "compile ms",
    },
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
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", default=[], help="micro, parsers, startup, forms, serving; default: all"
    )
    parser.add_argument("--model", type=Path, default=ROOT / "src/plumbline/pocket/model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--passes", type=int, default=1, help="of micro and parsers, of which each row is the fastest"
    )
    parser.add_argument("--name", default="cpu", help="part of the file name of the results")
    options = parser.parse_args()
    parts = options.parts or ["micro", "parsers", "startup", "forms", "serving"]
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
    if "forms" in parts:
        result["forms"] = [forms.measure(options.model, rounds=options.rounds)]
    if "serving" in parts:
        names = ["plumbline", *(name for name in PEERS if available(name))]
        if len(names) == 1:
            print("transformers serve is not installed: no peer in this run", file=sys.stderr)
        result["serving"] = serving.measure(options.model, names, rounds=options.rounds)
    show(result)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{result['taken'][:10]}-{options.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(path.relative_to(ROOT))


def micro(passes: int) -> list[dict[str, Any]]:
    """The pytest-benchmark suite, reduced to medians and what each one counts.

    A neighbour on the same processor slows down all rounds of a row, for they take a moment: several passes meet it in
    several moments.
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
    """Our parsers beside those of other servers, where these can be imported, and the versions of the latter."""
    done = run_beside_peers(["benchmarks/parsers.py", "--passes", str(passes)])
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
            "reading": row["reading"],
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
    """Print what was measured, one line a row."""
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

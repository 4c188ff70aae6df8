"""Print the tables of predictions, and write them with `--to` and `--page`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from benchmarks.roofline.compiled import resources
from benchmarks.roofline.devices import DEVICES, Device
from benchmarks.roofline.launches import launches, narrow_launches
from benchmarks.roofline.prediction import predict
from benchmarks.roofline.shapes import CONTEXT, LOADS, SHAPES

_LOSSES = 10


def rows(devices: Sequence[Device]) -> Iterator[dict[str, Any]]:
    """Yield what is predicted of each launch of each step."""
    for device in devices:
        for shape in SHAPES:
            for load in LOADS:
                for launch in chain(
                    launches(shape, load, device.capability),
                    narrow_launches(shape, load, device.capability),
                ):
                    found = resources(launch.case, device.capability)
                    result = predict(device, launch, found)
                    yield {
                        "device": device.name,
                        "model": shape.name,
                        "load": load.name,
                        "kernel": launch.kernel,
                        "registers": found.registers,
                        "spilled": found.stack,
                        "shared": found.shared,
                        "instruction": found.instruction,
                        "pipelined": found.is_pipelined,
                        "programs": launch.programs,
                        "resident": result.resident,
                        "waves": round(result.waves, 2),
                        "bytes": round(launch.least_bytes),
                        "flops": round(launch.flops),
                        "us": round(result.seconds * 1e6, 2),
                        "share": round(result.share, 4),
                        "bound": result.bound,
                        "lost_us_per_step": round(
                            (result.seconds - result.attainable) * launch.per_step * 1e6, 1
                        ),
                    }


def table(found: list[dict[str, Any]], device: str) -> list[str]:
    """Return the shares on one GPU in percent, as a table in Markdown."""
    loads = [load.name for load in LOADS]
    lines = [f"| {device}: model | kernel | {' | '.join(loads)} |", "|---" * (len(loads) + 2) + "|"]
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in found:
        if row["device"] == device:
            mark = {"latency": "", "chain": " l", "memory": " m", "compute": " c"}[row["bound"]]
            text = f"{100 * row['share']:.3g}{mark}"
            cells.setdefault((row["model"], row["kernel"]), {})[row["load"]] = text
    for (model, kernel), values in cells.items():
        lines.append(f"| {model} | {kernel} | {' | '.join(values.get(load, '') for load in loads)} |")
    return lines


def losses(found: list[dict[str, Any]], device: str) -> list[str]:
    """Return the launches that lose most of a step on one GPU."""
    lines = ["| model | load | kernel | us each | share | bound by | lost us of a step |", "|---" * 7 + "|"]
    worst = sorted(
        (row for row in found if row["device"] == device), key=lambda row: -row["lost_us_per_step"]
    )
    decodes = [row for row in worst if row["load"].startswith("decode")]
    for row in decodes[:_LOSSES]:
        values = (
            row["model"],
            row["load"],
            row["kernel"],
            row["us"],
            f"{100 * row['share']:.3g} %",
            row["bound"],
        )
        lines.append(f"| {' | '.join(map(str, values))} | {row['lost_us_per_step']} |")
    return lines


def page(found: list[dict[str, Any]], devices: Sequence[Device]) -> str:
    """Return all tables with their explanation."""
    models = "; ".join(f"{shape.name} like {shape.like}" for shape in SHAPES)
    lines = [
        "# Predicted shares of the roofline",
        "",
        "Made by `nox -s roofline`. **A prediction, not a measurement**: `python -m benchmarks.gpu` measures, and has",
        "done so on an H200 (`2026-11-26-gpu-h200.json`). The model and its limits are in",
        "`benchmarks/roofline/__init__.py`, facts and assumptions about GPUs in `devices.py` there.",
        "",
        "Percent of the roofline by kernel and load, without the cost of launches; 90 % of the bandwidth is",
        "attainable. What most of the time goes to: m the bandwidth, c computing, l loads that wait for each other,",
        f"else the latency of the first load. Decodes have {CONTEXT} tokens before them, a prompt is one step. Rows",
        "are drawn with `top_p`; all tokens have an adapter of rank 16, shown at the projection of q, k and v. Matrix",
        "products of dense layers are cuBLAS's and not in the table, but those with weights of 8 or 4 bits are, for",
        "the same projection and each kind for itself. Kernels that move few bytes, such as a norm of",
        "one row, cannot reach much of a roofline: what they lose of a step is in the second table.",
        "",
        f"Models: {models}.",
        "",
    ]
    for device in devices:
        lines += [f"## {device.name}", "", *table(found, device.name), ""]
        lines += ["What decodes lose most of a step to:", "", *losses(found, device.name), ""]
    return "\n".join(lines)


def main() -> None:
    """Predict, print, write."""
    parser = argparse.ArgumentParser(prog="roofline", description=__doc__)
    parser.add_argument("--device", choices=[device.name for device in DEVICES], action="append")
    parser.add_argument("--to", type=Path, help="write all numbers as JSON")
    parser.add_argument("--page", type=Path, help="write the tables as Markdown")
    options = parser.parse_args()
    devices = [device for device in DEVICES if not options.device or device.name in options.device]
    found = list(rows(devices))
    text = page(found, devices)
    print(text)
    if options.page is not None:
        options.page.write_text(text, "utf-8")
    if options.to is not None:
        result = {
            "date": datetime.now(UTC).date().isoformat(),
            "what": "predictions, not measurements",
            "environment": environment(),
            "rows": found,
        }
        options.to.write_text(json.dumps(result, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()

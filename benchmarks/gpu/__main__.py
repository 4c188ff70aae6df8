"""Print what was found, and write it with `--to`; the package's docstring says what is tried."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

TINY = "--dry-run" in sys.argv
if TINY:
    # Triton reads both when it is imported.
    os.environ |= {"TRITON_INTERPRET": "1", "PLUMBLINE_FORCE_TRITON": "1"}

import torch  # noqa: E402

from benchmarks.environment import environment  # noqa: E402
from benchmarks.gpu.families import family_cases, family_difference, graph_difference  # noqa: E402
from benchmarks.gpu.further import LATENT, NET, SMALL_LATENT, SMALL_NET, mixers, narrow_operations  # noqa: E402
from benchmarks.gpu.operations import (  # noqa: E402
    KernelCall,
    Maker,
    difference,
    on_cpu,
    operations,
    reference,
)
from benchmarks.gpu.ready import FAMILIES as READY  # noqa: E402
from benchmarks.gpu.ready import ready  # noqa: E402
from benchmarks.gpu.serving import measure  # noqa: E402
from benchmarks.gpu.timing import gpu_seconds  # noqa: E402
from benchmarks.roofline.devices import DEVICES, Device  # noqa: E402
from benchmarks.roofline.launches import Launch, launches  # noqa: E402
from benchmarks.roofline.shapes import LOADS, SHAPES, ModelShape, StepLoad  # noqa: E402

LIMITS = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""Largest differences of an operation, and of logits as a graph; bf16 has steps of 0.8 %."""
FAMILIES = {torch.bfloat16: 3.0, torch.float32: 1e-4}
"""Largest `family_difference`."""
DRAWS = 0.02
"""Largest share of drawn tokens that differ: where two are as likely, the last bit of an exponential decides."""
SMALL = (
    ModelShape("small", "dense", 1, 128, 8, 2, 64, 192, 1000),
    ModelShape("small experts", "experts", 1, 128, 4, 1, 128, 64, 1000, experts=8, top_k=2),
)
"""Shapes of the comparison with the reference."""
SMALL_LOADS = (StepLoad("decode 1", 1), StepLoad("decode 3", 3), StepLoad("prefill 37", 1, 37))
SMALLEST = ModelShape("tiny", "experts", 1, 32, 2, 1, 16, 24, 70, experts=2, top_k=1)


def compared(
    make: Maker, shapes: Sequence[ModelShape], loads: Sequence[StepLoad], context: int
) -> Iterator[dict[str, Any]]:
    """Yield how far each operation is from its reference."""
    for load in loads:
        for shape in shapes:
            for each in chain(operations(make, shape, load, context), narrow_operations(make, shape, load)):
                yield _row(f"{each.name}, {shape.name}, {load.name}", *_compared(make, each))
        for each in mixers(make, SMALL_LATENT, SMALL_NET, load, context):
            yield _row(f"{each.name}, {load.name}", *_compared(make, each))


def _compared(make: Maker, each: KernelCall) -> tuple[float | str, float]:
    """Return how far an operation is from its reference, or what went wrong, and the limit."""
    # Copied first: some operations write in place.
    arguments = on_cpu(each.arguments)
    found = _tried(lambda: each.call(*each.arguments))
    with reference():
        far = found if isinstance(found, str) else difference(found, each.call(*arguments))
    return far, DRAWS if each.name == "sample" else LIMITS[make.dtype]


def compared_families(make: Maker, cases: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield how far the logits of each family are from those of the CPU; see `family_difference`."""
    for case in cases:
        yield _row(case.name, _tried(lambda one=case: family_difference(one, make)), FAMILIES[make.dtype])


def compared_graphs(make: Maker, cases: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield how far the logits of decodes as a graph are from those of decodes launch by launch."""
    for case in cases:
        yield _row(case.name, _tried(lambda one=case: graph_difference(one, make)), LIMITS[make.dtype])


def _tried(call: Any) -> Any:
    """Return a result, or what went wrong as text: one bad kernel must not hide the others."""
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _row(name: str, far: float | str, limit: float) -> dict[str, Any]:
    failed = isinstance(far, str) or not far <= limit
    return {"name": name, "difference": far, "limit": limit, "passed": not failed}


def timed(
    make: Maker, device: Device | None, until: float, steps: Sequence[tuple[ModelShape, StepLoad]]
) -> Iterator[dict[str, Any]]:
    """Yield the time of each operation beside the prediction, until the time is over."""
    for shape, load in steps:
        known = list(launches(shape, load, device.capability)) if device else []
        for each in chain(operations(make, shape, load), narrow_operations(make, shape, load)):
            if time.monotonic() > until:
                return
            yield _timed(make, device, each, known) | {"model": shape.name, "load": load.name}
    for load in dict.fromkeys(load for _, load in steps):
        latents, net = (LATENT, NET) if device else (SMALL_LATENT, SMALL_NET)
        for each in mixers(make, latents, net, load):
            if time.monotonic() > until:
                return
            yield _timed(make, device, each, []) | {"model": "mixers", "load": load.name}


def _timed(make: Maker, device: Device | None, each: KernelCall, known: Sequence[Launch]) -> dict[str, Any]:
    """Return the time of an operation beside the prediction, or what went wrong."""
    seconds = _tried(lambda: _seconds(each, make.device))
    if isinstance(seconds, str):
        return {"operation": each.name, "error": seconds}
    return {"operation": each.name, "us": round(seconds * 1e6, 2)} | _beside(device, each, known, seconds)


def _beside(
    device: Device | None, operation: KernelCall, known: Sequence[Launch], seconds: float
) -> dict[str, Any]:
    """Return the bytes and products a second, and the share of the roofline, if the GPU is known."""
    parts = [launch for launch in known if launch.kernel.startswith(operation.launches)]
    if device is None or not operation.launches or not parts:
        return {}
    from benchmarks.roofline.compiled import resources
    from benchmarks.roofline.prediction import predict

    predicted = [predict(device, part, resources(part.case, device.capability)) for part in parts]
    return {
        "predicted_us": round(sum(each.seconds for each in predicted) * 1e6, 2),
        "gb_per_second": round(sum(part.least_bytes for part in parts) / seconds / 1e9, 1),
        "tflop_per_second": round(sum(part.flops for part in parts) / seconds / 1e12, 2),
        "share": round(sum(each.roofline for each in predicted) / seconds, 4),
    }


def _seconds(operation: KernelCall, device: torch.device) -> float:
    """Return the time of an operation; see `gpu_seconds`."""
    if device.type != "cuda":
        start = time.perf_counter()
        operation.call(*operation.arguments)
        return time.perf_counter() - start
    return gpu_seconds(lambda: operation.call(*operation.arguments))


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the times as a table in Markdown."""
    columns = (
        *("model", "load", "operation", "us", "predicted_us", "gb_per_second", "tflop_per_second"),
        *("share", "error"),
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return lines + [f"| {' | '.join(str(row.get(name, '')) for name in columns)} |" for row in rows]


def _known(device: torch.device) -> Device | None:
    """Return the facts of the GPU, if the roofline has them."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((known for known in DEVICES if known.name in name), None)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="end the table after so long (%(default)s)")
    parser.add_argument("--to", type=Path, help="file for the figures, as JSON")
    parser.add_argument(
        "--dry-run", action="store_true", help="tiny shapes on a CPU under Triton's interpreter; no figures"
    )
    parser.add_argument("--families", type=int, help="compare so many families, not all")
    args = parser.parse_args(argv)
    until = time.monotonic() + 60 * args.minutes
    if not args.dry_run and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; try the script with --dry-run")
    if args.dry_run:
        make = Maker(torch.device("cpu"), torch.float32)
        shapes, loads = [SMALLEST], [StepLoad("decode 2", 2), StepLoad("prefill 5", 1, 5)]
        steps = [(SMALLEST, loads[0])]
    else:
        make = Maker(torch.device("cuda"), torch.bfloat16)
        shapes, loads = list(SMALL), list(SMALL_LOADS)
        steps = [(shape, load) for load in LOADS for shape in SHAPES]
        print(torch.cuda.get_device_name(), flush=True)
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name() if not args.dry_run else None,
        "environment": environment(),
    }
    cases = family_cases(wide=not args.dry_run)[: args.families]
    known = _known(make.device)
    # What has never run comes first, and what takes the rest of the time last.
    parts: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
        "ready": lambda: [ready(make, family, tiny=args.dry_run) for family in READY],
        "kernels": lambda: compared(make, shapes, loads, context=20 if args.dry_run else 300),
        "graphs": lambda: compared_graphs(make, cases),
        "families": lambda: compared_families(make, cases),
        "serving": lambda: [] if args.dry_run else _served(until),
        "times": lambda: timed(make, known, until, steps),
    }
    passed = [_run(name, part, result, args.to) for name, part in parts.items()]
    print("\n".join(table(result["times"])))
    if args.dry_run:
        print("A dry run on a CPU: the times are those of the interpreter and say nothing of a GPU.")
    return 0 if all(passed) else 1


def _run(
    name: str, part: Callable[[], Iterable[dict[str, Any]]], result: dict[str, Any], to: Path | None
) -> bool:
    """Run a part, print and write what it found; a part that fails leaves its rows so far, and the error."""
    rows = result[name] = []
    try:
        rows.extend(part())
    except Exception as error:
        rows.append({"name": name, "error": f"{type(error).__name__}: {error}"[:500], "passed": False})
    bad = [row for row in rows if not row.get("passed", True)]
    print(f"{name}: {len(rows) - len(bad)} of {len(rows)} agree", flush=True)
    for row in bad:
        print(f"  {row}", flush=True)
    if to is not None:
        to.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return not bad


def _served(until: float) -> Iterator[dict[str, Any]]:
    """Yield tokens a second of servers, vLLM's beside ours if it is installed, while a third of the time is left."""
    engines = ["plumbline", *(["vllm"] if find_spec("vllm") else [])]
    for shape in (None, next(shape for shape in SHAPES if shape.name == "8 B")):
        if time.monotonic() < until - 180:
            yield from measure([shape], engines, (1, 64), rounds=1)


if __name__ == "__main__":
    sys.exit(main())

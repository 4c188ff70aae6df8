"""Laws of the script for GPUs, as far as a CPU can try them.

* It runs to its end under the interpreter, and each operation and family agrees with its reference there.
* A wrong result, a result in the wrong place and a crash are each reported under the name of the operation.
* A part that fails ends no other, and what it found is written.
* The share of the roofline is that of the launches of the operation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu import __main__ as script
from benchmarks.gpu.operations import KernelCall, Maker, difference, on_cpu, operations
from benchmarks.roofline.compiled import Resources
from benchmarks.roofline.devices import DEVICES
from benchmarks.roofline.launches import launches
from benchmarks.roofline.prediction import predict
from benchmarks.roofline.shapes import LOADS, SHAPES, StepLoad

from plumbline.engines.native.graphs import StepGraphs

triton = pytest.importorskip("triton")
MAKE = Maker(torch.device("cpu"), torch.float32)
LOAD = StepLoad("decode 2", 2)
FOUND = Resources(registers=64, stack=0, shared=0, instruction="mma.sync", is_pipelined=True)


def failed() -> list[str]:
    rows = script.compared(MAKE, [script.SMALLEST], [LOAD], context=20)
    return [row["name"].partition(",")[0] for row in rows if not row["passed"]]


def test_references_agree_with_themselves() -> None:
    assert failed() == []


@pytest.mark.parametrize("fault", ["value", "infinity", "shape", "crash"])
def test_a_fault_is_reported_under_the_name_of_its_operation(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plumbline_kernels import swiglu

    right, calls = swiglu.silu_mul, []

    def wrong(gate_up: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        found = right(gate_up)
        if len(calls) == 1:
            if fault == "crash":
                raise RuntimeError("an illegal memory access was encountered")
            if fault == "shape":
                return found[:, :-1]
            found[-1, -1] += float("inf") if fault == "infinity" else 0.01
        return found

    monkeypatch.setattr(swiglu, "silu_mul", wrong)
    # The experts are the first that use it, and their reference calls it rightly.
    assert failed() == ["experts"]


def test_inputs_of_the_reference_are_copies() -> None:
    """Else operations that write in place would change the inputs of their reference."""
    for each in operations(MAKE, script.SMALLEST, LOAD, context=20):
        before = on_cpu(each.arguments)
        tensors = [value for value in before if isinstance(value, torch.Tensor)]
        assert all(value.data_ptr() not in _pointers(each) for value in tensors)


def _pointers(operation: KernelCall) -> set[int]:
    return {value.data_ptr() for value in operation.arguments if isinstance(value, torch.Tensor)}


def test_drawn_tokens_are_compared_by_their_share() -> None:
    assert difference(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5])) == 0.25
    assert difference(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 4.0])) == 0.25


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_every_launch_of_a_step_belongs_to_an_operation(shape: object) -> None:
    """Else the table would compare an operation with a part of its work."""
    small = list(operations(MAKE, script.SMALLEST, LOAD, context=20))
    for load in LOADS:
        kinds = {"decode": "prefill", "prefill": "decode"}
        other = next(kinds[kind] for kind in kinds if load.name.startswith(kind))
        for launch in launches(shape, load):  # type: ignore[arg-type]
            owners = [one for one in small if one.launches and launch.kernel.startswith(one.launches)]
            assert owners or launch.kernel.startswith("attention"), launch.kernel
            assert other not in launch.kernel


def test_the_share_is_that_of_all_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.roofline import compiled

    monkeypatch.setattr(compiled, "resources", lambda case, capability: FOUND)
    device, known = DEVICES[1], list(launches(SHAPES[0], LOADS[0]))
    operation = KernelCall("sample", lambda: None, (), ("sample",))
    parts = [launch for launch in known if launch.kernel.startswith("sample")]
    assert len(parts) == 5
    row = script._beside(device, operation, known, 1e-3)
    assert row["share"] == pytest.approx(
        sum(predict(device, part, FOUND).roofline for part in parts) / 1e-3, abs=1e-4
    )
    assert script._beside(None, operation, known, 1e-3) == {}


def test_a_graph_agrees_with_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that keeps an old length does not; of a family with states, whose prompts are compared as well."""
    (case,) = (case for case in script.family_cases(wide=False) if case.name == "qwen3_next")  # type: ignore[attr-defined]
    assert script.family_difference(case, MAKE) < 1e-5  # type: ignore[attr-defined]
    assert script.graph_difference(case, MAKE) < 1e-5  # type: ignore[attr-defined]
    monkeypatch.setattr(StepGraphs, "_clear", lambda graphs, rows, size: graphs._seq_lens[:rows].fill_(1))
    assert script.graph_difference(case, MAKE) > 0.1  # type: ignore[attr-defined]


def test_a_part_that_fails_leaves_its_rows_and_the_others(tmp_path: Path) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield {"name": "first", "passed": True}
        raise RuntimeError("an illegal memory access was encountered")

    to = tmp_path / "gpu.json"
    result: dict[str, Any] = {}
    assert not script._run("kernels", failing, result, to)
    assert script._run("graphs", lambda: [{"name": "second", "passed": True}], result, to)
    written = json.loads(to.read_text("utf-8"))
    assert [row["passed"] for row in written["kernels"]] == [True, False]
    assert "illegal memory access" in written["kernels"][1]["error"]
    assert written["graphs"][0]["passed"]


@pytest.mark.long
def test_the_script_runs_under_the_interpreter(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--dry-run", "--families", "4", "--to"]
    root = Path(__file__).parents[2]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(root), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    result = subprocess.run(
        [*command, str(tmp_path / "gpu.json")],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert written["gpu"] is None
    assert next(name for name in written if isinstance(written[name], list)) == "ready"
    assert all(row["passed"] for row in written["ready"])
    assert len(written["families"]) == len(written["graphs"]) == 4
    assert {row["operation"] for row in written["times"]} >= {"attention decode", "experts", "sample"}
    assert not any("error" in row for row in written["times"])

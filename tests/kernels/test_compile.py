"""Every kernel compiles for an H200 on a machine without a GPU, keeps its registers and fits its shared memory."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from plumbline_kernels import (
    _attention_triton,
    _experts_triton,
    logits,
    lora,
    norm,
    rope_kv,
    sampling,
    swiglu,
)
from plumbline_kernels._backend import CompileCase

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.long

SHARED_LIMIT = 227 * 1024
CASES = [
    case
    for module in (norm, rope_kv, _attention_triton, _experts_triton, lora, swiglu, logits, sampling)
    for case in module.compile_cases()
]


def compile_for_h200(case: CompileCase) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = case.kernel.arg_names
    signature = {name: case.signature.get(name, "constexpr") for name in names}
    # What a launch knows of models: pointers, strides and widths are multiples of 16.
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if name.endswith(("_ptr", "stride", "inputs", "outputs", "rank")) and signature[name] != "constexpr"
    }
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=dict(case.constants), attrs=aligned)
    options = {name: case.options[name] for name in ("num_warps", "num_stages") if name in case.options}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def resources(cubin: bytes, folder: Path) -> dict[str, int]:
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    dump = subprocess.run(
        [tool, "--dump-resource-usage", path], capture_output=True, text=True, check=True
    ).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", dump)}
    assert found.keys() == {"REG", "STACK"}, dump
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_compiles_without_spills_and_within_shared_memory(case: CompileCase, tmp_path: Path) -> None:
    """No byte of stack, at most 227 KB of shared memory, and the matrix instruction that the tiles are chosen for."""
    kernel = compile_for_h200(case)

    assert resources(kernel.asm["cubin"], tmp_path)["STACK"] == 0
    assert kernel.metadata.shared <= SHARED_LIMIT
    for instruction in case.instructions:
        assert instruction in kernel.asm["ptx"]


def test_a_register_spill_is_detected(tmp_path: Path) -> None:
    """The gate closes: the prefill kernel with the tiles of a decode's warps needs more registers than there are."""
    (case,) = (case for case in CASES if case.name == "paged_attention hd=128 segments=0")
    starved = CompileCase(
        case.name, case.kernel, case.signature, case.constants, case.options | {"num_warps": 2}
    )

    assert resources(compile_for_h200(starved).asm["cubin"], tmp_path)["STACK"] > 0

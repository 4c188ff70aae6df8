"""Compile a launch of a kernel for a GPU that is not there, and read what it takes."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from plumbline_kernels._backend import COUNTS, INDICES, OPTIONS, CompileCase

__all__ = ["Resources", "compile_for", "resources"]

_ALIGNED = ("_ptr", "stride", "inputs", "outputs", "rank", "share", "group")
_MATRIX = ("tcgen05.mma", "wgmma", "mma.sync")
_known: dict[tuple[object, ...], Resources] = {}


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes."""

    registers: int
    """Of a thread."""
    stack: int
    """Bytes of a thread; more than 0 means that registers were spilled."""
    shared: int
    """Bytes of a program."""
    instruction: str
    """The matrix instruction, empty if there is none."""
    is_pipelined: bool
    """Whether its loop loads ahead of what it computes."""


def compile_for(case: CompileCase, target: int | str) -> Any:
    """Compile a launch for a compute capability such as 90, or for an AMD GPU such as gfx942; returns the kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = case.kernel.arg_names
    signature = {name: case.signature.get(name, "constexpr") for name in names}
    # What a launch knows of models: pointers, strides and widths are multiples of 16.
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if name.endswith(_ALIGNED) and name not in COUNTS | INDICES and signature[name] != "constexpr"
    }
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=dict(case.constants), attrs=aligned)
    gpu = GPUTarget("cuda", target, 32) if isinstance(target, int) else GPUTarget("hip", target, 64)
    options = {name: case.options[name] for name in OPTIONS if name in case.options}
    return triton.compile(source, target=gpu, options=options)


def resources(case: CompileCase, capability: int) -> Resources:
    """Compile a launch and return what it takes; equal launches are compiled once."""
    constants, options = tuple(sorted(case.constants.items())), tuple(sorted(case.options.items()))
    key = id(case.kernel), constants, options, capability
    if key not in _known:
        kernel = compile_for(case, capability)
        found = usage(kernel.asm["cubin"])
        ptx = kernel.asm["ptx"]
        _known[key] = Resources(
            registers=found["REG"],
            stack=found["STACK"],
            shared=int(kernel.metadata.shared),
            instruction=next((name for name in _MATRIX if name in ptx), ""),
            is_pipelined="cp.async" in ptx,
        )
    return _known[key]


def usage(cubin: bytes) -> dict[str, int]:
    """Return the registers (REG) and the bytes of stack (STACK) of a thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        dump = subprocess.run(
            [_tool(), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", dump)}
    if found.keys() != {"REG", "STACK"}:
        raise ValueError(f"cuobjdump printed no resource usage: {dump[:200]!r}")
    return found


@cache
def _tool() -> Path:
    import triton

    return Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

"""Choose between Triton and torch for each call, and look up the launch settings of the kernels.

CPU tensors go to the reference implementation in torch, CUDA tensors to Triton. `PLUMBLINE_FORCE_TRITON=1` sends CPU
tensors to Triton too, which only works under its interpreter (`TRITON_INTERPRET=1`, set before this package is
imported): that is how the kernels are tested without a GPU. Without Triton installed the CPU path still works.

Tile sizes come from `tuning.json`, because tuning while serving would cost seconds per shape. Most are the fastest on
an H200 (`python -m benchmarks.gpu.tune`) of those that fit the registers and the shared memory of every GPU in
`devices.CAPABILITIES` (tests/kernels/test_compile.py).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from plumbline_kernels.devices import shared_bytes

__all__ = [
    "COUNTS",
    "INDICES",
    "OPTIONS",
    "CompileCase",
    "capability_of",
    "check",
    "compiled_since",
    "jit",
    "next_power_of_2",
    "note_compiled",
    "num_compiled",
    "tl",
    "tuning",
    "use_triton",
]

# Triton 3.9 warns that its default flips in 3.10; the kernels are tested with fusion on.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

COUNTS = frozenset({"num_seqs", "num_rows", "places", "table_stride", "tokens"})
"""Arguments that change from step to step. Triton would compile a kernel again for 1 and for multiples of 16."""
INDICES = frozenset(
    f"{name}_ptr"
    for name in (
        *("block_ends", "block_tables", "ends", "lens", "order", "positions", "query_start", "reach"),
        *("row_ends", "rows", "seq_lens", "slots", "starts"),
    )
)
"""Pointers to a part of a step's indices, which may begin anywhere. Triton would compile again where one is aligned."""

tl: Any
jit: Callable[[Callable[..., Any]], Any]
try:
    import triton
    import triton.language

    tl = triton.language

    def jit(fn: Callable[..., Any]) -> Any:
        """Declare a kernel, with one variant for all counts and indices of steps."""
        return triton.jit(
            fn, do_not_specialize=sorted(COUNTS), do_not_specialize_on_alignment=sorted(INDICES)
        )

    triton.knobs.runtime.jit_post_compile_hook = lambda *, fn, **_: note_compiled(fn.name)
except ImportError:  # pragma: no cover - depends on the platform
    # Kernel signatures use `tl.constexpr`. The interpreter reads these annotations, so the files with kernels do not
    # postpone annotations.
    tl = SimpleNamespace(constexpr=int)

    def jit(fn: Callable[..., Any]) -> Any:
        """Stand in for triton.jit: the kernel exists but cannot be launched."""
        return fn


class _Compiled(threading.local):
    """The kernels that a thread has compiled, or found in Triton's cache on disk, since it began."""

    def __init__(self) -> None:
        self.names: list[str] = []


_compiled = _Compiled()


def note_compiled(name: str) -> None:
    """Count a variant of a kernel."""
    _compiled.names.append(name)


def num_compiled() -> int:
    """Return how many variants of kernels this thread has compiled or loaded since it began."""
    return len(_compiled.names)


def compiled_since(count: int) -> list[str]:
    """Return the names of kernels of which this thread has compiled variants after the first `count`."""
    return _compiled.names[count:]


OPTIONS = ("num_warps", "num_stages")
"""Options of a launch that entries of `tuning.json` have."""
FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
_FORCED = os.environ.get("PLUMBLINE_FORCE_TRITON") == "1"


@dataclass(frozen=True, slots=True)
class CompileCase:
    """The types and constants of one launch of a kernel: tests compile it without a GPU."""

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, int]
    instructions: tuple[str, ...] = ()
    """PTX instructions that the compiled code must contain."""


def use_triton(x: Tensor) -> bool:
    """Return whether the operation on `x` runs as a Triton kernel."""
    return x.is_cuda or _FORCED


_CAPABILITY = 90
"""The capability whose tiles kernels take on a CPU: under the interpreter, and where they are only compiled."""


def capability_of(device: torch.device) -> int:
    """Return the compute capability of a GPU, such as 90."""
    return _CAPABILITY if device.type != "cuda" else _gpu_capability(device)


@cache
def _gpu_capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def check(condition: bool, message: str) -> None:
    """Raise ValueError with `message` if `condition` is false."""
    if not condition:
        raise ValueError(message)


@cache
def _table() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(
        Path(__file__).with_name("tuning.json").read_text(encoding="utf-8")
    )
    return found


def tuning(name: str, capability: int = 90) -> dict[str, int]:
    """Return the tile sizes and launch options of a kernel.

    GPUs other than sm_90 may have entries of their own: `_sm_100` for those with as much shared memory, `_sm_80` for
    those with less. The number alone does not say: an sm_120 has less than an sm_80.
    """
    has_less = shared_bytes(capability) < shared_bytes(90)
    suffix = "" if capability == 90 else "_sm_80" if has_less else "_sm_100"
    return _table().get(name + suffix) or _table()[name]


def next_power_of_2(n: int) -> int:
    """Return the least power of two that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)

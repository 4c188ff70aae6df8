"""Choose between Triton and torch for each call, and look up the launch settings of the kernels.

CPU tensors go to the reference implementation in torch, CUDA tensors to Triton. `PLUMBLINE_FORCE_TRITON=1` sends CPU
tensors to Triton too, which only works under its interpreter (`TRITON_INTERPRET=1`, set before this package is
imported): that is how the kernels are tested without a GPU. Without Triton installed the CPU path still works.

Tile sizes come from `tuning.json`, because tuning while serving would cost seconds per shape. Most are the fastest on
an H200 (`python -m benchmarks.gpu.tune`) of those that fit the registers and the shared memory of sm_80, sm_90 and
sm_100 (tests/kernels/test_compile.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

__all__ = ["CompileCase", "capability_of", "check", "jit", "next_power_of_2", "tl", "tuning", "use_triton"]

# Triton 3.9 warns that its default flips in 3.10; the kernels are tested with fusion on.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

tl: Any
jit: Callable[[Callable[..., Any]], Any]
try:
    import triton
    import triton.language

    tl = triton.language
    jit = triton.jit
except ImportError:  # pragma: no cover - depends on the platform
    # Kernel signatures use `tl.constexpr`. The interpreter reads these annotations, so the files with kernels do not
    # postpone annotations.
    tl = SimpleNamespace(constexpr=int)

    def jit(fn: Callable[..., Any]) -> Any:
        """Stand in for triton.jit: the kernel exists but cannot be launched."""
        return fn


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


@cache
def capability_of(device: torch.device) -> int:
    """Return the compute capability of a GPU, such as 90; under the interpreter kernels take the tiles of that."""
    if device.type != "cuda":
        return 90
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
    """Return the tile sizes and launch options of a kernel; GPUs other than sm_90 may have entries of their own."""
    suffix = "_sm_80" if capability < 90 else "_sm_100" if capability >= 100 else ""
    return _table().get(name + suffix) or _table()[name]


def next_power_of_2(n: int) -> int:
    """Return the least power of two that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)

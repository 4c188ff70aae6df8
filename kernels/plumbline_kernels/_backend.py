"""Where a kernel runs and with what settings: the one place that knows whether Triton is here.

CPU tensors go to the torch twin, CUDA tensors to Triton. `PLUMBLINE_FORCE_TRITON=1` sends CPU tensors to Triton
too, which only works under its interpreter (`TRITON_INTERPRET=1`, set before this package is imported): that is
how the kernels are tested without a GPU. Without Triton installed the CPU path still works.

Tile sizes come from `tuning.json`, measured offline: tuning while serving would cost seconds per shape.
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

__all__ = ["CompileCase", "check", "jit", "next_power_of_2", "tl", "tuning", "use_triton"]

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
    # What the signatures of the kernels are made of; this is also why their files have no postponed annotations,
    # which the interpreter does not read.
    tl = SimpleNamespace(constexpr=int)

    def jit(fn: Callable[..., Any]) -> Any:
        """Stand in for triton.jit: the kernel exists but cannot be launched."""
        return fn


FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
_FORCED = os.environ.get("PLUMBLINE_FORCE_TRITON") == "1"


@dataclass(frozen=True, slots=True)
class CompileCase:
    """A kernel with the types and constants of one launch, so that tests can compile it without a GPU."""

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, int]
    instructions: tuple[str, ...] = ()
    """What the compiled code must contain."""


def use_triton(x: Tensor) -> bool:
    """Whether the operation on `x` runs as a Triton kernel."""
    return x.is_cuda or _FORCED


def check(condition: bool, message: str) -> None:
    """Raise ValueError with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(message)


@cache
def tuning(name: str) -> dict[str, int]:
    """The tile sizes and launch options of a kernel."""
    table: dict[str, dict[str, int]] = json.loads(
        Path(__file__).with_name("tuning.json").read_text(encoding="utf-8")
    )
    return table[name]


def next_power_of_2(n: int) -> int:
    """The least power of two that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)

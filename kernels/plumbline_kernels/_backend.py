"""Where a kernel runs: the one place that knows whether Triton is here and when it is used.

CPU tensors go to the torch twin, CUDA tensors to Triton. `PLUMBLINE_FORCE_TRITON=1` sends CPU tensors to Triton too,
which only works under its interpreter (`TRITON_INTERPRET=1`, set before this package is imported): that is how the
kernels are tested on a machine without a GPU. Without Triton installed the CPU path still works.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["HAS_TRITON", "INTERPRETED", "check", "jit", "next_power_of_2", "tl", "use_triton"]

# Triton 3.9 warns that its default flips in 3.10; the kernels are tested with fusion on.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

tl: Any
jit: Callable[[Callable[..., Any]], Any]
try:
    import triton
    import triton.language

    tl = triton.language
    jit = triton.jit
    HAS_TRITON = True
except ImportError:  # pragma: no cover - depends on the platform
    tl = None
    jit = lambda fn: fn  # noqa: E731
    HAS_TRITON = False

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_FORCED = os.environ.get("PLUMBLINE_FORCE_TRITON") == "1"


def use_triton(x: Tensor) -> bool:
    """Whether the operation on `x` runs as a Triton kernel."""
    return x.is_cuda or _FORCED


def check(condition: bool, message: str) -> None:
    """Raise ValueError with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(message)


def next_power_of_2(n: int) -> int:
    """The least power of two that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


FLOATS = (torch.float32, torch.bfloat16, torch.float16)

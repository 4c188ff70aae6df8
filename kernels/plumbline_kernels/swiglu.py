"""The gated activation of the feed-forward block: silu(gate) * up."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels._backend import FLOATS, check, use_triton

__all__ = ["silu_mul"]


def silu_mul(gate_up: Tensor) -> Tensor:
    """Map [T, 2 * I], the gate in the first half of each row, to silu(gate) * up of shape [T, I]."""
    check(gate_up.dim() == 2 and gate_up.dtype in FLOATS, "silu_mul: gate_up must be a 2-D float tensor")
    check(gate_up.shape[1] % 2 == 0, "silu_mul: gate_up must have an even width")
    if use_triton(gate_up):
        raise NotImplementedError
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)

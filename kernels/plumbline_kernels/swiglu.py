"""Compute the gated activation of the feed-forward block: silu(gate) * up."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels._backend import FLOATS, CompileCase, cdiv, check, jit, tl, tuning, use_triton

__all__ = ["silu_mul"]


def silu_mul(gate_up: Tensor) -> Tensor:
    """Map [T, 2 * I], the gate in the first half of each row, to silu(gate) * up of shape [T, I]."""
    check(gate_up.dim() == 2 and gate_up.dtype in FLOATS, "silu_mul: gate_up must be a 2-D float tensor")
    check(gate_up.shape[1] % 2 == 0, "silu_mul: gate_up must have an even width")
    if use_triton(gate_up):
        return _launch(gate_up)
    return silu_mul_torch(gate_up)


def silu_mul_torch(gate_up: Tensor) -> Tensor:
    """Compute `silu_mul` in torch."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


@jit
def _silu_mul_kernel(
    gate_up_ptr,  # [T, 2 * I]
    out_ptr,  # [T, I], contiguous
    stride,
    width,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    at = gate_up_ptr + row * stride + columns
    gate = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=mask, other=0.0).to(tl.float32)
    out = gate / (1 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * width + columns, out.to(out_ptr.dtype.element_ty), mask=mask)


def _launch(gate_up: Tensor) -> Tensor:
    check(gate_up.stride(1) == 1, "silu_mul: rows of gate_up must be contiguous")
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    config = tuning("silu_mul")
    if out.numel():
        _silu_mul_kernel[(rows, cdiv(width, config["block"]))](
            gate_up, out, gate_up.stride(0), width, BLOCK=config["block"], num_warps=config["num_warps"]
        )
    return out


def compile_cases() -> Iterator[CompileCase]:
    """Yield one launch: the block size does not depend on the model."""
    yield CompileCase(
        "silu_mul",
        _silu_mul_kernel,
        {"gate_up_ptr": "*bf16", "out_ptr": "*bf16", "stride": "i32", "width": "i32"},
        {"BLOCK": tuning("silu_mul")["block"]},
        tuning("silu_mul"),
    )

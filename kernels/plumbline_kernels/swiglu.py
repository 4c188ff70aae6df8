"""Compute the activations of feed-forward blocks: silu(gate) * up, gelu(gate) * up, that of gpt-oss, and plain ones.

The gelu is the one with tanh, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))), as in Gemma; `gelu_erf` is the one with
the error function, 0.5 x (1 + erf(x / sqrt(2))), as in GPT-NeoX.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels._backend import FLOATS, CompileCase, cdiv, check, jit, tl, tuning, use_triton

__all__ = ["gelu", "gelu_erf", "gelu_erf_mul", "gelu_mul", "oss_mul", "relu", "relu2", "silu_mul"]

_LIMIT, _ALPHA = 7.0, 1.702
"""Of the activation of gpt-oss."""
_SILU, _GELU, _OSS, _RELU2, _GELU_ERF, _RELU = range(6)
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
"""The polynomial 7.1.26 of Abramowitz and Stegun, with an error of 1.5e-7."""


def silu_mul(gate_up: Tensor) -> Tensor:
    """Map [T, 2 * I], the gate in the first half of each row, to silu(gate) * up of shape [T, I]."""
    _check("silu_mul", gate_up)
    return _launch(gate_up, _SILU) if use_triton(gate_up) else silu_mul_torch(gate_up)


def gelu_mul(gate_up: Tensor) -> Tensor:
    """Map [T, 2 * I], the gate in the first half of each row, to gelu(gate) * up of shape [T, I]."""
    _check("gelu_mul", gate_up)
    return _launch(gate_up, _GELU) if use_triton(gate_up) else gelu_mul_torch(gate_up)


def oss_mul(gate_up: Tensor) -> Tensor:
    """Map [T, 2 * I] to gate * sigmoid(1.702 gate) * (up + 1) with a clamped gate and up, [T, I]."""
    _check("oss_mul", gate_up)
    return _launch(gate_up, _OSS) if use_triton(gate_up) else oss_mul_torch(gate_up)


def gelu(x: Tensor) -> Tensor:
    """Return gelu(x) of [T, I]."""
    return _launch(x, _GELU, gated=False) if use_triton(x) else gelu_torch(x)


def gelu_erf_mul(gate_up: Tensor) -> Tensor:
    """Map [T, 2 * I], the gate in the first half of each row, to gelu_erf(gate) * up of shape [T, I]."""
    _check("gelu_erf_mul", gate_up)
    return _launch(gate_up, _GELU_ERF) if use_triton(gate_up) else gelu_erf_mul_torch(gate_up)


def gelu_erf(x: Tensor) -> Tensor:
    """Return gelu_erf(x) of [T, I]."""
    return _launch(x, _GELU_ERF, gated=False) if use_triton(x) else gelu_erf_torch(x)


def relu(x: Tensor) -> Tensor:
    """Return max(x, 0) of [T, I]."""
    return _launch(x, _RELU, gated=False) if use_triton(x) else relu_torch(x)


def relu2(x: Tensor) -> Tensor:
    """Return max(x, 0)² of [T, I]."""
    return _launch(x, _RELU2, gated=False) if use_triton(x) else relu2_torch(x)


def silu_mul_torch(gate_up: Tensor) -> Tensor:
    """Compute `silu_mul` in torch."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def gelu_mul_torch(gate_up: Tensor) -> Tensor:
    """Compute `gelu_mul` in torch."""
    gate, up = gate_up.chunk(2, -1)
    return F.gelu(gate, approximate="tanh").mul_(up)


def oss_mul_torch(gate_up: Tensor) -> Tensor:
    """Compute `oss_mul` in torch."""
    gate, up = gate_up.chunk(2, -1)
    gate, up = gate.clamp(max=_LIMIT), up.clamp(-_LIMIT, _LIMIT)
    return gate * sigmoid_torch(gate * _ALPHA) * (up + 1)


def gelu_torch(x: Tensor) -> Tensor:
    """Compute `gelu` in torch, with the same bits wherever an element is; the inner sum is fp32."""
    wide = x.float()
    return (wide * sigmoid_torch(1.5957691216057308 * (wide + 0.044715 * wide**3))).to(x.dtype)


def gelu_erf_mul_torch(gate_up: Tensor) -> Tensor:
    """Compute `gelu_erf_mul` in torch."""
    gate, up = gate_up.chunk(2, -1)
    return gelu_erf_torch(gate).mul_(up)


def gelu_erf_torch(x: Tensor) -> Tensor:
    """Compute `gelu_erf` in torch, with the same bits wherever an element is; torch's own differs at the end."""
    wide = x.float()
    size = wide.abs() * 0.7071067811865476
    t = 1 / (1 + 0.3275911 * size)
    rest = torch.zeros_like(t)
    for factor in reversed(_ERF):
        rest = (rest + factor) * t
    rest *= size.square().neg_().exp_()
    return torch.where(wide < 0, rest, 2 - rest).mul_(0.5 * wide).to(x.dtype)


def relu_torch(x: Tensor) -> Tensor:
    """Compute `relu` in torch."""
    return F.relu(x)


def relu2_torch(x: Tensor) -> Tensor:
    """Compute `relu2` in torch."""
    return F.relu(x).square_()


def xielu_torch(x: Tensor, curve: Tensor) -> Tensor:
    """Return the xielu of x (arXiv 2411.13010), with the same bits wherever an element is.

    Args:
        x: any floats.
        curve: fp32 [4]: a, b, c and d of a x² + c x above 0, else b (e^min(x, d) - 1 - x) + c x.
    """
    wide = x.float()
    of_squares, of_exponentials, of_x, most = curve
    below = (torch.minimum(wide, most).exp_() - 1 - wide) * of_exponentials
    curved = torch.where(wide > 0, of_squares * wide.square(), below).add_(of_x * wide)
    return curved.to(x.dtype)


def sigmoid_torch(x: Tensor) -> Tensor:
    """Return 1 / (1 + e^-x), with the same bits wherever an element is; torch's own differs at the end of a tensor."""
    return 1 / (1 + x.neg().exp_())


def _check(name: str, gate_up: Tensor) -> None:
    check(gate_up.dim() == 2 and gate_up.dtype in FLOATS, f"{name}: gate_up must be a 2-D float tensor")
    check(gate_up.shape[1] % 2 == 0, f"{name}: gate_up must have an even width")


@jit
def _gated_kernel(
    gate_up_ptr,  # [T, 2 * I]
    out_ptr,  # [T, I], contiguous
    stride,
    width,
    ACTIVATION: tl.constexpr,  # 0 SiLU, 1 GELU, 2 of gpt-oss, 3 squared ReLU, 4 GELU by erf, 5 ReLU
    GATED: tl.constexpr,  # if not, rows are [I], and up is 1
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    at = gate_up_ptr + row * stride + columns
    gate = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    up = 1.0
    if GATED:
        up = tl.load(at + width, mask=mask, other=0.0).to(tl.float32)
    power = gate
    if ACTIVATION == 1:
        # 0.5 (1 + tanh(y)) is the sigmoid of 2 y.
        power = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    if ACTIVATION == 2:
        gate = tl.minimum(gate, 7.0)
        up = tl.minimum(tl.maximum(up, -7.0), 7.0) + 1
        power = 1.702 * gate
    if ACTIVATION == 3:
        gate = tl.maximum(gate, 0.0)
        out = gate * gate * up
    elif ACTIVATION == 4:
        size = tl.abs(gate) * 0.7071067811865476
        t = 1 / (1 + 0.3275911 * size)
        rest = (((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592
        rest = rest * t * tl.exp(-size * size)
        out = 0.5 * gate * tl.where(gate < 0, rest, 2 - rest) * up
    elif ACTIVATION == 5:
        out = tl.maximum(gate, 0.0) * up
    else:
        out = gate / (1 + tl.exp(-power)) * up
    tl.store(out_ptr + row * width + columns, out.to(out_ptr.dtype.element_ty), mask=mask)


def _launch(gate_up: Tensor, activation: int, *, gated: bool = True) -> Tensor:
    check(gate_up.stride(1) == 1, "silu_mul: rows of gate_up must be contiguous")
    rows, width = gate_up.shape[0], gate_up.shape[1] // (2 if gated else 1)
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    config = tuning("silu_mul")
    if out.numel():
        _gated_kernel[(rows, cdiv(width, config["block"]))](
            gate_up,
            out,
            gate_up.stride(0),
            width,
            ACTIVATION=activation,
            GATED=gated,
            BLOCK=config["block"],
            num_warps=config["num_warps"],
        )
    return out


def compile_cases() -> Iterator[CompileCase]:
    """Yield one launch per activation: the block size does not depend on the model."""
    for activation, name in enumerate(("silu_mul", "gelu_mul", "oss_mul", "relu2", "gelu_erf_mul", "relu")):
        yield CompileCase(
            name,
            _gated_kernel,
            {"gate_up_ptr": "*bf16", "out_ptr": "*bf16", "stride": "i32", "width": "i32"},
            {
                "ACTIVATION": activation,
                "GATED": activation not in (_RELU2, _RELU),
                "BLOCK": tuning("silu_mul")["block"],
            },
            tuning("silu_mul"),
        )

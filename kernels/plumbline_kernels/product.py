"""Multiply rows with a weight so that a row has the same bits whatever other rows there are (Triton).

cuBLAS chooses tiles, and parts of the inputs, by the number of rows, so the sums of a row are added in an order that
depends on the others. Here every result is one chain of sums over the inputs in their order, in the accumulator of a
matrix instruction. Tiles of any size add up the same chain, so that decodes and prompts still have tiles of their own;
only the inputs are never cut. On an H200 the instructions for few rows (`mma.sync`) and for many (`wgmma`) give the
same bits; sm_100 takes tiles of 64 rows at least, because nobody has compared its own.

For many rows cuBLAS does not cut the inputs either, and is faster. Which numbers of rows these are is found out: where
all of a product's bits are those of the kernel, cuBLAS computes it.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels._backend import CompileCase, capability_of, cdiv, check, jit, tl, tuning

__all__ = ["compile_cases", "product", "tiles_for"]

_FULL = 128
"""Programs that fill a GPU."""
_ROWS = 64
"""Up to so many rows are read once by each program; more take larger tiles, or cuBLAS."""
_FEW_ROWS = 16
_MOST_ROWS = 2048
"""Rows for which cuBLAS is tried at most."""
_MOST_RESULTS = 1 << 27
"""Results that are compared at a time: two copies in 16 bits take 512 MiB."""
_agreed: dict[tuple[object, ...], list[bool]] = {}
"""For weights of a shape, whether cuBLAS agrees for each number of rows."""


@jit
def _product_kernel(
    x_ptr,  # [B, T, IN]
    weight_ptr,  # [B, OUT, IN], of any strides
    bias_ptr,  # [OUT], read if BIAS
    out_ptr,  # [B, T, OUT]
    tokens,
    outputs,
    inputs,
    x_stride,
    weight_stride,
    input_stride,  # of the weight
    out_stride,
    x_part_stride,  # of B
    weight_part_stride,
    out_part_stride,
    BIAS: tl.constexpr,
    WHOLE: tl.constexpr,  # whether inputs are a multiple of BLOCK_K
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,  # blocks of rows that share blocks of the weight in the L2 cache
):
    part = tl.program_id(1).to(tl.int64)
    blocks_m = tl.cdiv(tokens, BLOCK_M)
    blocks_n = tl.cdiv(outputs, BLOCK_N)
    group = tl.program_id(0) // (GROUP * blocks_n)
    inside = tl.program_id(0) % (GROUP * blocks_n)
    rows_left = tl.minimum(blocks_m - group * GROUP, GROUP)
    row = (group * GROUP + inside % rows_left) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = inside // rows_left * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    row_mask = row < tokens
    column_mask = column < outputs
    x = x_ptr + part * x_part_stride + row[:, None].to(tl.int64) * x_stride + k[None, :]
    weight = (
        weight_ptr
        + part * weight_part_stride
        + column[None, :].to(tl.int64) * weight_stride
        + k[:, None] * input_stride
    )
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, inputs, BLOCK_K):
        if WHOLE:
            a = tl.load(x, mask=row_mask[:, None], other=0.0)
            b = tl.load(weight, mask=column_mask[None, :], other=0.0)
        else:
            left = k < inputs - start
            a = tl.load(x, mask=row_mask[:, None] & left[None, :], other=0.0)
            b = tl.load(weight, mask=column_mask[None, :] & left[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        x += BLOCK_K
        weight += BLOCK_K * input_stride
    if BIAS:
        acc += tl.load(bias_ptr + column, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    out = out_ptr + part * out_part_stride + row[:, None].to(tl.int64) * out_stride + column[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & column_mask[None, :])


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias with the same bits for a row in any batch.

    Args:
        x: [T, in], or [B, T, in] for as many products; rows are contiguous.
        weight: [out, in], or [B, out, in].
        bias: [out].
    """
    check(x.dim() == weight.dim() and x.dim() in (2, 3), "product: x and weight must have as many dimensions")
    check(x.shape[-1] == weight.shape[-1], "product: x and weight must have as many inputs")
    check(x.dtype == weight.dtype, "product: x and weight must share a dtype")
    check(x.stride(-1) == 1, "product: rows of x must be contiguous")
    *parts, tokens, inputs = x.shape
    outputs = weight.shape[-2]
    out = torch.empty((*parts, tokens, outputs), dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    if (
        x.is_cuda
        and _ROWS < tokens <= _MOST_ROWS
        and x.is_contiguous()
        and weight.is_contiguous()
        and not parts
    ):
        key = outputs, inputs, x.dtype, bias is not None, x.device
        if key not in _agreed:
            _agreed[key] = [] if x.dtype == torch.float32 else agreeing_rows(weight, bias)
        if tokens < len(_agreed[key]) and _agreed[key][tokens]:
            return F.linear(x, weight, bias)
    return _launch(x, weight, bias, out)


def agreeing_rows(weight: Tensor, bias: Tensor | None, most: int = _MOST_ROWS) -> list[bool]:
    """Return for each number of rows up to `most` whether `F.linear` gives the bits of the kernel.

    Other orders of sums round some of the hundred thousands of results differently. The number of rows, and not the
    numbers in them, decides which order cuBLAS takes. Empty if most weights are zeros, which prove nothing.
    """
    if float((weight[:, ::64] != 0).float().mean()) < 0.5:
        return []
    most = min(most, _MOST_RESULTS // len(weight))
    generator = torch.Generator(weight.device).manual_seed(0)
    x = torch.randn(most, weight.shape[1], dtype=weight.dtype, device=weight.device, generator=generator)
    wanted = _launch(x, weight, bias, x.new_empty(most, len(weight)))
    differ = torch.zeros(most + 1, dtype=torch.bool, device=weight.device)
    for tokens in range(_ROWS + 1, most + 1):
        differ[tokens] = (F.linear(x[:tokens], weight, bias) != wanted[:tokens]).any()
    return [tokens > _ROWS and not other for tokens, other in enumerate(differ.tolist())]


def _launch(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    *parts, tokens, inputs = x.shape
    outputs = weight.shape[-2]
    config = tiles_for(tokens, outputs, x.dtype, capability_of(x.device))
    blocks = cdiv(tokens, config["block_m"]) * cdiv(outputs, config["block_n"])
    _product_kernel[(blocks, *(parts or (1,)))](
        x,
        weight,
        out if bias is None else bias,
        out,
        tokens,
        outputs,
        inputs,
        x.stride(-2),
        weight.stride(-2),
        weight.stride(-1),
        out.stride(-2),
        x.stride(0) if parts else 0,
        weight.stride(0) if parts else 0,
        out.stride(0) if parts else 0,
        BIAS=bias is not None,
        WHOLE=inputs % config["block_k"] == 0,
        BLOCK_M=config["block_m"],
        BLOCK_N=config["block_n"],
        BLOCK_K=config["block_k"],
        GROUP=8,
        num_warps=config["num_warps"],
        num_stages=config["num_stages"],
    )
    return out


def tiles_for(tokens: int, outputs: int, dtype: torch.dtype, capability: int = 90) -> dict[str, int]:
    """Return the largest tiles that still fill a GPU; those of the most rows grow last."""
    if dtype == torch.float32:
        return tuning("product_fp32")
    if tokens <= _FEW_ROWS:
        return tuning("product_few", capability)
    kind, widths = ("decode", (64, 32, 16)) if tokens <= _ROWS else ("prefill", (128, 64, 32))
    found: dict[str, int] = {}
    for width in widths:
        found = tuning(f"product_{kind}_{width}", capability)
        if cdiv(tokens, found["block_m"]) * cdiv(outputs, found["block_n"]) >= _FULL:
            break
    return found


def compile_cases(capability: int = 90) -> Iterator[CompileCase]:
    """Yield the tiles of decodes and prompts, with and without a rest of the inputs."""
    names = ["few", *(f"decode_{width}" for width in (16, 32, 64))]
    names += [f"prefill_{width}" for width in (32, 64, 128)]
    for name in (*names, "fp32"):
        config, kind = tuning(f"product_{name}", capability), "*fp32" if name == "fp32" else "*bf16"
        strides = [f"{name}_stride" for name in ("x", "weight", "out", "x_part", "weight_part", "out_part")]
        for whole in (True, False):
            yield CompileCase(
                f"product {name}{'' if whole else ' with a rest'}",
                _product_kernel,
                {f"{tensor}_ptr": kind for tensor in ("x", "weight", "bias", "out")}
                | dict.fromkeys(("tokens", "outputs", "inputs", *strides), "i32"),
                {"input_stride": 1, "BIAS": not whole, "WHOLE": whole, "GROUP": 8}
                | {each.upper(): config[each] for each in ("block_m", "block_n", "block_k")},
                config,
                () if name == "fp32" else ("mma.sync" if name == "few" else "wgmma",),
            )

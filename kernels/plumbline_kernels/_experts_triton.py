"""The Triton version of `mix`: a product of rows with the matrix of each row's expert.

Rows are the (token, expert) pairs of a step, sorted by expert. A program takes a block of rows of one expert, which it
finds by bisection in the numbers of blocks before each expert, so no length is needed on the host.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from plumbline_kernels._backend import CompileCase, capability_of, cdiv, check, jit, tl, tuning
from plumbline_kernels.narrow._triton import narrow_dot, step_of
from plumbline_kernels.narrow.weight import NarrowWeight
from plumbline_kernels.routing import Groups, Routing, add_results, group, route_and_group

__all__ = ["GroupedExperts", "compile_cases", "launch", "launch_routed"]


@jit
def _grouped_kernel(
    x_ptr,  # [rows, IN], or [T, IN] if GATHER
    weight_ptr,  # [E, OUT, IN], contiguous; the levels of a narrow weight with BITS
    scales_ptr,  # [E, groups, OUT], read with BITS
    shifts_ptr,  # [E, groups, OUT], read if SHIFTED
    bias_ptr,  # [E, OUT], read if BIAS
    out_ptr,  # [rows, OUT], contiguous
    order_ptr,  # int64 [rows]: the place token * TOP_K + rank of each sorted row
    factor_ptr,  # fp32 [rows], by place, read if SCATTER
    row_ends_ptr,  # int32 [E]: how many rows the experts up to this one have
    block_ends_ptr,  # int32 [E]: and how many blocks
    num_experts,
    x_stride,
    inputs,
    outputs,
    groups,
    group,  # inputs that share a scale
    TOP_K: tl.constexpr,
    BITS: tl.constexpr,  # 8 or 4 of a narrow weight, else 0
    FLOATS: tl.constexpr,  # see `narrow_dot`
    SHIFTED: tl.constexpr,
    STEP: tl.constexpr,
    GATHER: tl.constexpr,  # x has a row for each token
    SCATTER: tl.constexpr,  # results are multiplied by factors and written to their places
    BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    block = tl.program_id(0)
    if block >= tl.load(block_ends_ptr + num_experts - 1):
        return
    expert = tl.zeros([], dtype=tl.int64)
    end = num_experts + expert
    while expert < end:
        middle = (expert + end) // 2
        if tl.load(block_ends_ptr + middle) <= block:
            expert = middle + 1
        else:
            end = middle
    first_block = 0
    first_row = 0
    if expert > 0:
        first_block = tl.load(block_ends_ptr + expert - 1)
        first_row = tl.load(row_ends_ptr + expert - 1)
    row = first_row + (block - first_block) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask = row < tl.load(row_ends_ptr + expert)
    place = tl.load(order_ptr + row, mask=row_mask, other=0)
    source = row.to(tl.int64)
    if GATHER:
        source = place // TOP_K

    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    column_mask = column < outputs
    rows = x_ptr + source * x_stride
    if BITS:
        matrix = weight_ptr + expert * outputs * (inputs * BITS // 8)
        scales = expert * outputs * groups
        acc = narrow_dot(
            rows, row_mask, matrix, scales_ptr + scales, shifts_ptr + scales, column, column_mask,
            0, inputs, inputs, outputs, group, BITS, FLOATS, SHIFTED, STEP, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    else:
        weight = weight_ptr + expert * outputs * inputs + column[None, :] * inputs
        acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for start in range(0, inputs, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            k_mask = k < inputs
            x = tl.load(rows[:, None] + k[None, :], mask=row_mask[:, None] & k_mask[None, :], other=0.0)
            w = tl.load(weight + k[:, None], mask=k_mask[:, None] & column_mask[None, :], other=0.0)
            acc += tl.dot(x, w, input_precision="ieee")
    if BIAS:
        acc += tl.load(bias_ptr + expert * outputs + column, mask=column_mask, other=0.0).to(tl.float32)[
            None, :
        ]
    target = row.to(tl.int64)
    if SCATTER:
        acc = acc * tl.load(factor_ptr + place, mask=row_mask, other=0.0)[:, None]
        target = place
    at = out_ptr + target[:, None] * outputs + column[None, :]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & column_mask[None, :])


class GroupedExperts(NamedTuple):
    """The weights of experts, and what is between their two products."""

    gate_up: Tensor | NarrowWeight
    gate_up_bias: Tensor | None
    down: Tensor | NarrowWeight
    down_bias: Tensor | None
    activate: Callable[[Tensor], Tensor]


def launch(
    x: Tensor, weights: Tensor, chosen: Tensor, experts: GroupedExperts, exact: bool = False
) -> Tensor:
    """Compute `mix`; the results of a token are added in the order of its choice."""
    if not len(x):
        return torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    config = _config(experts.gate_up, _kind(experts, chosen.numel(), exact), x.device)
    # A column of a wider tensor stays one when it is flattened.
    groups = group(chosen.contiguous(), experts.gate_up.shape[0], config["block_m"])
    return _mixed(x, weights.contiguous(), groups, experts, torch.float32, exact)


def launch_routed(
    x: Tensor,
    logits: Tensor,
    routing: Routing,
    correction: Tensor | None,
    experts: GroupedExperts,
    dtype: torch.dtype,
    exact: bool = False,
) -> Tensor:
    """Compute `mix_routed`."""
    if not len(x):
        return torch.zeros(x.shape, dtype=dtype, device=x.device)
    config = _config(experts.gate_up, _kind(experts, len(x) * routing.top_k, exact), x.device)
    weights, groups = route_and_group(logits.contiguous(), routing, correction, config["block_m"], exact)
    return _mixed(x, weights, groups, experts, dtype, exact)


def _kind(experts: GroupedExperts, rows: int, exact: bool) -> str:
    """Return the tiles for so many rows.

    Exact ones are multiplied by one kind of instruction, the warp groups of sm_90, whatever the tiles are. Narrow
    weights are scaled after each tile of inputs, so their tiles are always the same.
    """
    if exact and any(isinstance(each, NarrowWeight) for each in (experts.gate_up, experts.down)):
        return "prefill"
    few = "exact" if exact else "decode"
    return few if rows <= 16 * experts.gate_up.shape[0] else "prefill"


def _mixed(
    x: Tensor, weights: Tensor, groups: Groups, experts: GroupedExperts, dtype: torch.dtype, exact: bool
) -> Tensor:
    """Return the weighted sums of experts' results, by two grouped products."""
    check(x.stride(1) == 1, "mix: rows of x must be contiguous")
    parts = [
        each.levels if isinstance(each, NarrowWeight) else each for each in (experts.gate_up, experts.down)
    ]
    check(all(each.is_contiguous() for each in parts), "mix: the experts' weights must be contiguous")
    top_k, rows = weights.shape[1], len(groups.order)
    kind = _kind(experts, rows, exact)
    block_m = _config(experts.gate_up, kind, x.device)["block_m"]
    hidden = torch.empty(rows, experts.gate_up.shape[1], dtype=x.dtype, device=x.device)
    _product(x, experts.gate_up, experts.gate_up_bias, hidden, groups, None, top_k, kind, block_m)
    out = torch.empty(rows, x.shape[1], dtype=torch.float32, device=x.device)
    gated = experts.activate(hidden)
    _product(gated, experts.down, experts.down_bias, out, groups, weights, top_k, kind, block_m)
    return add_results(out, top_k, dtype)


def _product(
    x: Tensor,
    weight: Tensor | NarrowWeight,
    bias: Tensor | None,
    out: Tensor,
    rows: Groups,
    factors: Tensor | None,
    top_k: int,
    kind: str,
    block_m: int,
) -> None:
    """Multiply rows with the matrices of their experts; with factors, rows of x are sorted, and results are not."""
    number, outputs, inputs = weight.shape
    narrow = weight if isinstance(weight, NarrowWeight) else None
    config = _config(weight, kind, x.device)
    levels, bits, scales = (narrow.bytes, narrow.bits, narrow.scales) if narrow else (weight, 0, out)
    groups = narrow.scales.shape[-2] if narrow else 1
    # The last block of each expert may not be full.
    blocks = min(cdiv(len(rows.order), block_m) + number, len(rows.order))
    _grouped_kernel[(blocks, cdiv(outputs, config["block_n"]))](
        x,
        levels,
        scales,
        narrow.shifts if narrow and narrow.shifts is not None else scales,
        levels if bias is None else bias,
        out,
        rows.order,
        out if factors is None else factors,
        rows.row_ends,
        rows.block_ends,
        number,
        x.stride(0),
        inputs,
        outputs,
        groups,
        inputs // groups,
        TOP_K=top_k,
        BITS=bits,
        FLOATS=narrow is not None and narrow.floats,
        STEP=step_of(narrow, config["block_k"]) if narrow else 0,
        SHIFTED=narrow is not None and narrow.shifts is not None,
        GATHER=factors is None,
        SCATTER=factors is not None,
        BIAS=bias is not None,
        BLOCK_M=block_m,
        BLOCK_N=config["block_n"],
        BLOCK_K=config["block_k"],
        num_warps=config["num_warps"],
        num_stages=config["num_stages"],
    )


def _config(weight: Tensor | NarrowWeight, kind: str, device: torch.device) -> dict[str, int]:
    narrow = "narrow_" if isinstance(weight, NarrowWeight) else ""
    return tuning(f"experts_{narrow}{kind}", capability_of(device))


def compile_cases(capability: int = 90) -> Iterator[CompileCase]:
    """Yield both products of decodes and prompts, of whole weights and of narrow ones of all kinds."""
    for kind, instruction in (("decode", "mma.sync"), ("prefill", "wgmma")):
        for bits, floats in ((0, False), (8, False), (4, False), (8, True), (4, True)):
            config = tuning(f"experts_{'narrow_' if bits else ''}{kind}", capability)
            width = f" bits={bits}{' floats' if floats else ''}" if bits else ""
            for gather in (True, False):
                part = f"{'gate_up' if gather else 'down'}{width}"
                yield CompileCase(
                    f"experts {kind} {part}",
                    _grouped_kernel,
                    {"x_ptr": "*bf16", "weight_ptr": {0: "*bf16", 8: "*i8", 4: "*u8"}[bits]}
                    | {"scales_ptr": "*bf16", "shifts_ptr": "*bf16"}
                    | {"bias_ptr": "*bf16", "out_ptr": "*bf16" if gather else "*fp32", "order_ptr": "*i64"}
                    | {"factor_ptr": "*fp32", "row_ends_ptr": "*i32", "block_ends_ptr": "*i32"}
                    | dict.fromkeys(
                        ("num_experts", "x_stride", "inputs", "outputs", "groups", "group"), "i32"
                    ),
                    {
                        "TOP_K": 8,
                        "BITS": bits,
                        "FLOATS": floats,
                        "SHIFTED": bits > 0 and not floats,
                        "STEP": 32 if bits == 4 else 0,
                        "GATHER": gather,
                        "SCATTER": not gather,
                        "BIAS": True,
                        "BLOCK_M": config["block_m"],
                        "BLOCK_N": config["block_n"],
                        "BLOCK_K": config["block_k"],
                    },
                    config,
                    (instruction,),
                )

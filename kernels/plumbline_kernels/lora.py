"""Add the low-rank products of adapters (LoRA) to the results of a linear layer, each token with its own adapter.

A linear layer with an adapter computes x @ weight.T + (x @ down.T) @ up.T. The weight is shared by all tokens of a
step, so its product stays as it is, and the second product is added for the tokens that have an adapter, which are
grouped by adapter.

In Triton a program takes a block of rows with the same adapter. Shrinking rows to the rank sums over the wide
dimension, and a decode has few rows, so several programs share that sum: each writes its part, and expanding adds the
parts up in their order.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from plumbline_kernels._attention_batch import AdapterRows
from plumbline_kernels._backend import FLOATS, CompileCase, cdiv, check, jit, tl, tuning, use_triton

__all__ = ["AdapterRows", "compile_cases", "lora_add", "lora_add_torch", "padded_rank"]

_RANK_STEP = 16
"""Ranks are padded with zeros to a multiple of this: what matrix instructions and vectors take at once."""
_MAX_SPLITS, _ENOUGH_PROGRAMS = 16, 256

Pair = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
"""The two projections of an adapter: down to its rank, and up."""


def padded_rank(rank: int) -> int:
    """Return a rank as it is stored."""
    return -(-rank // _RANK_STEP) * _RANK_STEP


def lora_add(
    x: Tensor, y: Tensor, down: Tensor, up: Tensor, adapted: AdapterRows, exact: bool = False
) -> Tensor:
    """Add the products of adapters to y in place, and return it.

    Args:
        x: [T, in].
        y: [T, out].
        down: [slots, rank, in], contiguous; adapters of lower rank are padded with zeros.
        up: [slots, out, rank], contiguous, with the scale of each adapter.
        adapted: which rows have which adapter.
        exact: whether a row must have the same bits in any batch.
    """
    slots, rank, inputs = down.shape
    check(x.dim() == y.dim() == 2 and x.dtype in FLOATS, "lora_add: x and y must be 2-D float tensors")
    check(up.shape == (slots, y.shape[1], rank), "lora_add: up must be [slots, out, rank]")
    check(inputs == x.shape[1] and len(x) == len(y), "lora_add: down must be [slots, rank, in]")
    if use_triton(x):
        return _launch(x, y, down, up, adapted, exact)

    def project(matrix: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda rows: rows @ matrix.t()

    return lora_add_torch(
        x, y, {slot: (project(down[slot]), project(up[slot])) for slot in adapted.slots}, adapted
    )


def lora_add_torch(x: Tensor, y: Tensor, pairs: Mapping[int, Pair], adapted: AdapterRows) -> Tensor:
    """Compute `lora_add` in torch, with the projections of each slot; those without any change nothing."""
    for slot, rows in adapted.groups():
        if slot in pairs:
            down, up = pairs[slot]
            y.index_add_(0, rows, up(down(x.index_select(0, rows))))
    return y


@jit
def _shrink_kernel(
    x_ptr,  # [T, IN]
    down_ptr,  # [slots, rank, IN], contiguous
    hidden_ptr,  # fp32 [SPLITS, num_rows, rank], contiguous
    rows_ptr,  # int64 [num_rows]
    slots_ptr,  # int32 [blocks]
    starts_ptr,  # int32 [blocks]
    ends_ptr,  # int32 [blocks]
    x_stride,
    inputs,
    rank,
    num_rows,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    block = tl.program_id(0)
    split = tl.program_id(2)
    slot = tl.load(slots_ptr + block).to(tl.int64)
    at = tl.load(starts_ptr + block) + tl.arange(0, BLOCK_M)
    mask = at < tl.load(ends_ptr + block)
    row = tl.load(rows_ptr + at, mask=mask, other=0)
    column = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    column_mask = column < rank
    down = down_ptr + (slot * rank + column[None, :]) * inputs
    acc = tl.zeros([BLOCK_M, BLOCK_R], dtype=tl.float32)
    for start in range(split * BLOCK_K, inputs, SPLITS * BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        k_mask = k < inputs
        x = tl.load(
            x_ptr + row[:, None] * x_stride + k[None, :], mask=mask[:, None] & k_mask[None, :], other=0.0
        )
        w = tl.load(down + k[:, None], mask=k_mask[:, None] & column_mask[None, :], other=0.0)
        acc += tl.dot(x, w, input_precision="ieee")
    out = hidden_ptr + (split * num_rows + at[:, None]).to(tl.int64) * rank + column[None, :]
    tl.store(out, acc, mask=mask[:, None] & column_mask[None, :])


@jit
def _expand_kernel(
    hidden_ptr,  # fp32 [SPLITS, num_rows, rank], contiguous
    up_ptr,  # [slots, OUT, rank], contiguous
    y_ptr,  # [T, OUT]
    rows_ptr,  # int64 [num_rows]
    slots_ptr,  # int32 [blocks]
    starts_ptr,  # int32 [blocks]
    ends_ptr,  # int32 [blocks]
    y_stride,
    outputs,
    rank,
    num_rows,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    block = tl.program_id(0)
    slot = tl.load(slots_ptr + block).to(tl.int64)
    at = tl.load(starts_ptr + block) + tl.arange(0, BLOCK_M)
    mask = at < tl.load(ends_ptr + block)
    row = tl.load(rows_ptr + at, mask=mask, other=0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    column_mask = column < outputs
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, rank, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        r_mask = r < rank
        hidden = tl.zeros([BLOCK_M, BLOCK_R], dtype=tl.float32)
        for split in range(SPLITS):
            part = hidden_ptr + (split * num_rows + at[:, None]).to(tl.int64) * rank + r[None, :]
            hidden += tl.load(part, mask=mask[:, None] & r_mask[None, :], other=0.0)
        w = tl.load(
            up_ptr + (slot * outputs + column[None, :]) * rank + r[:, None],
            mask=r_mask[:, None] & column_mask[None, :],
            other=0.0,
        )
        acc += tl.dot(hidden.to(up_ptr.dtype.element_ty), w, input_precision="ieee")
    to = y_ptr + row[:, None] * y_stride + column[None, :]
    both = mask[:, None] & column_mask[None, :]
    y = tl.load(to, mask=both, other=0.0).to(tl.float32) + acc
    tl.store(to, y.to(y_ptr.dtype.element_ty), mask=both)


def _launch(x: Tensor, y: Tensor, down: Tensor, up: Tensor, adapted: AdapterRows, exact: bool) -> Tensor:
    """Compute `lora_add` with two kernels."""
    check(x.stride(1) == y.stride(1) == 1, "lora_add: rows of x and y must be contiguous")
    check(down.is_contiguous() and up.is_contiguous(), "lora_add: the adapters' weights must be contiguous")
    count, rank, inputs, outputs = len(adapted.rows), down.shape[1], x.shape[1], y.shape[1]
    if not count:
        return y
    # All rows of a GPU's warp group, and as many parts of a sum, for any number of rows.
    config = tuning("lora_prefill") if exact else _config(count)
    block_m, block_r = config["block_m"], config["block_r"]
    blocks = adapted.blocks(block_m)
    programs = 1 if exact else len(blocks.slots) * cdiv(rank, block_r)
    splits = _num_splits(programs, cdiv(inputs, config["block_k"]))
    given = adapted.rows, blocks.slots, blocks.starts, blocks.ends
    hidden = torch.empty((splits, count, rank), dtype=torch.float32, device=x.device)
    launch_options = {"num_warps": config["num_warps"], "num_stages": config["num_stages"]}
    _shrink_kernel[(len(blocks.slots), cdiv(rank, block_r), splits)](
        x, down, hidden, *given, x.stride(0), inputs, rank, count,
        SPLITS=splits, BLOCK_M=block_m, BLOCK_R=block_r, BLOCK_K=config["block_k"], **launch_options,
    )  # fmt: skip
    _expand_kernel[(len(blocks.slots), cdiv(outputs, config["block_n"]))](
        hidden, up, y, *given, y.stride(0), outputs, rank, count,
        SPLITS=splits, BLOCK_M=block_m, BLOCK_N=config["block_n"], BLOCK_R=block_r, **launch_options,
    )  # fmt: skip
    return y


def _config(rows: int) -> dict[str, int]:
    """Return the tiles for so many rows: narrow ones as long as their blocks are few."""
    return tuning("lora_decode" if rows <= 64 else "lora_prefill")


def _num_splits(programs: int, tiles: int) -> int:
    """Return how many programs share the sum over the inputs, so that a few blocks of rows still fill the GPU."""
    wanted = min(_ENOUGH_PROGRAMS // programs, tiles, _MAX_SPLITS)
    return 1 << max(wanted, 1).bit_length() - 1


def compile_cases() -> Iterator[CompileCase]:
    """Yield both kernels for decodes and prompts."""
    blocks = {"rows_ptr": "*i64"} | dict.fromkeys(("slots_ptr", "starts_ptr", "ends_ptr"), "*i32")
    numbers = dict.fromkeys(("x_stride", "y_stride", "inputs", "outputs", "rank", "num_rows"), "i32")
    for kind in ("decode", "prefill"):
        config = tuning(f"lora_{kind}")
        tiles = {"SPLITS": _MAX_SPLITS, "BLOCK_M": config["block_m"], "BLOCK_R": config["block_r"]}
        for name, kernel, wide in (
            ("shrink", _shrink_kernel, "BLOCK_K"),
            ("expand", _expand_kernel, "BLOCK_N"),
        ):
            yield CompileCase(
                f"lora {kind} {name}",
                kernel,
                {f"{tensor}_ptr": "*bf16" for tensor in ("x", "y", "down", "up")}
                | {"hidden_ptr": "*fp32", **blocks, **numbers},
                tiles | {wide: config[wide.lower()]},
                config,
            )

"""The Triton kernels around the products of experts: the choice, the order of rows by expert, and the sum of results.

Torch needs some twenty launches for them, which take longer than the products of a decode. Here a step of few tokens
has one kernel for choice and order, in a single program; a step of many has one for each.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from plumbline_kernels._backend import CompileCase, cdiv, jit, next_power_of_2, tl
from plumbline_kernels.routing.rules import Routing

__all__ = ["Groups", "add_results", "compile_cases", "group", "route_and_group", "takes"]

_MOST_NUMBERS = 8192
"""Logits that a program of `_route_kernel` holds."""
_CHUNK, _WIDTH = 1024, 1024
"""Places that a program of `_group_kernel` reads at a time, and columns of one of `_add_kernel`."""


class Groups(NamedTuple):
    """Rows by expert."""

    order: Tensor
    """int64 [T * k]: the place token * k + rank of each row."""
    row_ends: Tensor
    """int32 [E]: how many rows the experts up to this one have."""
    block_ends: Tensor
    """int32 [E]: and how many blocks of rows."""


@jit
def _route_kernel(
    logits_ptr,  # fp32 [T, E], contiguous
    correction_ptr,  # fp32 [E], read if CORRECTED
    weights_ptr,  # fp32 [T, TOP_K]
    chosen_ptr,  # int64 [T, TOP_K], written unless GROUPED
    order_ptr,  # see `Groups`, written if GROUPED
    row_ends_ptr,
    block_ends_ptr,
    tokens,
    floor,
    scale,
    E: tl.constexpr,
    TOP_K: tl.constexpr,
    SIGMOID: tl.constexpr,
    LATE: tl.constexpr,  # weights are the softmax of the chosen logits
    NORMALISED: tl.constexpr,
    CORRECTED: tl.constexpr,
    GROUPED: tl.constexpr,  # this program has all tokens
    BLOCK_M: tl.constexpr,
    BLOCK_T: tl.constexpr,
    E_PAD: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    expert = tl.arange(0, E_PAD)
    known = (token < tokens)[:, None] & (expert < E)[None, :]
    at = token[:, None].to(tl.int64) * E + expert[None, :]
    logits = tl.load(logits_ptr + at, mask=known, other=float("-inf"))
    scores = logits
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    elif not LATE:
        scores = tl.exp(logits - tl.max(logits, axis=1)[:, None])
        scores = scores / tl.sum(scores, axis=1)[:, None]
    choice = scores
    if CORRECTED:
        choice = choice + tl.load(correction_ptr + expert, mask=expert < E, other=0.0)[None, :]
    # Every token takes different experts, also if logits are NaN or infinite.
    choice = tl.where(choice == choice, tl.maximum(choice, -3e38), -3e38)
    choice = tl.where((expert < E)[None, :], choice, float("-inf"))
    rank = tl.full([BLOCK_T, E_PAD], TOP_K, dtype=tl.int32)
    for number in range(TOP_K):
        best = expert[None, :] == tl.argmax(choice, axis=1)[:, None]
        rank = tl.where(best, number, rank)
        choice = tl.where(best, float("-inf"), choice)
    chosen = (rank < TOP_K) & (token < tokens)[:, None]
    if LATE:
        largest = tl.max(tl.where(rank < TOP_K, logits, float("-inf")), axis=1)
        weights = tl.where(chosen, tl.exp(logits - largest[:, None]), 0.0)
        weights = weights / tl.sum(weights, axis=1)[:, None]
    else:
        weights = tl.where(chosen, scores, 0.0)
        if NORMALISED:
            weights = weights / tl.maximum(tl.sum(weights, axis=1), floor)[:, None]
    place = token[:, None].to(tl.int64) * TOP_K + rank
    tl.store(weights_ptr + place, weights * scale, mask=chosen)
    if GROUPED:
        member = chosen.to(tl.int32)
        counts = tl.sum(member, axis=0)
        ends = tl.cumsum(counts, axis=0)
        tl.store(row_ends_ptr + expert, ends, mask=expert < E)
        blocks = tl.cumsum((counts + BLOCK_M - 1) // BLOCK_M, axis=0)
        tl.store(block_ends_ptr + expert, blocks, mask=expert < E)
        row = (ends - counts)[None, :] + tl.cumsum(member, axis=0) - 1
        tl.store(order_ptr + row, place, mask=chosen)
    else:
        tl.store(
            chosen_ptr + place, tl.broadcast_to(expert[None, :], (BLOCK_T, E_PAD)).to(tl.int64), mask=chosen
        )


@jit
def _group_kernel(
    chosen_ptr,  # int64 [places]
    order_ptr,  # see `Groups`
    row_ends_ptr,
    block_ends_ptr,
    places,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    CHUNK: tl.constexpr,
):
    own = tl.program_id(0)
    expert = tl.arange(0, E_PAD)
    counts = tl.zeros([E_PAD], dtype=tl.int32)
    for start in range(0, places, CHUNK):
        place = start + tl.arange(0, CHUNK)
        chosen = tl.load(chosen_ptr + place, mask=place < places, other=0).to(tl.int32)
        counts += tl.histogram(chosen, E_PAD, mask=place < places)
    if own == 0:
        tl.store(row_ends_ptr + expert, tl.cumsum(counts, axis=0), mask=expert < E)
        blocks = tl.cumsum((counts + BLOCK_M - 1) // BLOCK_M, axis=0)
        tl.store(block_ends_ptr + expert, blocks, mask=expert < E)
    first = tl.sum(tl.where(expert < own, counts, 0), axis=0)
    for start in range(0, places, CHUNK):
        place = start + tl.arange(0, CHUNK)
        chosen = tl.load(chosen_ptr + place, mask=place < places, other=-1).to(tl.int32)
        mine = (chosen == own).to(tl.int32)
        tl.store(order_ptr + first + tl.cumsum(mine, axis=0) - 1, place.to(tl.int64), mask=mine > 0)
        first += tl.sum(mine, axis=0)


@jit
def _add_kernel(
    parts_ptr,  # fp32 [T, TOP_K, D]
    out_ptr,  # [T, D]
    width,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for rank in range(TOP_K):
        total += tl.load(parts_ptr + (token * TOP_K + rank) * width + column, mask=column < width, other=0.0)
    tl.store(out_ptr + token * width + column, total.to(out_ptr.dtype.element_ty), mask=column < width)


def takes(routing: Routing) -> bool:
    """Return whether `route_and_group` chooses in this way."""
    return routing.groups == 1 and not routing.mixer and not routing.of_inputs


def route_and_group(
    logits: Tensor, routing: Routing, correction: Tensor | None, block_m: int, exact: bool = False
) -> tuple[Tensor, Groups]:
    """Choose the experts of tokens as `experts.route` does, and group their rows.

    Args:
        logits: fp32 [T, E], contiguous.
        routing: one that `takes` allows.
        correction: fp32 [E].
        block_m: rows of a block.
        exact: whether a token must have the same bits in any batch: then all programs have as many tokens.

    Returns:
        Weights, fp32 [T, top_k], and the rows by expert.
    """
    (tokens, number), device = logits.shape, logits.device
    padded = max(next_power_of_2(number), 2)
    # Powers of four, so that there are few variants.
    block_t = 1 << (next_power_of_2(tokens).bit_length() // 2 * 2)
    grouped = block_t * padded <= _MOST_NUMBERS and not exact
    if not grouped:
        block_t = max(_MOST_NUMBERS // padded // 2, 1)
    weights = torch.empty(tokens, routing.top_k, dtype=torch.float32, device=device)
    found = _empty(tokens * routing.top_k, number, device)
    chosen = found.order if grouped else torch.empty_like(found.order)
    _route_kernel[(1 if grouped else cdiv(tokens, block_t),)](
        logits,
        weights if correction is None else correction,
        weights,
        chosen,
        *found,
        tokens,
        routing.floor,
        routing.scale,
        E=number,
        TOP_K=routing.top_k,
        SIGMOID=routing.sigmoid,
        LATE=routing.late_softmax,
        NORMALISED=routing.normalised,
        CORRECTED=correction is not None and not routing.late_softmax,
        GROUPED=grouped,
        BLOCK_M=block_m,
        BLOCK_T=block_t,
        E_PAD=padded,
        num_warps=8 if block_t * padded > _MOST_NUMBERS // 4 else 4,
    )
    return weights, found if grouped else _grouped(chosen, found, block_m)


def group(chosen: Tensor, number: int, block_m: int) -> Groups:
    """Group rows by expert; `chosen` is int64 [T, k]."""
    places = chosen.flatten()
    return _grouped(places, _empty(len(places), number, chosen.device), block_m)


def _empty(places: int, number: int, device: torch.device) -> Groups:
    ends = torch.empty(2, next_power_of_2(number), dtype=torch.int32, device=device)
    return Groups(torch.empty(places, dtype=torch.int64, device=device), ends[0, :number], ends[1, :number])


def _grouped(places: Tensor, found: Groups, block_m: int) -> Groups:
    number = len(found.row_ends)
    _group_kernel[(number,)](
        places,
        *found,
        len(places),
        E=number,
        E_PAD=max(next_power_of_2(number), 2),
        BLOCK_M=block_m,
        CHUNK=_CHUNK,
        num_warps=4,
    )
    return found


def add_results(parts: Tensor, top_k: int, dtype: torch.dtype) -> Tensor:
    """Add the results of a token's experts in the order of its choice; parts are fp32 [T * k, D]."""
    tokens, width = len(parts) // top_k, parts.shape[1]
    out = torch.empty(tokens, width, dtype=dtype, device=parts.device)
    _add_kernel[(tokens, cdiv(width, _WIDTH))](parts, out, width, TOP_K=top_k, BLOCK=_WIDTH, num_warps=4)
    return out


def compile_cases() -> Iterator[CompileCase]:
    """Yield the launches of 128 and of 512 experts, in decodes and prompts."""
    ends = {"row_ends_ptr": "*i32", "block_ends_ptr": "*i32"}
    floats = {f"{name}_ptr": "*fp32" for name in ("logits", "correction", "weights")}
    for number, top_k in ((128, 8), (512, 10)):
        for grouped in (True, False):
            block_t = _MOST_NUMBERS // number // (1 if grouped else 2)
            yield CompileCase(
                f"route {number} experts, {'decode' if grouped else 'prompt'}",
                _route_kernel,
                floats
                | ends
                | {
                    "chosen_ptr": "*i64",
                    "order_ptr": "*i64",
                    "tokens": "i32",
                    "floor": "fp32",
                    "scale": "fp32",
                },
                {"E": number, "TOP_K": top_k, "SIGMOID": False, "LATE": False, "NORMALISED": True}
                | {
                    "CORRECTED": False,
                    "GROUPED": grouped,
                    "BLOCK_M": 16,
                    "BLOCK_T": block_t,
                    "E_PAD": number,
                },
                {"num_warps": 8},
            )
        yield CompileCase(
            f"group {number} experts",
            _group_kernel,
            {"chosen_ptr": "*i64", "order_ptr": "*i64", "places": "i32", **ends},
            {"E": number, "E_PAD": number, "BLOCK_M": 128, "CHUNK": _CHUNK},
            {"num_warps": 4},
        )
    yield CompileCase(
        "add results of experts",
        _add_kernel,
        {"parts_ptr": "*fp32", "out_ptr": "*bf16", "width": "i32"},
        {"TOP_K": 8, "BLOCK": _WIDTH},
        {"num_warps": 4},
    )

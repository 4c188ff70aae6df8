"""The Triton version of `paged_attention`: one kernel for decodes and prefill chunks, and a reduction.

A program takes a block of queries of one sequence together with all query heads that share a key head, so that its
rows fill a matrix instruction and each key is read once for all of them. It walks the sequence's keys in tiles with
an online softmax in base 2, skipping the tiles that causality or the window hide. A small batch of decodes cannot
fill a GPU that way, so its keys are cut into segments, each a program of its own, and `_reduce_kernel` joins them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from plumbline_kernels._attention_batch import AttentionBatch
from plumbline_kernels._backend import CompileCase, capability_of, check, jit, next_power_of_2, tl, tuning

__all__ = ["MAX_SEGMENTS", "compile_cases", "launch", "num_segments", "reduce"]

MAX_SEGMENTS = 16
_HEAD_SIZES = (64, 128, 256, 512)
"""Heads up to each have tiles of their own."""
_LOG2E = 1.4426950408889634


@jit
def _walk(
    first_tile,
    end_tile,
    q,  # [BLOCK_M, HD_PAD]
    running_max,  # fp32 [BLOCK_M]
    running_sum,  # fp32 [BLOCK_M]
    acc,  # fp32 [BLOCK_M, HD_PAD]
    table,
    k_base,
    v_base,
    seq_len,
    position,  # [BLOCK_M]
    reach,  # [BLOCK_M]
    cache_block_stride,
    cache_slot_stride,
    scale_log2,
    window,
    cap,
    HD: tl.constexpr,
    HD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CAPPED: tl.constexpr,
    TILED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Take tiles of keys into the softmax; without MASKED every row sees all of them."""
    dim = tl.arange(0, HD_PAD)
    dim_mask = dim < HD
    for tile in range(first_tile, end_tile):
        key = tile * TILE + tl.arange(0, TILE)
        if BLOCK_SIZE % TILE == 0:
            page = tl.load(table + tile * TILE // BLOCK_SIZE).to(tl.int64)
            inside = tile * TILE % BLOCK_SIZE + tl.arange(0, TILE)
        else:
            page = tl.load(table + key // BLOCK_SIZE, mask=key < seq_len, other=0).to(tl.int64)
            inside = key % BLOCK_SIZE
        at = page * cache_block_stride + inside * cache_slot_stride
        k_at = k_base + at[None, :] + dim[:, None]
        v_at = v_base + at[:, None] + dim[None, :]
        if MASKED:
            # Slots beyond the sequence may hold NaN, and 0 * NaN would poison the sum: load zeros there.
            key_mask = key < seq_len
            k = tl.load(k_at, mask=key_mask[None, :] & dim_mask[:, None], other=0.0)
            v = tl.load(v_at, mask=key_mask[:, None] & dim_mask[None, :], other=0.0)
        elif HD == HD_PAD:
            k = tl.load(k_at)
            v = tl.load(v_at)
        else:
            k = tl.load(k_at, mask=dim_mask[:, None], other=0.0)
            v = tl.load(v_at, mask=dim_mask[None, :], other=0.0)

        scores = tl.dot(q, k, input_precision="ieee") * scale_log2
        if CAPPED:
            # scale_log2 has no log2(e) here, but 2 / cap * log2(e): tanh(y) = 1 - 2 / (1 + exp(2 y)).
            scores = cap * (1.0 - 2.0 / (1.0 + tl.exp2(scores)))
        if MASKED:
            visible = key[None, :] <= reach[:, None]
            if TILED:
                visible = visible & (key[None, :] >= (position // window * window)[:, None])
            elif window > 0:
                visible = visible & (key[None, :] > position[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        safe_max = new_max
        if MASKED:
            # A row that has seen no key yet keeps -inf; subtracting zero instead avoids inf - inf.
            safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(scores - safe_max[:, None])
        rescale = tl.exp2(running_max - safe_max)
        running_sum = running_sum * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        running_max = new_max
    return running_max, running_sum, acc


@jit
def _attend_kernel(
    q_ptr,  # [T, H, HD]
    k_cache_ptr,  # [num_blocks, BLOCK_SIZE, KV, HD]
    v_cache_ptr,
    out_ptr,  # [T, H, HD] if SEGMENTS == 1, else fp32 [T, H, SEGMENTS, HD]
    max_ptr,  # fp32 [T, H, SEGMENTS], used if SEGMENTS > 1
    sum_ptr,
    query_start_ptr,  # int32 [num_seqs + 1]
    seq_lens_ptr,  # int32 [num_seqs]
    block_tables_ptr,  # int32 [num_seqs, max_blocks]
    sinks_ptr,  # fp32 [H], read if SINKS and SEGMENTS == 1
    reach_ptr,  # int64 [T], read if REACH: the last key of each query
    num_seqs,
    q_stride,
    table_stride,
    cache_block_stride,
    cache_slot_stride,
    cache_head_stride,
    scale_log2,  # scale * log2(e): the softmax is in base 2
    window,  # 0 for none
    cap,  # used if CAPPED
    H: tl.constexpr,
    GROUP: tl.constexpr,  # query heads per key head
    HD: tl.constexpr,
    HD_PAD: tl.constexpr,  # power of two >= HD
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,  # rows of a program: BLOCK_Q tokens times GROUP heads, rounded up
    BLOCK_Q: tl.constexpr,
    TILE: tl.constexpr,  # keys per iteration
    SEGMENTS: tl.constexpr,
    DECODE: tl.constexpr,  # one query per sequence, so the program id is the sequence
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    REACH: tl.constexpr,
    TILED: tl.constexpr,  # windows are side by side
):
    kv_head = tl.program_id(1)
    segment = tl.program_id(2)

    block = tl.program_id(0)
    if DECODE:
        seq = block
        first_query = 0
    else:
        # The grid is an upper bound that needs no lengths on the host. Sequence i owns the query blocks from
        # start[i] // BLOCK_Q + i up to that of its successor; the last may be empty. Find the owner by bisection.
        base = tl.load(query_start_ptr)
        seq = 0
        end = num_seqs
        while end - seq > 1:
            middle = (seq + end) // 2
            first = (tl.load(query_start_ptr + middle) - base) // BLOCK_Q + middle
            if first <= block:
                seq = middle
            else:
                end = middle
        first_query = (block - ((tl.load(query_start_ptr + seq) - base) // BLOCK_Q + seq)) * BLOCK_Q
    start = tl.load(query_start_ptr + seq)
    query_len = tl.load(query_start_ptr + seq + 1) - start
    seq_len = tl.load(seq_lens_ptr + seq)
    if first_query >= query_len:
        return
    context_len = seq_len - query_len

    row = tl.arange(0, BLOCK_M)
    query = first_query + row // GROUP
    head = kv_head * GROUP + row % GROUP
    row_mask = (row < BLOCK_Q * GROUP) & (query < query_len)
    token = (start + query).to(tl.int64)
    dim = tl.arange(0, HD_PAD)
    dim_mask = dim < HD
    q_at = q_ptr + token[:, None] * q_stride + head[:, None] * HD + dim[None, :]
    q = tl.load(q_at, mask=row_mask[:, None] & dim_mask[None, :], other=0.0)
    position = context_len + query

    # The keys that any row of this program sees, cut into this segment's share of whole tiles.
    last_key = context_len + tl.minimum(first_query + BLOCK_Q, query_len)
    reach = position
    if REACH:
        reach = tl.load(reach_ptr + token, mask=row_mask, other=0).to(tl.int32)
        last_key = tl.max(reach, axis=0) + 1
    first_key = 0
    if TILED:
        first_key = tl.maximum(context_len + first_query, 0) // window * window
    elif window > 0:
        first_key = tl.maximum(context_len + first_query - window + 1, 0)
    first_tile = first_key // TILE
    end_tile = tl.cdiv(last_key, TILE)
    if SEGMENTS > 1:
        share = tl.cdiv(end_tile - first_tile, SEGMENTS)
        first_tile += segment * share
        end_tile = tl.minimum(first_tile + share, end_tile)

    table = block_tables_ptr + seq * table_stride
    k_base = k_cache_ptr + kv_head * cache_head_stride
    v_base = v_cache_ptr + kv_head * cache_head_stride
    running_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    running_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HD_PAD], dtype=tl.float32)
    whole_tile = first_tile
    if not (REACH or TILED or DECODE):
        # Tiles that every row sees whole come first, without masks; a decode has one other tile.
        seen = (context_len + first_query + 1) // TILE
        whole_tile = tl.where(window > 0, first_tile, tl.minimum(tl.maximum(seen, first_tile), end_tile))
        running_max, running_sum, acc = _walk(
            first_tile, whole_tile, q, running_max, running_sum, acc, table, k_base, v_base, seq_len, position, reach,
            cache_block_stride, cache_slot_stride, scale_log2, window, cap,
            HD, HD_PAD, BLOCK_SIZE, TILE, CAPPED, TILED, False,
        )  # fmt: skip
    running_max, running_sum, acc = _walk(
        whole_tile, end_tile, q, running_max, running_sum, acc, table, k_base, v_base, seq_len, position, reach,
        cache_block_stride, cache_slot_stride, scale_log2, window, cap,
        HD, HD_PAD, BLOCK_SIZE, TILE, CAPPED, TILED, True,
    )  # fmt: skip

    out_mask = row_mask[:, None] & dim_mask[None, :]
    if SEGMENTS == 1:
        if SINKS:
            sink = tl.load(sinks_ptr + head, mask=row_mask, other=0.0) * 1.4426950408889634
            new_max = tl.maximum(running_max, sink)
            rescale = tl.exp2(running_max - new_max)
            running_sum = running_sum * rescale + tl.exp2(sink - new_max)
            acc = acc * rescale[:, None]
        acc = acc / tl.where(running_sum == 0.0, 1.0, running_sum)[:, None]
        out_at = out_ptr + (token[:, None] * H + head[:, None]) * HD + dim[None, :]
        tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=out_mask)
    else:
        part = (token * H + head) * SEGMENTS + segment
        tl.store(out_ptr + part[:, None] * HD + dim[None, :], acc, mask=out_mask)
        tl.store(max_ptr + part, running_max, mask=row_mask)
        tl.store(sum_ptr + part, running_sum, mask=row_mask)


@jit
def _reduce_kernel(
    parts_ptr,  # fp32 [T, H, SEGMENTS, HD]
    max_ptr,  # fp32 [T, H, SEGMENTS]
    sum_ptr,
    out_ptr,  # [T, H, HD]
    sinks_ptr,  # fp32 [H], read if SINKS
    H: tl.constexpr,
    HD: tl.constexpr,
    HD_PAD: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SINKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    segment = tl.arange(0, SEGMENTS)
    dim = tl.arange(0, HD_PAD)
    maxima = tl.load(max_ptr + row * SEGMENTS + segment)
    total_max = tl.max(maxima, axis=0)
    if SINKS:
        sink = tl.load(sinks_ptr + row % H) * 1.4426950408889634
        total_max = tl.maximum(total_max, sink)
    # Segments without keys have a maximum of -inf and so no weight; a padding sequence has only such.
    scale = tl.exp2(maxima - tl.where(total_max == float("-inf"), 0.0, total_max))
    total = tl.sum(tl.load(sum_ptr + row * SEGMENTS + segment) * scale, axis=0)
    if SINKS:
        total += tl.exp2(sink - total_max)
    at = parts_ptr + (row * SEGMENTS + segment[:, None]) * HD + dim[None, :]
    parts = tl.load(at, mask=(dim < HD)[None, :], other=0.0)
    out = tl.sum(parts * scale[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * HD + dim, out.to(out_ptr.dtype.element_ty), mask=dim < HD)


def launch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    tiled: bool = False,
) -> Tensor:
    """Run decodes and prefill chunks as two launches of one kernel, each with the tiles that suit it."""
    check(q.stride(2) == 1 and q.stride(1) == q.shape[2], "paged_attention: heads of q must be contiguous")
    check(k_cache.stride() == v_cache.stride(), "paged_attention: the caches must share their strides")
    check(k_cache.stride(3) == 1, "paged_attention: heads in the cache must be contiguous")
    check(batch.block_tables.stride(1) == 1, "paged_attention: rows of block_tables must be contiguous")
    # Padding rows stay zero.
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    num_seqs = batch.seq_lens.shape[0]
    num_decodes = num_seqs if batch.max_query_len == 1 else batch.num_decodes
    scores = _Scores(scale, window or 0, softcap, sinks, tiled and window is not None)
    if num_decodes:
        _launch_part(q, k_cache, v_cache, out, batch, slice(0, num_decodes), num_decodes, scores, True)
    if num_decodes < num_seqs:
        tokens = q.shape[0] - num_decodes
        _launch_part(q, k_cache, v_cache, out, batch, slice(num_decodes, num_seqs), tokens, scores, False)
    return out


class _Scores(NamedTuple):
    """How scores become weights; see `paged_attention`."""

    scale: float
    window: int  # 0 for none
    softcap: float | None
    sinks: Tensor | None
    tiled: bool


def _launch_part(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    batch: AttentionBatch,
    seqs: slice,
    num_tokens: int,
    scores: _Scores,
    decode: bool,
) -> None:
    _, num_heads, head_dim = q.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = num_heads // num_kv_heads
    num_seqs = seqs.stop - seqs.start
    config = _config(decode, group, head_dim, capability_of(q.device))
    block_q = 1 if decode else config["block_m"] // group
    q_blocks = num_seqs if decode else num_tokens // block_q + num_seqs
    segments = num_segments(q_blocks * num_kv_heads, batch.max_seq_len, config["tile"]) if decode else 1
    parts, maxima, sums = out, out, out
    if segments > 1:
        # Decodes own the first rows, one each.
        parts = torch.empty((num_seqs, num_heads, segments, head_dim), dtype=torch.float32, device=q.device)
        maxima = torch.empty((num_seqs, num_heads, segments), dtype=torch.float32, device=q.device)
        sums = torch.empty_like(maxima)
    _attend_kernel[(q_blocks, num_kv_heads, segments)](
        q,
        k_cache,
        v_cache,
        parts,
        maxima,
        sums,
        batch.query_start_loc[seqs.start :],
        batch.seq_lens[seqs.start :],
        batch.block_tables[seqs.start :],
        out if scores.sinks is None else scores.sinks,
        out if batch.reach is None else batch.reach,
        num_seqs,
        q.stride(0),
        batch.block_tables.stride(0),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        scores.scale * _LOG2E * (2.0 / scores.softcap if scores.softcap else 1.0),
        scores.window,
        (scores.softcap or 0.0) * _LOG2E,
        H=num_heads,
        GROUP=group,
        HD=head_dim,
        HD_PAD=max(next_power_of_2(head_dim), 16),
        BLOCK_SIZE=block_size,
        BLOCK_M=config["block_m"],
        BLOCK_Q=block_q,
        TILE=config["tile"],
        SEGMENTS=segments,
        DECODE=decode,
        CAPPED=scores.softcap is not None,
        SINKS=scores.sinks is not None,
        REACH=not decode and batch.reach is not None,
        TILED=scores.tiled,
        num_warps=config["num_warps"],
        num_stages=config["num_stages"],
    )
    if segments > 1:
        reduce(parts, maxima, sums, out, scores.sinks)


def reduce(parts: Tensor, maxima: Tensor, sums: Tensor, out: Tensor, sinks: Tensor | None = None) -> None:
    """Join segments of keys: write their results to the first rows of out [T, H, HD].

    Args:
        parts: fp32 [rows, H, SEGMENTS, HD].
        maxima: fp32 [rows, H, SEGMENTS].
        sums: like maxima.
        out: contiguous.
        sinks: fp32 [H].
    """
    rows, num_heads, segments, head_dim = parts.shape
    _reduce_kernel[(rows * num_heads,)](
        parts,
        maxima,
        sums,
        out,
        out if sinks is None else sinks,
        H=num_heads,
        HD=head_dim,
        HD_PAD=max(next_power_of_2(head_dim), 16),
        SEGMENTS=segments,
        SINKS=sinks is not None,
        num_warps=tuning("attention_reduce")["num_warps"],
    )


def _config(decode: bool, group: int, head_dim: int, capability: int = 90) -> dict[str, int]:
    """Return the tiles for this kind of work; large groups take at least one token.

    Before sm_90 the sums of matrix products are spread over more registers, and the large tiles of prompts would spill.
    """
    size = next(size for size in _HEAD_SIZES if head_dim <= size)
    name = f"attention_{'decode' if decode else 'prefill'}_{size}"
    config = tuning(name, capability)
    return config | {"block_m": max(config["block_m"], next_power_of_2(group))}


def num_segments(programs: int, max_seq_len: int, tile: int) -> int:
    """How many ways to split the keys so that a small batch still fills the GPU; depends on nothing on the device."""
    wanted = min(256 // programs if programs else 1, max_seq_len // (2 * tile), MAX_SEGMENTS)
    return 1 << max(wanted, 1).bit_length() - 1


def compile_cases(capability: int = 90) -> Iterator[CompileCase]:
    """Decode and prefill for the head sizes in use, whole and split, with 8 B-like heads and blocks of 64."""
    for head_dim in (64, 80, 128, 256, 512):
        for segments in (0, 1, MAX_SEGMENTS):  # 0 is prefill
            yield _attend_case(
                f"paged_attention hd={head_dim} segments={segments}", head_dim, segments, capability
            )
            yield _attend_case(
                f"paged_attention hd={head_dim} segments={segments}, capped, with sinks",
                head_dim,
                segments,
                capability,
                CAPPED=True,
                SINKS=True,
            )
        yield _attend_case(f"paged_attention hd={head_dim}, with reach", head_dim, 0, capability, REACH=True)
        yield CompileCase(
            f"paged_attention reduce hd={head_dim}",
            _reduce_kernel,
            {f"{tensor}_ptr": "*fp32" for tensor in ("parts", "max", "sum", "sinks")} | {"out_ptr": "*bf16"},
            {
                "H": 32,
                "HD": head_dim,
                "HD_PAD": next_power_of_2(head_dim),
                "SEGMENTS": MAX_SEGMENTS,
                "SINKS": True,
            },
            tuning("attention_reduce"),
        )
    for segments in (0, MAX_SEGMENTS):
        name = f"paged_attention hd=128 segments={segments}, windows side by side"
        yield _attend_case(name, 128, segments, capability, TILED=True)
    # Triton compiles integers that are 1 as constants: a step with a single sequence is a kernel of its own.
    yield _attend_case("paged_attention hd=128, one sequence", 128, 0, capability, num_seqs=1)


def _attend_case(name: str, head_dim: int, segments: int, capability: int, **constants: int) -> CompileCase:
    config = _config(segments > 0, 4, head_dim, capability)
    pointers = {f"{tensor}_ptr": "*bf16" for tensor in ("q", "k_cache", "v_cache")}
    indices = {f"{tensor}_ptr": "*i32" for tensor in ("query_start", "seq_lens", "block_tables")}
    outputs = {"out_ptr": "*bf16" if segments < 2 else "*fp32", "max_ptr": "*fp32", "sum_ptr": "*fp32"}
    outputs |= {"sinks_ptr": "*fp32", "reach_ptr": "*i64"}
    names = {"num_seqs", "q_stride", "table_stride", "window"}
    names |= {"cache_block_stride", "cache_slot_stride", "cache_head_stride"}
    integers = dict.fromkeys(sorted(names - constants.keys()), "i32")
    return CompileCase(
        name,
        _attend_kernel,
        pointers | indices | outputs | integers | {"scale_log2": "fp32", "cap": "fp32"},
        {
            "CAPPED": False,
            "SINKS": False,
            "REACH": False,
            "TILED": False,
            "H": 32,
            "GROUP": 4,
            "HD": head_dim,
            "HD_PAD": next_power_of_2(head_dim),
            "BLOCK_SIZE": 64,
            "BLOCK_M": config["block_m"],
            "BLOCK_Q": 1 if segments else config["block_m"] // 4,
            "TILE": config["tile"],
            "SEGMENTS": max(segments, 1),
            "DECODE": segments > 0,
        }
        | constants,
        config,
        ("mma.sync",) if segments else ("wgmma",),
    )

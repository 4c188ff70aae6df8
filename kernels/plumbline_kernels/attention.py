"""Attention over the paged cache, for any mix of decodes and prefill chunks in one call.

A sequence in a step:

    |<------------- seq_len -------------->|
    |<---- context_len ---->|<- query_len ->|
      keys in the cache       new tokens, whose keys and values are in the cache as well

Token i of the chunk is at position context_len + i and attends to all positions up to its own; with a sliding window
w, position p attends to (p - w, p]. Cache slots that a sequence does not own may hold anything, NaN included.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels._backend import CompileCase, cdiv, check, jit, next_power_of_2, tl, tuning, use_triton

__all__ = ["AttentionBatch", "paged_attention"]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBatch:
    """Who attends to what in one step. The tensors describe this step only: build a new batch for the next one."""

    query_start_loc: Tensor
    """int32 [num_seqs + 1]: sequence i owns the tokens from entry i up to entry i + 1."""
    seq_lens: Tensor
    """int32 [num_seqs]: context_len + query_len."""
    block_tables: Tensor
    """int32 [num_seqs, max_blocks]: block ids in order; unused entries are 0."""
    slot_mapping: Tensor
    """int64 [num_tokens]: the cache slot of each new token, -1 for padding."""
    positions: Tensor
    """int64 [num_tokens]."""
    max_query_len: int
    max_seq_len: int
    """Host integers, known when the step is planned, so that nothing waits for the device."""
    num_decodes: int = 0
    """The first `num_decodes` sequences have query_len 1; the rest are prefill chunks."""
    plans: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    """What the CPU path derives from the tensors above, shared by the layers of the step."""


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None = None,
) -> Tensor:
    """Attend with `q` [T, H, hd] to the cached keys and values [num_blocks, block_size, KV, hd]; returns [T, H, hd].

    Query head h reads the key head h // (H // KV). Rows that belong to no sequence come back as zeros.
    """
    check(q.dim() == 3, "paged_attention: q must be [T, H, hd]")
    check(k_cache.shape == v_cache.shape, "paged_attention: k_cache and v_cache must be alike")
    check(q.shape[2] == k_cache.shape[3], "paged_attention: q and the cache differ in head_dim")
    check(q.shape[1] % k_cache.shape[2] == 0, "paged_attention: query heads must be a multiple of key heads")
    check(q.dtype == k_cache.dtype == v_cache.dtype, "paged_attention: q and the caches must share a dtype")
    check(sliding_window is None or sliding_window > 0, "paged_attention: sliding_window must be positive")
    if use_triton(q):
        return _launch(q, k_cache, v_cache, batch, scale, sliding_window)
    return paged_attention_torch(q, k_cache, v_cache, batch, scale, sliding_window)


class _Decodes(NamedTuple):
    """The gather of all decodes at once, padded to the longest."""

    num_seqs: int
    slots: Tensor  # int64 [num_seqs * length]; padding repeats the sequence's last own slot
    mask: Tensor  # additive [num_seqs, 1, 1, length]


class _Chunk(NamedTuple):
    """One prefill chunk."""

    start: int
    stop: int
    slots: Tensor  # int64 [keys]
    mask: Tensor | None  # additive [query_len, keys]; None for the plain causal square


def paged_attention_torch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None = None,
) -> Tensor:
    """The twin: one gather and one SDPA call for all decodes, one of each per prefill chunk."""
    num_tokens, num_heads, head_dim = q.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    key = (sliding_window, block_size, q.dtype)
    plan = batch.plans.get(key)
    if plan is None:
        plan = batch.plans[key] = _plan(batch, block_size, sliding_window, q.dtype)
    decodes, chunks = plan
    k_flat, v_flat = k_cache.flatten(0, 1), v_cache.flatten(0, 1)

    attended = None
    if decodes is not None:
        # The query heads of one key head act as one query of several rows: no key is copied per query head.
        shape = (decodes.num_seqs, -1, num_kv_heads, head_dim)
        k = k_flat.index_select(0, decodes.slots).view(shape).transpose(1, 2)
        v = v_flat.index_select(0, decodes.slots).view(shape).transpose(1, 2)
        rows = q if decodes.num_seqs == num_tokens else q[: decodes.num_seqs]
        rows = rows.view(decodes.num_seqs, num_kv_heads, num_heads // num_kv_heads, head_dim)
        attended = F.scaled_dot_product_attention(rows, k, v, decodes.mask, scale=scale)
        attended = attended.reshape(decodes.num_seqs, num_heads, head_dim)
        if decodes.num_seqs == num_tokens:
            return attended

    out = q.new_zeros(num_tokens, num_heads, head_dim)
    if decodes is not None and attended is not None:
        out[: decodes.num_seqs] = attended
    for start, stop, slots, mask in chunks:
        out[start:stop] = F.scaled_dot_product_attention(
            q[start:stop].transpose(0, 1).unsqueeze(0),
            k_flat.index_select(0, slots).transpose(0, 1).unsqueeze(0),
            v_flat.index_select(0, slots).transpose(0, 1).unsqueeze(0),
            mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=num_heads != num_kv_heads,
        )[0].transpose(0, 1)
    return out


_PADDING = 16
"""Decodes are padded to a multiple of this, the width of a vector: then a row's result has the same bits whatever the
longest sequence of the batch is. (In fp32 that holds for up to three query heads per key head; with more, BLAS takes
another summation order for another length.)"""


def _plan(
    batch: AttentionBatch, block_size: int, window: int | None, dtype: torch.dtype
) -> tuple[_Decodes | None, list[_Chunk]]:
    num_seqs = batch.seq_lens.shape[0]
    num_decodes = num_seqs if batch.max_query_len == 1 else batch.num_decodes
    decodes = _plan_decodes(batch, num_decodes, block_size, window, dtype) if num_decodes else None
    if num_decodes == num_seqs:
        return decodes, []
    starts = batch.query_start_loc[num_decodes:].tolist()
    seq_lens = batch.seq_lens[num_decodes:].tolist()
    chunks = [
        _plan_chunk(table, start, stop, seq_len, block_size, window, dtype)
        for table, start, stop, seq_len in zip(
            batch.block_tables[num_decodes:].long(), starts[:-1], starts[1:], seq_lens, strict=True
        )
        if stop > start
    ]
    return decodes, chunks


def _plan_decodes(
    batch: AttentionBatch, count: int, block_size: int, window: int | None, dtype: torch.dtype
) -> _Decodes:
    seq_lens = batch.seq_lens[:count].long().unsqueeze(1)
    longest = batch.max_seq_len if count == batch.seq_lens.shape[0] else int(seq_lens.max())
    length = longest if window is None else min(longest, window)
    offsets = torch.arange(cdiv(length, _PADDING) * _PADDING).unsqueeze(0)
    first = None if window is None or window >= longest else (seq_lens - window).clamp_(min=0)
    # Padding reads the sequence's own last slot: what it holds is finite, and the mask gives it no weight.
    positions = torch.minimum(offsets if first is None else offsets + first, (seq_lens - 1).clamp_(min=0))
    pages = batch.block_tables[:count].long().gather(1, positions // block_size)
    slots = pages.mul_(block_size).add_(positions % block_size)
    keys = seq_lens if first is None else seq_lens - first
    hidden = offsets >= keys.clamp(min=1)
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None, None]
    return _Decodes(count, slots.flatten(), mask)


def _plan_chunk(
    table: Tensor,
    start: int,
    stop: int,
    seq_len: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> _Chunk:
    context_len = seq_len - (stop - start)
    first = 0 if window is None else max(0, context_len - window + 1)
    keys = torch.arange(first, seq_len)
    slots = table[keys // block_size] * block_size + keys % block_size
    if context_len == 0 and (window is None or window >= seq_len):
        return _Chunk(start, stop, slots, None)
    distance = torch.arange(context_len, seq_len).unsqueeze(1) - keys
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    return _Chunk(
        start, stop, slots, torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    )


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
    num_seqs,
    q_stride,
    table_stride,
    cache_block_stride,
    cache_slot_stride,
    cache_head_stride,
    scale_log2,  # scale * log2(e): the softmax is in base 2
    window,  # 0 for none
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
    first_key = 0
    if window > 0:
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
    for tile in range(first_tile, end_tile):
        key = tile * TILE + tl.arange(0, TILE)
        key_mask = key < seq_len
        page = tl.load(table + key // BLOCK_SIZE, mask=key_mask, other=0).to(tl.int64)
        at = page * cache_block_stride + (key % BLOCK_SIZE) * cache_slot_stride
        # Slots beyond the sequence may hold NaN, and 0 * NaN would poison the sum: load zeros there.
        k = tl.load(
            k_base + at[None, :] + dim[:, None], mask=key_mask[None, :] & dim_mask[:, None], other=0.0
        )
        v = tl.load(
            v_base + at[:, None] + dim[None, :], mask=key_mask[:, None] & dim_mask[None, :], other=0.0
        )

        scores = tl.dot(q, k, input_precision="ieee") * scale_log2
        visible = key[None, :] <= position[:, None]
        if window > 0:
            visible = visible & (key[None, :] > position[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        # A row that has seen no key yet keeps -inf; subtracting zero instead avoids inf - inf.
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(scores - safe_max[:, None])
        rescale = tl.exp2(running_max - safe_max)
        running_sum = running_sum * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        running_max = new_max

    out_mask = row_mask[:, None] & dim_mask[None, :]
    if SEGMENTS == 1:
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
    HD: tl.constexpr,
    HD_PAD: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    segment = tl.arange(0, SEGMENTS)
    dim = tl.arange(0, HD_PAD)
    maxima = tl.load(max_ptr + row * SEGMENTS + segment)
    total_max = tl.max(maxima, axis=0)
    # Segments without keys have a maximum of -inf and so no weight; a padding sequence has only such.
    scale = tl.exp2(maxima - tl.where(total_max == float("-inf"), 0.0, total_max))
    total = tl.sum(tl.load(sum_ptr + row * SEGMENTS + segment) * scale, axis=0)
    at = parts_ptr + (row * SEGMENTS + segment[:, None]) * HD + dim[None, :]
    parts = tl.load(at, mask=(dim < HD)[None, :], other=0.0)
    out = tl.sum(parts * scale[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * HD + dim, out.to(out_ptr.dtype.element_ty), mask=dim < HD)


MAX_SEGMENTS = 16


def _launch(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float, window: int | None
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
    if num_decodes:
        _launch_part(q, k_cache, v_cache, out, batch, slice(0, num_decodes), num_decodes, scale, window, True)
    if num_decodes < num_seqs:
        tokens = q.shape[0] - num_decodes
        _launch_part(
            q, k_cache, v_cache, out, batch, slice(num_decodes, num_seqs), tokens, scale, window, False
        )
    return out


def _launch_part(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    batch: AttentionBatch,
    seqs: slice,
    num_tokens: int,
    scale: float,
    window: int | None,
    decode: bool,
) -> None:
    _, num_heads, head_dim = q.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = num_heads // num_kv_heads
    num_seqs = seqs.stop - seqs.start
    config = _config(decode, group, head_dim)
    block_q = 1 if decode else config["block_m"] // group
    q_blocks = num_seqs if decode else num_tokens // block_q + num_seqs
    segments = _num_segments(q_blocks * num_kv_heads, batch.max_seq_len, config["tile"]) if decode else 1
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
        num_seqs,
        q.stride(0),
        batch.block_tables.stride(0),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        scale * 1.4426950408889634,
        window or 0,
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
        num_warps=config["num_warps"],
        num_stages=config["num_stages"],
    )
    if segments > 1:
        _reduce_kernel[(num_seqs * num_heads,)](
            parts,
            maxima,
            sums,
            out,
            HD=head_dim,
            HD_PAD=max(next_power_of_2(head_dim), 16),
            SEGMENTS=segments,
            num_warps=tuning("attention_reduce")["num_warps"],
        )


def _config(decode: bool, group: int, head_dim: int) -> dict[str, int]:
    """The tiles for this kind of work; wide heads take smaller ones, large groups at least one token."""
    name = ("attention_decode" if decode else "attention_prefill") + ("_wide" if head_dim > 128 else "")
    config = tuning(name)
    return config | {"block_m": max(config["block_m"], next_power_of_2(group))}


def _num_segments(programs: int, max_seq_len: int, tile: int) -> int:
    """How many ways to split the keys so that a small batch still fills the GPU; depends on nothing on the device."""
    wanted = min(256 // programs if programs else 1, max_seq_len // (2 * tile), MAX_SEGMENTS)
    return 1 << max(wanted, 1).bit_length() - 1


def compile_cases() -> Iterator[CompileCase]:
    """Decode and prefill for the head sizes in use, whole and split, with 8 B-like heads and a block of 64."""
    pointers = {f"{name}_ptr": "*bf16" for name in ("q", "k_cache", "v_cache")}
    indices = {f"{name}_ptr": "*i32" for name in ("query_start", "seq_lens", "block_tables")}
    strides = ("q_stride", "table_stride", "cache_block_stride", "cache_slot_stride", "cache_head_stride")
    for head_dim in (64, 80, 128, 256):
        for segments in (0, 1, MAX_SEGMENTS):  # 0 is prefill
            config = _config(segments > 0, 4, head_dim)
            padded = next_power_of_2(head_dim)
            yield CompileCase(
                f"paged_attention hd={head_dim} segments={segments}",
                _attend_kernel,
                pointers
                | indices
                | {"out_ptr": "*bf16" if segments < 2 else "*fp32", "max_ptr": "*fp32", "sum_ptr": "*fp32"}
                | dict.fromkeys((*strides, "num_seqs", "window"), "i32")
                | {"scale_log2": "fp32"},
                {
                    "H": 32,
                    "GROUP": 4,
                    "HD": head_dim,
                    "HD_PAD": padded,
                    "BLOCK_SIZE": 64,
                    "BLOCK_M": config["block_m"],
                    "BLOCK_Q": 1 if segments else config["block_m"] // 4,
                    "TILE": config["tile"],
                    "SEGMENTS": max(segments, 1),
                    "DECODE": segments > 0,
                },
                config,
                ("mma.sync",) if segments else ("wgmma",),
            )
        yield CompileCase(
            f"paged_attention reduce hd={head_dim}",
            _reduce_kernel,
            {"parts_ptr": "*fp32", "max_ptr": "*fp32", "sum_ptr": "*fp32", "out_ptr": "*bf16"},
            {"HD": head_dim, "HD_PAD": padded, "SEGMENTS": MAX_SEGMENTS},
            tuning("attention_reduce"),
        )

"""The Triton kernels of latent attention: writing rows to the cache, and attention over it.

All heads share the cached rows, so the heads of one token fill a matrix instruction: a program takes one token and a
block of its heads, in prompts as in decodes. A row is key and value at once and is read once, its latent and its
rotated part apart, because their widths (512 and 64) are powers of two and their sum is not. Like in
`attention._triton`, a small batch is cut into segments of keys, which that module's `reduce` joins.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from plumbline_kernels._attention_batch import AttentionBatch
from plumbline_kernels._backend import (
    CompileCase,
    capability_of,
    cdiv,
    check,
    jit,
    next_power_of_2,
    tl,
    tuning,
)
from plumbline_kernels.attention._triton import MAX_SEGMENTS, num_segments, reduce

__all__ = ["compile_cases", "launch_attention", "launch_write"]

_LOG2E = 1.4426950408889634


@jit
def _write_kernel(
    kv_ptr,  # [T, RANK + ROPE]
    weight_ptr,  # fp32 [RANK]
    table_ptr,  # fp32 [positions, ROPE]: cosines, then sines
    positions_ptr,  # int64 [T]
    slots_ptr,  # int64 [T], -1 for padding
    cache_ptr,  # [blocks, BLOCK_SIZE, 1, RANK + ROPE]
    kv_stride,
    cache_block_stride,
    cache_slot_stride,
    eps,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    RANK_PAD: tl.constexpr,
    HALF_PAD: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    to = cache_ptr + (slot // BLOCK_SIZE) * cache_block_stride + (slot % BLOCK_SIZE) * cache_slot_stride
    kv = kv_ptr + token * kv_stride
    dim = tl.arange(0, RANK_PAD)
    mask = dim < RANK
    latent = tl.load(kv + dim, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(latent * latent, axis=0) / RANK + eps)
    latent = latent * scale * tl.load(weight_ptr + dim, mask=mask, other=0.0)
    tl.store(to + dim, latent.to(cache_ptr.dtype.element_ty), mask=mask)

    pair = tl.arange(0, HALF_PAD)
    pair_mask = pair < ROPE // 2
    angle = table_ptr + tl.load(positions_ptr + token) * ROPE + pair
    cos = tl.load(angle, mask=pair_mask, other=0.0)
    sin = tl.load(angle + ROPE // 2, mask=pair_mask, other=0.0)
    first = tl.load(kv + RANK + pair, mask=pair_mask, other=0.0).to(tl.float32)
    second = tl.load(kv + RANK + ROPE // 2 + pair, mask=pair_mask, other=0.0).to(tl.float32)
    kind = cache_ptr.dtype.element_ty
    tl.store(to + RANK + pair, (first * cos - second * sin).to(kind), mask=pair_mask)
    tl.store(to + RANK + ROPE // 2 + pair, (second * cos + first * sin).to(kind), mask=pair_mask)


@jit
def _attend_kernel(
    q_ptr,  # [T, H, RANK + ROPE], contiguous
    cache_ptr,  # [blocks, BLOCK_SIZE, 1, RANK + ROPE]
    out_ptr,  # [T, H, RANK] if SEGMENTS == 1, else fp32 [T, H, SEGMENTS, RANK]
    max_ptr,  # fp32 [T, H, SEGMENTS], used if SEGMENTS > 1
    sum_ptr,
    query_start_ptr,  # int32 [num_seqs + 1]
    seq_lens_ptr,  # int32 [num_seqs]
    block_tables_ptr,  # int32 [num_seqs, max_blocks]
    num_seqs,
    table_stride,
    cache_block_stride,
    cache_slot_stride,
    scale_log2,  # scale * log2(e)
    H: tl.constexpr,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    RANK_PAD: tl.constexpr,
    ROPE_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,  # heads of a program
    TILE: tl.constexpr,  # keys per iteration
    SEGMENTS: tl.constexpr,
):
    token = tl.program_id(0)
    segment = tl.program_id(2)
    # The sequence that owns the token, by bisection; rows after the last one are padding.
    seq = 0
    end = num_seqs
    while end - seq > 1:
        middle = (seq + end) // 2
        if tl.load(query_start_ptr + middle) <= token:
            seq = middle
        else:
            end = middle
    stop = tl.load(query_start_ptr + seq + 1)
    if token >= stop:
        return
    position = tl.load(seq_lens_ptr + seq) - stop + token

    head = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    head_mask = head < H
    dim = tl.arange(0, RANK_PAD)
    turn = tl.arange(0, ROPE_PAD)
    row = token.to(tl.int64) * H + head
    q = q_ptr + row[:, None] * (RANK + ROPE)
    q_latent = tl.load(q + dim[None, :], mask=head_mask[:, None] & (dim < RANK)[None, :], other=0.0)
    q_turned = tl.load(q + RANK + turn[None, :], mask=head_mask[:, None] & (turn < ROPE)[None, :], other=0.0)

    first_tile = 0
    end_tile = tl.cdiv(position + 1, TILE)
    if SEGMENTS > 1:
        share = tl.cdiv(end_tile, SEGMENTS)
        first_tile = segment * share
        end_tile = tl.minimum(first_tile + share, end_tile)
    table = block_tables_ptr + seq * table_stride
    running_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    running_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, RANK_PAD], dtype=tl.float32)
    for tile in range(first_tile, end_tile):
        key = tile * TILE + tl.arange(0, TILE)
        key_mask = key <= position
        page = tl.load(table + key // BLOCK_SIZE, mask=key_mask, other=0).to(tl.int64)
        at = cache_ptr + page * cache_block_stride + (key % BLOCK_SIZE) * cache_slot_stride
        # Slots beyond the sequence may hold NaN, and 0 * NaN would poison the sum: load zeros there.
        latent = tl.load(
            at[:, None] + dim[None, :], mask=key_mask[:, None] & (dim < RANK)[None, :], other=0.0
        )
        turned = tl.load(
            at[None, :] + RANK + turn[:, None], mask=key_mask[None, :] & (turn < ROPE)[:, None], other=0.0
        )
        scores = tl.dot(q_latent, tl.trans(latent), input_precision="ieee")
        scores += tl.dot(q_turned, turned, input_precision="ieee")
        scores = tl.where(key_mask[None, :], scores * scale_log2, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(running_max - new_max)
        running_sum = running_sum * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(latent.dtype), latent, input_precision="ieee")
        running_max = new_max

    mask = head_mask[:, None] & (dim < RANK)[None, :]
    if SEGMENTS == 1:
        # A padding sequence of length 0 has no key.
        acc = acc / tl.where(running_sum == 0.0, 1.0, running_sum)[:, None]
        tl.store(out_ptr + row[:, None] * RANK + dim[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        part = row * SEGMENTS + segment
        tl.store(out_ptr + part[:, None] * RANK + dim[None, :], acc, mask=mask)
        tl.store(max_ptr + part, running_max, mask=head_mask)
        tl.store(sum_ptr + part, running_sum, mask=head_mask)


def launch_write(
    kv: Tensor, weight: Tensor, eps: float, table: Tensor, positions: Tensor, slots: Tensor, cache: Tensor
) -> None:
    """Compute `latent_write`."""
    rank, rope = weight.shape[0], table.shape[1]
    check(
        kv.stride(1) == 1 and cache.stride(3) == 1,
        "latent_write: rows of kv and the cache must be contiguous",
    )
    _write_kernel[(len(kv),)](
        kv,
        weight,
        table,
        positions,
        slots,
        cache,
        kv.stride(0),
        cache.stride(0),
        cache.stride(1),
        eps,
        RANK=rank,
        ROPE=rope,
        BLOCK_SIZE=cache.shape[1],
        RANK_PAD=next_power_of_2(rank),
        HALF_PAD=next_power_of_2(rope // 2),
        num_warps=tuning("latent_write")["num_warps"],
    )


def launch_attention(q: Tensor, cache: Tensor, batch: AttentionBatch, rank: int, scale: float) -> Tensor:
    """Compute `latent_attention`."""
    check(q.is_contiguous(), "latent_attention: q must be contiguous")
    check(cache.stride(3) == 1, "latent_attention: rows of the cache must be contiguous")
    tokens, heads, width = q.shape
    # With the tiles of sm_90, fp32 would take 304 KiB of shared memory, more than there is.
    capability = 80 if q.dtype == torch.float32 else capability_of(q.device)
    config = tuning("latent_attention", capability)
    blocks = cdiv(heads, config["block_m"])
    # Padding rows stay zero.
    out = torch.zeros(tokens, heads, rank, dtype=q.dtype, device=q.device)
    # How keys are cut would depend on the other tokens.
    segments = 1 if batch.exact else num_segments(tokens * blocks, batch.max_seq_len, config["tile"])
    parts, maxima, sums = out, out, out
    if segments > 1:
        parts = torch.zeros(tokens, heads, segments, rank, dtype=torch.float32, device=q.device)
        maxima = torch.full((tokens, heads, segments), float("-inf"), dtype=torch.float32, device=q.device)
        sums = torch.zeros_like(maxima)
    _attend_kernel[(tokens, blocks, segments)](
        q,
        cache,
        parts,
        maxima,
        sums,
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables,
        len(batch.seq_lens),
        batch.block_tables.stride(0),
        cache.stride(0),
        cache.stride(1),
        scale * _LOG2E,
        H=heads,
        RANK=rank,
        ROPE=width - rank,
        RANK_PAD=max(next_power_of_2(rank), 16),
        ROPE_PAD=max(next_power_of_2(width - rank), 16),
        BLOCK_SIZE=cache.shape[1],
        BLOCK_M=config["block_m"],
        TILE=config["tile"],
        SEGMENTS=segments,
        num_warps=config["num_warps"],
        num_stages=config["num_stages"],
    )
    if segments > 1:
        reduce(parts, maxima, sums, out)
    return out


def compile_cases(capability: int = 90) -> Iterator[CompileCase]:
    """Yield both kernels with the shapes of DeepSeek V3 and Kimi K2, whole and in segments."""
    yield CompileCase(
        "latent write",
        _write_kernel,
        {"kv_ptr": "*bf16", "weight_ptr": "*fp32", "table_ptr": "*fp32", "positions_ptr": "*i64"}
        | {"slots_ptr": "*i64", "cache_ptr": "*bf16", "eps": "fp32"}
        | dict.fromkeys(("kv_stride", "cache_block_stride", "cache_slot_stride"), "i32"),
        {"RANK": 512, "ROPE": 64, "BLOCK_SIZE": 16, "RANK_PAD": 512, "HALF_PAD": 32},
        tuning("latent_write"),
    )
    config = tuning("latent_attention", capability)
    for segments in (1, MAX_SEGMENTS):
        yield CompileCase(
            f"latent attention segments={segments}",
            _attend_kernel,
            {"q_ptr": "*bf16", "cache_ptr": "*bf16", "out_ptr": "*bf16" if segments == 1 else "*fp32"}
            | {"max_ptr": "*fp32", "sum_ptr": "*fp32", "query_start_ptr": "*i32", "seq_lens_ptr": "*i32"}
            | {"block_tables_ptr": "*i32", "scale_log2": "fp32"}
            | dict.fromkeys(("num_seqs", "table_stride", "cache_block_stride", "cache_slot_stride"), "i32"),
            {
                "H": 128,
                "RANK": 512,
                "ROPE": 64,
                "RANK_PAD": 512,
                "ROPE_PAD": 64,
                "BLOCK_SIZE": 16,
                "BLOCK_M": config["block_m"],
                "TILE": config["tile"],
                "SEGMENTS": segments,
            },
            config,
            ("wgmma",) if config["block_m"] >= 64 else ("mma.sync",),
        )

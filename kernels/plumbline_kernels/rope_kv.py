"""Rotate queries and keys (RoPE), fused with writing keys and values into the paged cache.

The rotation is the one of GPT-NeoX and Hugging Face ("rotate half"): with a head cut in halves (a, b) and the row
(cos, sin) of the token's position, the result is (a·cos - b·sin, b·cos + a·sin). Qwen3 normalises each head first.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from plumbline_kernels._backend import CompileCase, cdiv, check, jit, next_power_of_2, tl, tuning, use_triton
from plumbline_kernels.norm import rms_norm_torch

__all__ = ["RopePlan", "merge_head_norms", "plan_rope", "rope_kv_write"]


class RopePlan(NamedTuple):
    """Tensors that the CPU path derives from positions and slots; the same for every layer of a step."""

    cos: Tensor  # fp32 [T, 1, hd]: cos in both halves
    sin: Tensor  # fp32 [T, 1, hd]: -sin in the first half, sin in the second
    slots: Tensor  # int64 [rows]: where in the cache the rows that are not padding go
    rows: Tensor | None  # int64 [rows]: which rows they are; None when all are


def plan_rope(cos_sin: Tensor, positions: Tensor, slot_mapping: Tensor) -> RopePlan:
    """Gather the rotations of a step and drop its padding rows, once for all layers (CPU only)."""
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, -1)
    rows = None
    if slot_mapping.numel() and int(slot_mapping.min()) < 0:
        rows = torch.nonzero(slot_mapping >= 0).squeeze(1)
        slot_mapping = slot_mapping.index_select(0, rows)
    return RopePlan(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1), slot_mapping, rows)


def rope_kv_write(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    num_kv_heads: int,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    plan: RopePlan | None = None,
) -> Tensor:
    """Rotate q and k of `qkv` [T, (H + 2 * KV) * hd], write k and v into the cache and return q [T, H, hd].

    Args:
        qkv: The merged projection: q heads, then k heads, then v heads.
        cos_sin: fp32 [max_positions, hd], cos in the first half of a row and sin in the second.
        positions: int64 [T], the row of `cos_sin` for each token.
        slot_mapping: int64 [T], block * block_size + offset for each token; -1 marks a padding row, never written.
        k_cache: [num_blocks, block_size, KV, hd]; v_cache has the same shape.
        num_heads: H, the number of query heads.
        num_kv_heads: KV, the number of key (and of value) heads.
        q_norm_weight: [hd]; with `k_norm_weight`, each head is RMS-normalised before the rotation.
        k_norm_weight: [hd], see `q_norm_weight`.
        eps: For these norms.
        plan: `plan_rope` of the same tensors, to share its work between layers; only the CPU path uses it.
    """
    head_dim = k_cache.shape[-1]
    check(qkv.dim() == 2, "rope_kv_write: qkv must be [T, (H + 2 * KV) * hd]")
    check(
        qkv.shape[1] == (num_heads + 2 * num_kv_heads) * head_dim,
        "rope_kv_write: the width of qkv does not match the heads and the cache",
    )
    check(k_cache.dtype == qkv.dtype == v_cache.dtype, "rope_kv_write: qkv and the caches must share a dtype")
    check((q_norm_weight is None) == (k_norm_weight is None), "rope_kv_write: give both norm weights or none")
    check(cos_sin.shape[1] == head_dim, "rope_kv_write: cos_sin must be as wide as a head")
    norms = None if q_norm_weight is None or k_norm_weight is None else (q_norm_weight, k_norm_weight)
    if use_triton(qkv):
        return _launch(qkv, cos_sin, positions, slot_mapping, k_cache, v_cache, num_heads, norms, eps)
    plan = plan or plan_rope(cos_sin, positions, slot_mapping)
    num_kv_heads = k_cache.shape[2]
    merged = None if norms is None else merge_head_norms(*norms, num_heads, num_kv_heads)
    return rope_kv_write_torch(qkv, plan, k_cache, v_cache, num_heads, merged, eps)


def merge_head_norms(q_norm: Tensor, k_norm: Tensor, num_heads: int, num_kv_heads: int) -> Tensor:
    """Return the weights of the head norms, [H + KV, hd], as the torch implementation takes them."""
    return torch.cat((q_norm.expand(num_heads, -1), k_norm.expand(num_kv_heads, -1)))


def rope_kv_write_torch(
    qkv: Tensor,
    plan: RopePlan,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    head_norms: Tensor | None,
    eps: float,
) -> Tensor:
    """Compute `rope_kv_write` in torch: normalise and rotate q and k together, then copy the new rows to their slots.

    The norm weights come from `merge_head_norms`.
    """
    num_kv_heads, head_dim = k_cache.shape[2:]
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    x = heads.narrow(1, 0, num_heads + num_kv_heads)
    if head_norms is not None:
        x = rms_norm_torch(x, None, eps) * head_norms
    # Rotating by half a head swaps its halves, so one fused multiply-add does both halves at once.
    rotated = torch.addcmul(x * plan.cos, x.roll(head_dim // 2, -1), plan.sin).to(qkv.dtype)
    k = rotated.narrow(1, num_heads, num_kv_heads)
    v = heads.narrow(1, num_heads + num_kv_heads, num_kv_heads)
    if plan.rows is not None:
        k, v = k.index_select(0, plan.rows), v.index_select(0, plan.rows)
    k_cache.view(-1, num_kv_heads, head_dim).index_copy_(0, plan.slots, k)
    v_cache.view(-1, num_kv_heads, head_dim).index_copy_(0, plan.slots, v)
    return rotated.narrow(1, 0, num_heads)


@jit
def _rope_kv_kernel(
    qkv_ptr,  # [T, (H + 2 * KV) * HD]
    cos_sin_ptr,  # fp32 [max_positions, HD], contiguous
    positions_ptr,  # int64 [T]
    slots_ptr,  # int64 [T]
    q_norm_ptr,  # [HD], read if NORM
    k_norm_ptr,
    q_ptr,  # [T, H, HD], contiguous
    k_cache_ptr,  # [num_blocks, block_size, KV, HD]
    v_cache_ptr,
    qkv_stride,
    cache_block_stride,
    cache_slot_stride,
    cache_head_stride,
    eps,
    H: tl.constexpr,
    KV: tl.constexpr,
    HD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,  # heads per program, counted over q, k and v together
    HALF: tl.constexpr,  # power of two >= HD / 2
):
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, HALF)[None, :]
    mask = (head < H + 2 * KV) & (pair < HD // 2)

    at = qkv_ptr + token * qkv_stride + head * HD + pair
    a_raw = tl.load(at, mask=mask, other=0.0)
    b_raw = tl.load(at + HD // 2, mask=mask, other=0.0)
    a = a_raw.to(tl.float32)
    b = b_raw.to(tl.float32)
    if NORM:
        scale = tl.rsqrt((tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / HD + eps)[:, None]
        is_q = head < H
        inside = pair < HD // 2
        qw_a = tl.load(q_norm_ptr + pair, mask=inside, other=0.0).to(tl.float32)
        kw_a = tl.load(k_norm_ptr + pair, mask=inside, other=0.0).to(tl.float32)
        qw_b = tl.load(q_norm_ptr + HD // 2 + pair, mask=inside, other=0.0).to(tl.float32)
        kw_b = tl.load(k_norm_ptr + HD // 2 + pair, mask=inside, other=0.0).to(tl.float32)
        a = a * scale * tl.where(is_q, qw_a, kw_a)
        b = b * scale * tl.where(is_q, qw_b, kw_b)

    position = tl.load(positions_ptr + token)
    row = cos_sin_ptr + position * HD + pair
    cos = tl.load(row, mask=pair < HD // 2, other=0.0)
    sin = tl.load(row + HD // 2, mask=pair < HD // 2, other=0.0)
    first = (a * cos - b * sin).to(q_ptr.dtype.element_ty)
    second = (b * cos + a * sin).to(q_ptr.dtype.element_ty)

    q_at = q_ptr + (token * H + head) * HD + pair
    q_mask = mask & (head < H)
    tl.store(q_at, first, mask=q_mask)
    tl.store(q_at + HD // 2, second, mask=q_mask)

    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        base = (slot // BLOCK_SIZE) * cache_block_stride + (slot % BLOCK_SIZE) * cache_slot_stride
        k_at = k_cache_ptr + base + (head - H) * cache_head_stride + pair
        k_mask = mask & (head >= H) & (head < H + KV)
        tl.store(k_at, first, mask=k_mask)
        tl.store(k_at + HD // 2, second, mask=k_mask)
        v_at = v_cache_ptr + base + (head - H - KV) * cache_head_stride + pair
        v_mask = mask & (head >= H + KV)
        tl.store(v_at, a_raw, mask=v_mask)
        tl.store(v_at + HD // 2, b_raw, mask=v_mask)


def _launch(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    check(qkv.stride(1) == 1, "rope_kv_write: rows of qkv must be contiguous")
    check(
        cos_sin.is_contiguous() and cos_sin.dtype == torch.float32,
        "rope_kv_write: cos_sin must be plain fp32",
    )
    check(k_cache.stride() == v_cache.stride(), "rope_kv_write: the caches must share their strides")
    check(k_cache.stride(3) == 1, "rope_kv_write: heads in the cache must be contiguous")
    check(
        positions.is_contiguous() and slot_mapping.is_contiguous(),
        "rope_kv_write: indices must be contiguous",
    )
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    num_tokens = qkv.shape[0]
    q = torch.empty((num_tokens, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if num_tokens == 0:
        return q
    config = tuning("rope_kv")
    q_norm, k_norm = norms or (qkv, qkv)
    _rope_kv_kernel[(num_tokens, cdiv(num_heads + 2 * num_kv_heads, config["heads"]))](
        qkv,
        cos_sin,
        positions,
        slot_mapping,
        q_norm,
        k_norm,
        q,
        k_cache,
        v_cache,
        qkv.stride(0),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        eps,
        H=num_heads,
        KV=num_kv_heads,
        HD=head_dim,
        BLOCK_SIZE=block_size,
        NORM=norms is not None,
        HEADS=config["heads"],
        HALF=next_power_of_2(head_dim // 2),
        num_warps=config["num_warps"],
    )
    return q


def compile_cases() -> Iterator[CompileCase]:
    """Yield the head sizes in use, with and without head norms."""
    pointers = ("qkv", "q_norm", "k_norm", "q", "k_cache", "v_cache")
    scalars = ("qkv_stride", "cache_block_stride", "cache_slot_stride", "cache_head_stride")
    for head_dim in (64, 80, 128):
        for norm in (False, True):
            yield CompileCase(
                f"rope_kv_write hd={head_dim} norm={norm}",
                _rope_kv_kernel,
                {f"{name}_ptr": "*bf16" for name in pointers}
                | {"cos_sin_ptr": "*fp32", "positions_ptr": "*i64", "slots_ptr": "*i64", "eps": "fp32"}
                | dict.fromkeys(scalars, "i32"),
                {
                    "H": 32,
                    "KV": 8,
                    "HD": head_dim,
                    "BLOCK_SIZE": 64,
                    "NORM": norm,
                    "HEADS": tuning("rope_kv")["heads"],
                    "HALF": next_power_of_2(head_dim // 2),
                },
                tuning("rope_kv"),
            )

"""Rotary embedding of the queries and keys, fused with writing the keys and values into the paged cache.

The rotation is the one of GPT-NeoX and Hugging Face ("rotate half"): with a head cut in halves (a, b) and the row
(cos, sin) of the token's position, the result is (a·cos - b·sin, b·cos + a·sin). Qwen3 normalises each head first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from plumbline_kernels._backend import check, use_triton
from plumbline_kernels.norm import rms_norm_torch

__all__ = ["RopePlan", "plan_rope", "rope_kv_write"]


class RopePlan(NamedTuple):
    """What the twin derives from positions and slots; the same for every layer of a step."""

    cos: Tensor  # fp32 [T, 1, hd]: cos in both halves
    sin: Tensor  # fp32 [T, 1, hd]: -sin in the first half, sin in the second
    slots: Tensor  # int64 [rows]: where in the cache the rows that are not padding go
    rows: Tensor | None  # int64 [rows]: which rows they are; None when all are


def plan_rope(cos_sin: Tensor, positions: Tensor, slot_mapping: Tensor) -> RopePlan:
    """Gather the rotations of a step and sort out its padding rows, once for all layers (CPU only)."""
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
        k_cache: [num_blocks, block_size, KV, hd]; v_cache is alike.
        num_heads: H, the number of query heads.
        num_kv_heads: KV, the number of key (and of value) heads.
        q_norm_weight: [hd]; with `k_norm_weight`, each head is RMS-normalised before the rotation.
        k_norm_weight: [hd], see `q_norm_weight`.
        eps: For these norms.
        plan: `plan_rope` of the same tensors, to share its work between layers; only the CPU path looks at it.
    """
    head_dim = k_cache.shape[-1]
    check(qkv.dim() == 2, "rope_kv_write: qkv must be [T, (H + 2 * KV) * hd]")
    check(
        qkv.shape[1] == (num_heads + 2 * num_kv_heads) * head_dim,
        "rope_kv_write: the width of qkv does not match the heads and the cache",
    )
    check(k_cache.dtype == qkv.dtype == v_cache.dtype, "rope_kv_write: qkv and the caches must share a dtype")
    check((q_norm_weight is None) == (k_norm_weight is None), "rope_kv_write: give both norm weights or none")
    if use_triton(qkv):
        raise NotImplementedError
    if plan is None:
        check(cos_sin.shape[1] == head_dim, "rope_kv_write: cos_sin must be as wide as a head")
        plan = plan_rope(cos_sin, positions, slot_mapping)
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    x = heads.narrow(1, 0, num_heads + num_kv_heads)
    if q_norm_weight is not None and k_norm_weight is not None:
        weight = torch.cat(
            (q_norm_weight.expand(num_heads, head_dim), k_norm_weight.expand(num_kv_heads, head_dim))
        )
        x = rms_norm_torch(x, weight, eps)
    # Rotating by half a head swaps its halves, so one fused multiply-add does both halves at once.
    rotated = torch.addcmul(x * plan.cos, x.roll(head_dim // 2, -1), plan.sin).to(qkv.dtype)
    k = rotated.narrow(1, num_heads, num_kv_heads)
    v = heads.narrow(1, num_heads + num_kv_heads, num_kv_heads)
    if plan.rows is not None:
        k, v = k.index_select(0, plan.rows), v.index_select(0, plan.rows)
    k_cache.flatten(0, 1).index_copy_(0, plan.slots, k)
    v_cache.flatten(0, 1).index_copy_(0, plan.slots, v)
    return rotated.narrow(1, 0, num_heads)

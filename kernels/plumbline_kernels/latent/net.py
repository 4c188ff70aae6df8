"""Compute latent attention (DeepSeek V2, arXiv 2405.04434) with one latent for the keys and values of all heads.

The cache has for each token a latent [rank] and a rotated key [rope], side by side. A query is multiplied with its
head's key projection once, so that its scores are products with the latents themselves; attention then has one key
head, whose values are its keys. The sums of latents are multiplied with the head's value projection at the end.
"""

import torch
from torch import Tensor

from plumbline_kernels._attention_batch import AttentionBatch
from plumbline_kernels._backend import check, use_triton
from plumbline_kernels.attention import paged_attention_torch
from plumbline_kernels.latent import _triton
from plumbline_kernels.norm import rms_norm_torch, twice
from plumbline_kernels.product import product
from plumbline_kernels.rope_kv import RopePlan, plan_rope

__all__ = [
    "latent_attention",
    "latent_queries_torch",
    "latent_values_torch",
    "latent_write",
    "latent_write_torch",
]


def latent_write(
    kv: Tensor, norm: Tensor, eps: float, cos_sin: Tensor, positions: Tensor, slots: Tensor, cache: Tensor
) -> None:
    """Normalise latents, rotate keys, and write both to their slots.

    Args:
        kv: [T, rank + rope].
        norm: the weight of the latents' norm, fp32 [rank].
        eps: of the norm.
        cos_sin: fp32 [positions, rope] from `rope_table`.
        positions: int64 [T].
        slots: int64 [T], -1 for padding.
        cache: [num_blocks, block_size, 1, rank + rope].
    """
    check(kv.shape[1] == cache.shape[3] == len(norm) + cos_sin.shape[1], "latent_write: widths differ")
    if use_triton(kv):
        _triton.launch_write(kv, norm, eps, cos_sin, positions, slots, cache)
    else:
        latent_write_torch(kv, plan_rope(cos_sin, positions, slots), cache, twice(norm), eps)


def latent_attention(q: Tensor, cache: Tensor, batch: AttentionBatch, rank: int, scale: float) -> Tensor:
    """Attend with queries [T, H, rank + rope] to the cached rows; returns sums of latents, [T, H, rank].

    A row of the cache [num_blocks, block_size, 1, rank + rope] is a key, and its latent is the value.
    """
    check(q.dim() == 3 and q.shape[2] == cache.shape[3], "latent_attention: q and the cache differ in width")
    if use_triton(q):
        return _triton.launch_attention(q, cache, batch, rank, scale)
    return paged_attention_torch(q, cache, cache, batch, scale)[..., :rank]


def latent_write_torch(kv: Tensor, plan: RopePlan, cache: Tensor, norm: Tensor, eps: float) -> None:
    """Compute `latent_write` in torch.

    Args:
        kv: [T, rank + rope].
        plan: the rotations and slots of the step.
        cache: [num_blocks, block_size, 1, rank + rope].
        norm: the weight of the latents' norm from `twice`, [2 * rank].
        eps: of the norm.
    """
    rank = norm.shape[0] // 2
    latent = rms_norm_torch(kv[:, :rank], norm, eps)
    rows = torch.cat((latent, _rotate(kv[:, rank:].unsqueeze(1), plan).squeeze(1)), 1).to(cache.dtype)
    if plan.rows is not None:
        rows = rows.index_select(0, plan.rows)
    cache.view(-1, cache.shape[-1]).index_copy_(0, plan.slots, rows)


def latent_queries_torch(q: Tensor, plan: RopePlan, keys: Tensor, exact: bool) -> Tensor:
    """Return queries for the latents and rotated keys, [T, H, rank + rope].

    Args:
        q: [T, H * (nope + rope)].
        plan: the rotations of the step.
        keys: the key projection of each head, [H, nope, rank].
        exact: whether a row must have the same bits in any batch.
    """
    heads, nope, _ = keys.shape
    rows = q.view(q.shape[0], heads, -1)
    return torch.cat((_by_head(rows[..., :nope], keys, exact), _rotate(rows[..., nope:], plan)), -1)


def latent_values_torch(attended: Tensor, values: Tensor, exact: bool) -> Tensor:
    """Map sums of latents and keys [T, H, rank + rope] to values [T, H * value] by projections [H, rank, value]."""
    return _by_head(attended[..., : values.shape[1]], values, exact).flatten(1)


def _rotate(x: Tensor, plan: RopePlan) -> Tensor:
    """Rotate x [T, heads, rope] in halves."""
    assert plan.cos is not None
    assert plan.sin is not None
    return torch.addcmul(x * plan.cos, x.roll(x.shape[-1] // 2, -1), plan.sin).to(x.dtype)


def _by_head(x: Tensor, weights: Tensor, exact: bool) -> Tensor:
    """Multiply each head of x [T, H, in] with its matrix [H, in, out]; a product of one row has one order of sums."""
    if exact and use_triton(x):
        return product(x.transpose(0, 1), weights.transpose(1, 2)).transpose(0, 1)
    if exact and len(x) > 1:
        return torch.cat([_by_head(row, weights, exact) for row in torch.split(x, 1)])
    return torch.bmm(x.transpose(0, 1), weights).transpose(0, 1)

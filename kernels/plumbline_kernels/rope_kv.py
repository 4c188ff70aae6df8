"""Rotate queries and keys (RoPE), fused with writing keys and values into the paged cache.

The rotation is the one of GPT-NeoX and Hugging Face ("rotate half"): with a head cut in halves (a, b) and the row
(cos, sin) of the token's position, the result is (a·cos - b·sin, b·cos + a·sin). Heads may be normalised before it or
after it. Rotations of neighbouring pairs and of parts of a head are the same with the rows of weights in another order.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from plumbline_kernels import norm
from plumbline_kernels._backend import CompileCase, cdiv, check, jit, next_power_of_2, tl, tuning, use_triton
from plumbline_kernels.norm import layer_norm_torch, rms_norm_torch

__all__ = ["HeadNorms", "RopePlan", "plan_rope", "rope_kv_write", "rotate_torch", "rotations"]


class HeadNorms(NamedTuple):
    """How query and key heads are normalised."""

    weights: Tensor  # [H + KV, hd]
    eps: float = 1e-6
    centred: bool = False  # a layer norm instead of an RMS norm
    whole: bool = False  # over all query heads together, and over all key heads
    after: bool = False  # the rotation instead of before it
    values: bool = False  # also of values, each head alone and without a weight


class RopePlan(NamedTuple):
    """Tensors that the CPU path derives from positions and slots; the same for every layer with one table."""

    cos: Tensor | None  # fp32 [T, 1, hd]: cos in both halves; None without a rotation
    sin: Tensor | None  # fp32 [T, 1, hd]: -sin in the first half, sin in the second
    slots: Tensor  # int64 [rows]: where in the cache the rows that are not padding go
    rows: Tensor | None  # int64 [rows]: which rows they are; None when all are
    temperature: Tensor | None = None  # fp32 [T, 1, 1]: a factor on queries


def plan_rope(
    cos_sin: Tensor | None, positions: Tensor, slot_mapping: Tensor, temperature: Tensor | None = None
) -> RopePlan:
    """Gather the rotations of a step and drop its padding rows, once for all layers (CPU only)."""
    rows = None
    if slot_mapping.numel() and int(slot_mapping.min()) < 0:
        rows = torch.nonzero(slot_mapping >= 0).squeeze(1)
        slot_mapping = slot_mapping.index_select(0, rows)
    if cos_sin is None:
        return RopePlan(None, None, slot_mapping, rows)
    if temperature is not None:
        temperature = temperature.index_select(0, positions)[:, None, None]
    return RopePlan(*rotations(cos_sin, positions), slot_mapping, rows, temperature)


def rotations(cos_sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines of tokens, each [T, 1, rotated]: x rotates to x * cos + halves swapped * sin."""
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, -1)
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rope_kv_write(
    qkv: Tensor,
    cos_sin: Tensor | None,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    num_kv_heads: int,
    norms: HeadNorms | None = None,
    *,
    temperature: Tensor | None = None,
    plan: RopePlan | None = None,
) -> Tensor:
    """Rotate q and k of `qkv` [T, (H + 2 * KV) * hd], write k and v into the cache and return q [T, H, hd].

    Args:
        qkv: The merged projection: q heads, then k heads, then v heads. It may be overwritten.
        cos_sin: fp32 [max_positions, hd], cos in the first half of a row and sin in the second; None for no rotation.
        positions: int64 [T], the row of `cos_sin` for each token.
        slot_mapping: int64 [T], block * block_size + offset for each token; -1 marks a padding row, never written.
        k_cache: [num_blocks, block_size, KV, hd]; v_cache has the same shape.
        num_heads: H, the number of query heads.
        num_kv_heads: KV, the number of key (and of value) heads.
        norms: The norms of query and key heads.
        temperature: fp32 [max_positions], a factor on the queries of each position.
        plan: `plan_rope` of the same tensors, to share its work between layers; only the CPU path uses it.
    """
    head_dim = k_cache.shape[-1]
    check(qkv.dim() == 2, "rope_kv_write: qkv must be [T, (H + 2 * KV) * hd]")
    check(
        qkv.shape[1] == (num_heads + 2 * num_kv_heads) * head_dim,
        "rope_kv_write: the width of qkv does not match the heads and the cache",
    )
    check(k_cache.dtype == qkv.dtype == v_cache.dtype, "rope_kv_write: qkv and the caches must share a dtype")
    check(
        norms is None or norms.weights.shape == (num_heads + num_kv_heads, head_dim),
        "rope_kv_write: norms must have a weight for every query and key head",
    )
    check(cos_sin is None or cos_sin.shape[1] == head_dim, "rope_kv_write: cos_sin must be as wide as a head")
    if use_triton(qkv):
        return _launch(qkv, cos_sin, positions, slot_mapping, k_cache, v_cache, num_heads, norms, temperature)
    plan = plan or plan_rope(cos_sin, positions, slot_mapping, temperature)
    return rope_kv_write_torch(qkv, plan, k_cache, v_cache, num_heads, norms)


def rope_kv_write_torch(
    qkv: Tensor,
    plan: RopePlan,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    norms: HeadNorms | None = None,
) -> Tensor:
    """Compute `rope_kv_write` in torch: normalise and rotate q and k together, then copy new rows to their slots."""
    num_kv_heads, head_dim = k_cache.shape[2:]
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    rotated = rotate_torch(heads.narrow(1, 0, num_heads + num_kv_heads), plan, num_heads, norms)
    k = rotated.narrow(1, num_heads, num_kv_heads)
    v = heads.narrow(1, num_heads + num_kv_heads, num_kv_heads)
    if norms is not None and norms.values:
        v = rms_norm_torch(v, None, norms.eps)
    if plan.rows is not None:
        k, v = k.index_select(0, plan.rows), v.index_select(0, plan.rows)
    k_cache.view(-1, num_kv_heads, head_dim).index_copy_(0, plan.slots, k)
    v_cache.view(-1, num_kv_heads, head_dim).index_copy_(0, plan.slots, v)
    q = rotated.narrow(1, 0, num_heads)
    return q if plan.temperature is None else (q * plan.temperature).to(q.dtype)


def rotate_torch(x: Tensor, plan: RopePlan, num_heads: int, norms: HeadNorms | None) -> Tensor:
    """Normalise and rotate heads x [T, heads, hd], of which the first `num_heads` are those of queries."""
    dtype = x.dtype
    if norms is not None and not norms.after:
        x = _normalise(x, norms, num_heads)
    if plan.cos is not None and plan.sin is not None:
        # Rotating by half a head swaps its halves, so one fused multiply-add does both halves at once.
        x = torch.addcmul(x * plan.cos, x.roll(x.shape[-1] // 2, -1), plan.sin)
    if norms is not None and norms.after:
        x = _normalise(x, norms, num_heads)
    return x.to(dtype)


def _normalise(x: Tensor, norms: HeadNorms, num_heads: int) -> Tensor:
    """Normalise the query and key heads of x [T, H + KV, hd]."""
    if norms.whole:
        num_kv_heads = x.shape[1] - num_heads
        parts = [
            rms_norm_torch(part.flatten(1), None, norms.eps)
            for part in torch.split(x, [num_heads, num_kv_heads], 1)
        ]
        return torch.cat(parts, 1).view(x.shape) * norms.weights
    if norms.centred:
        return layer_norm_torch(x, None, None, norms.eps) * norms.weights
    return rms_norm_torch(x, None, norms.eps) * norms.weights


@jit
def _rope_kv_kernel(
    qkv_ptr,  # [T, (H + 2 * KV) * HD]
    cos_sin_ptr,  # fp32 [max_positions, HD], contiguous, read if ROTATE
    positions_ptr,  # int64 [T]
    slots_ptr,  # int64 [T]
    norm_ptr,  # [H + KV, HD], read if NORM
    temperature_ptr,  # fp32 [max_positions], read if TEMPERATURE
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
    ROTATE: tl.constexpr,
    TEMPERATURE: tl.constexpr,
    NORM: tl.constexpr,  # 0 for none, 1 before the rotation, 2 after it
    CENTRED: tl.constexpr,
    VALUES: tl.constexpr,  # whether values are normalised
    HEADS: tl.constexpr,  # heads per program, counted over q, k and v together
    HALF: tl.constexpr,  # power of two >= HD / 2
):
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, HALF)[None, :]
    inside = pair < HD // 2
    mask = (head < H + 2 * KV) & inside

    at = qkv_ptr + token * qkv_stride + head * HD + pair
    a_raw = tl.load(at, mask=mask, other=0.0)
    b_raw = tl.load(at + HD // 2, mask=mask, other=0.0)
    a = a_raw.to(tl.float32)
    b = b_raw.to(tl.float32)
    weight = norm_ptr + head * HD + pair
    weighted = (head < H + KV) & inside
    if NORM == 1:
        if CENTRED:
            mean = ((tl.sum(a, axis=1) + tl.sum(b, axis=1)) / HD)[:, None]
            a = tl.where(inside, a - mean, 0.0)
            b = tl.where(inside, b - mean, 0.0)
        scale = tl.rsqrt((tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / HD + eps)[:, None]
        a = a * scale * tl.load(weight, mask=weighted, other=0.0).to(tl.float32)
        b = b * scale * tl.load(weight + HD // 2, mask=weighted, other=0.0).to(tl.float32)

    v_a = a_raw
    v_b = b_raw
    if VALUES:
        v_a = a_raw.to(tl.float32)
        v_b = b_raw.to(tl.float32)
        v_scale = tl.rsqrt((tl.sum(v_a * v_a, axis=1) + tl.sum(v_b * v_b, axis=1)) / HD + eps)[:, None]
        v_a = (v_a * v_scale).to(a_raw.dtype)
        v_b = (v_b * v_scale).to(a_raw.dtype)

    position = tl.load(positions_ptr + token)
    if ROTATE:
        row = cos_sin_ptr + position * HD + pair
        cos = tl.load(row, mask=inside, other=0.0)
        sin = tl.load(row + HD // 2, mask=inside, other=0.0)
        turned = a * cos - b * sin
        b = b * cos + a * sin
        a = turned
    if NORM == 2:
        scale = tl.rsqrt((tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / HD + eps)[:, None]
        a = a * scale * tl.load(weight, mask=weighted, other=0.0).to(tl.float32)
        b = b * scale * tl.load(weight + HD // 2, mask=weighted, other=0.0).to(tl.float32)
    if TEMPERATURE:
        factor = tl.where(head < H, tl.load(temperature_ptr + position), 1.0)
        a = a * factor
        b = b * factor
    first = a.to(q_ptr.dtype.element_ty)
    second = b.to(q_ptr.dtype.element_ty)

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
        tl.store(v_at, v_a, mask=v_mask)
        tl.store(v_at + HD // 2, v_b, mask=v_mask)


def _launch(
    qkv: Tensor,
    cos_sin: Tensor | None,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    norms: HeadNorms | None,
    temperature: Tensor | None,
) -> Tensor:
    check(qkv.stride(1) == 1, "rope_kv_write: rows of qkv must be contiguous")
    check(
        cos_sin is None or (cos_sin.is_contiguous() and cos_sin.dtype == torch.float32),
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
    values = norms is not None and norms.values
    eps = 0.0 if norms is None else norms.eps
    if norms is not None and norms.whole:
        norm.normalise_parts(qkv, norms.weights, (num_heads, num_kv_heads), norms.eps)
        norms = None
    config = tuning("rope_kv")
    _rope_kv_kernel[(num_tokens, cdiv(num_heads + 2 * num_kv_heads, config["heads"]))](
        qkv,
        qkv if cos_sin is None else cos_sin,
        positions,
        slot_mapping,
        qkv if norms is None else norms.weights,
        qkv if temperature is None else temperature,
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
        ROTATE=cos_sin is not None,
        TEMPERATURE=temperature is not None,
        NORM=0 if norms is None else 2 if norms.after else 1,
        CENTRED=norms is not None and norms.centred,
        VALUES=values,
        HEADS=config["heads"],
        HALF=next_power_of_2(head_dim // 2),
        num_warps=config["num_warps"],
    )
    return q


def compile_cases() -> Iterator[CompileCase]:
    """Yield the head sizes in use, with and without head norms."""
    pointers = ("qkv", "q", "k_cache", "v_cache")
    scalars = ("qkv_stride", "cache_block_stride", "cache_slot_stride", "cache_head_stride")
    for head_dim in (64, 80, 96, 128, 192, 256):
        for norm_place in (0, 1, 2):
            yield CompileCase(
                f"rope_kv_write hd={head_dim} norm={norm_place}",
                _rope_kv_kernel,
                {f"{name}_ptr": "*bf16" for name in pointers}
                | {f"{name}_ptr": "*fp32" for name in ("cos_sin", "norm", "temperature")}
                | {"positions_ptr": "*i64", "slots_ptr": "*i64", "eps": "fp32"}
                | dict.fromkeys(scalars, "i32"),
                {
                    "H": 32,
                    "KV": 8,
                    "HD": head_dim,
                    "BLOCK_SIZE": 16,
                    "ROTATE": True,
                    "TEMPERATURE": norm_place == 0,
                    "NORM": norm_place,
                    "CENTRED": norm_place == 1,
                    "VALUES": norm_place == 1,
                    "HEADS": tuning("rope_kv")["heads"],
                    "HALF": next_power_of_2(head_dim // 2),
                },
                tuning("rope_kv"),
            )

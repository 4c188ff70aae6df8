"""Launch the Triton kernels of `sample`: one for the thresholds of rows, one for the draw, and one for the winner."""

from collections.abc import Iterator

import torch
from torch import Tensor

from plumbline_kernels._backend import CompileCase, cdiv, jit, next_power_of_2, tl, tuning

__all__ = ["GOLDEN", "MIX_1", "MIX_2", "SECOND", "compile_cases", "launch"]

_NEAR = 16384
"""Tokens that the search for a nucleus has room for without reading the whole row again."""

GOLDEN = 0x9E3779B1  # 2**32 over the golden ratio: its multiples are spread evenly
SECOND = 0x7F4A7C15  # makes the second key differ from the first
MIX_1 = 0x7FEB352D  # with the shifts 16, 15, 16, a bijection of 32 bits with hardly any bias ("lowbias32")
MIX_2 = 0x846CA68B
# A kernel may read a global only if it is a constexpr.
_GOLDEN_TL = tl.constexpr(GOLDEN)
_SECOND_TL = tl.constexpr(SECOND)
_MIX_1_TL = tl.constexpr(MIX_1)
_MIX_2_TL = tl.constexpr(MIX_2)


@jit
def _mix_u32(x):
    x = (x ^ (x >> 16)) * _MIX_1_TL
    x = (x ^ (x >> 15)) * _MIX_2_TL
    return x ^ (x >> 16)


@jit
def _logit_of(key):
    """Return the fp32 with an ordered key; the keys beyond the infinities are NaN, and no logit is as large."""
    bits = tl.where((key >> 31) != 0, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@jit
def _find_key(logits_ptr, vocab, wanted, largest, divisor, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Return the largest key that still keeps as many tokens or as much mass as wanted, 0 if only -inf does.

    Each pass over the row finds two bits, from the highest on: it sums for the three keys that have them.
    """
    key = tl.full([], 0, dtype=tl.uint32)
    step = tl.full([], 1 << 30, dtype=tl.uint32)
    for _ in range(16):
        low = tl.zeros([BLOCK], dtype=tl.float32)
        middle = tl.zeros([BLOCK], dtype=tl.float32)
        high = tl.zeros([BLOCK], dtype=tl.float32)
        least = _logit_of(key + step)
        second = _logit_of(key + 2 * step)
        third = _logit_of(key + 3 * step)
        for start in range(0, vocab, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = tl.load(logits_ptr + token, mask=token < vocab, other=float("-inf"))
            if COUNT:
                value = tl.full([BLOCK], 1.0, dtype=tl.float32)
            else:
                value = tl.exp((x - largest) / divisor)
            low += tl.where(x >= least, value, 0.0)
            middle += tl.where(x >= second, value, 0.0)
            high += tl.where(x >= third, value, 0.0)
        if tl.sum(high, axis=0) >= wanted:
            key += 3 * step
        elif tl.sum(middle, axis=0) >= wanted:
            key += 2 * step
        elif tl.sum(low, axis=0) >= wanted:
            key += step
        step = step >> 2
    return key


@jit
def _threshold_kernel(
    logits_ptr,  # fp32 [B, V]
    temperature_ptr,  # fp32 [B]
    top_k_ptr,  # int32 [B]
    top_p_ptr,  # fp32 [B]
    min_p_ptr,  # fp32 [B]
    threshold_ptr,  # fp32 [B]: the least logit that is kept
    near_ptr,  # fp32 [B, NEAR], scratch
    stride,
    vocab,
    BLOCK: tl.constexpr,
    NEAR: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    limited = (top_k > 0) & (top_k < vocab)
    tl.store(threshold_ptr + row, float("-inf"))
    if (temperature <= 0.0) | ((not limited) & (top_p >= 1.0) & (min_p <= 0.0)):
        return
    logits_ptr += row * stride
    maxima = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        maxima = tl.maximum(maxima, tl.load(logits_ptr + token, mask=token < vocab, other=float("-inf")))
    largest = tl.max(maxima, axis=0)

    key = tl.full([], 0, dtype=tl.uint32)
    if limited:
        key = _find_key(logits_ptr, vocab, top_k, largest, temperature, True, BLOCK)
    if top_p < 1.0:
        least = tl.where(key == 0, float("-inf"), _logit_of(key))
        # All tokens below `reach` together have less mass than top_p leaves out, twice over for rounding. The search
        # takes the few others, which are copied while their mass is summed, and the whole row only if they are many.
        reach = tl.maximum(least, largest - temperature * tl.log(2.0 * vocab / (1.0 - top_p)))
        near_ptr += row * NEAR
        total = tl.zeros([BLOCK], dtype=tl.float32)
        count = tl.full([], 0, dtype=tl.int32)
        for start in range(0, vocab, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = tl.load(logits_ptr + token, mask=token < vocab, other=float("-inf"))
            total += tl.where(x >= least, tl.exp((x - largest) / temperature), 0.0)
            near = ((x >= reach) & (token < vocab)).to(tl.int32)
            place = count + tl.cumsum(near, axis=0) - 1
            tl.store(near_ptr + place, x, mask=(near > 0) & (place < NEAR))
            count += tl.sum(near, axis=0)
        wanted = top_p * tl.sum(total, axis=0)
        tl.debug_barrier()
        source = logits_ptr
        length = vocab
        if count <= NEAR:
            source = near_ptr
            length = count
        nucleus = _find_key(source, length, wanted, largest, temperature, False, BLOCK)
        key = tl.where(nucleus > key, nucleus, key)
    threshold = tl.where(key == 0, float("-inf"), _logit_of(key))
    if min_p > 0.0:
        threshold = tl.maximum(threshold, largest + temperature * tl.log(min_p))
    tl.store(threshold_ptr + row, threshold)


@jit
def _draw_kernel(
    logits_ptr,  # fp32 [B, V]
    temperature_ptr,  # fp32 [B]
    threshold_ptr,  # fp32 [B]
    seeds_ptr,  # int64 [B]
    positions_ptr,  # int64 [B]
    best_ptr,  # fp32 [B, blocks]
    token_ptr,  # int32 [B, blocks]
    stride,
    vocab,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = row * tl.num_programs(1) + tl.program_id(1)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row * stride + token, mask=token < vocab, other=float("-inf"))
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0.0:
        seed = tl.load(seeds_ptr + row)
        seed_low = (seed & 0xFFFFFFFF).to(tl.uint32)
        seed_high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
        position = (tl.load(positions_ptr + row) & 0xFFFFFFFF).to(tl.uint32)
        first = _mix_u32(_mix_u32(_mix_u32(seed_low) ^ seed_high) ^ position)
        second = _mix_u32(_mix_u32(first ^ _SECOND_TL) ^ seed_low)
        bits = (token.to(tl.uint32) * _GOLDEN_TL) ^ first
        bits = ((bits ^ (bits >> 16)) * _MIX_1_TL) ^ second
        bits = (bits ^ (bits >> 15)) * _MIX_2_TL
        bits = (bits ^ (bits >> 16)) & 0x7FFFFFFF
        u = (bits.to(tl.float32) + 0.5) * (1.0 / 2147483648.0)
        u = tl.minimum(u, 1.0 - 1.0 / 16777216.0)
        # Compute -log(1 - u) by its series if u is small, because 1 - u rounds most of its bits away.
        series = u * (1.0 + u * (0.5 + u * (1.0 / 3.0 + u * 0.25)))
        noise = -tl.log(tl.where(u < 0.004, series, -tl.log(1.0 - u)))
        kept = logits >= tl.load(threshold_ptr + row)
        logits = tl.where(kept, logits / temperature + noise, float("-inf"))
    best = tl.max(logits, axis=0)
    tl.store(best_ptr + part, best)
    tl.store(token_ptr + part, tl.min(tl.where(logits == best, token, 2147483647), axis=0))


@jit
def _winner_kernel(best_ptr, token_ptr, out_ptr, blocks, BLOCKS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCKS)
    best = tl.load(best_ptr + row * blocks + part, mask=part < blocks, other=float("-inf"))
    token = tl.load(token_ptr + row * blocks + part, mask=part < blocks, other=2147483647)
    largest = tl.max(best, axis=0)
    winner = tl.min(tl.where(best == largest, token, 2147483647), axis=0)
    # A row of NaN, or one that allows no token, has none.
    tl.store(out_ptr + row, tl.where(largest > float("-inf"), winner, -1).to(tl.int64))


def launch(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Draw one token per row, -1 where none can be drawn; see `sample`."""
    batch, vocab = logits.shape
    device = logits.device
    out = torch.empty(batch, dtype=torch.int64, device=device)
    if batch == 0:
        return out
    find, draw = tuning("sample_threshold"), tuning("sample_draw")
    threshold = torch.empty(batch, dtype=torch.float32, device=device)
    near = torch.empty((batch, _NEAR), dtype=torch.float32, device=device)
    _threshold_kernel[(batch,)](
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        threshold,
        near,
        logits.stride(0),
        vocab,
        BLOCK=min(find["block"], next_power_of_2(vocab)),
        NEAR=_NEAR,
        num_warps=find["num_warps"],
    )
    blocks = cdiv(vocab, draw["block"])
    best = torch.empty((batch, blocks), dtype=torch.float32, device=device)
    token = torch.empty((batch, blocks), dtype=torch.int32, device=device)
    _draw_kernel[(batch, blocks)](
        logits,
        temperature,
        threshold,
        seeds,
        positions,
        best,
        token,
        logits.stride(0),
        vocab,
        BLOCK=draw["block"],
        num_warps=draw["num_warps"],
    )
    _winner_kernel[(batch,)](best, token, out, blocks, BLOCKS=next_power_of_2(blocks), num_warps=1)
    return out


def compile_cases() -> Iterator[CompileCase]:
    """Yield the compile cases of the three kernels."""
    rows = {f"{name}_ptr": "*fp32" for name in ("temperature", "threshold")}
    sizes = {"stride": "i32", "vocab": "i32"}
    yield CompileCase(
        "sample threshold",
        _threshold_kernel,
        {"logits_ptr": "*fp32", "top_k_ptr": "*i32", "near_ptr": "*fp32"}
        | {"top_p_ptr": "*fp32", "min_p_ptr": "*fp32"}
        | rows
        | sizes,
        {"BLOCK": tuning("sample_threshold")["block"], "NEAR": _NEAR},
        tuning("sample_threshold"),
    )
    yield CompileCase(
        "sample draw",
        _draw_kernel,
        {"logits_ptr": "*fp32", "seeds_ptr": "*i64", "positions_ptr": "*i64"}
        | {"best_ptr": "*fp32", "token_ptr": "*i32"}
        | rows
        | sizes,
        {"BLOCK": tuning("sample_draw")["block"]},
        tuning("sample_draw"),
    )
    yield CompileCase(
        "sample winner",
        _winner_kernel,
        {"best_ptr": "*fp32", "token_ptr": "*i32", "out_ptr": "*i64", "blocks": "i32"},
        {"BLOCKS": 128},
        {"num_warps": 1},
    )

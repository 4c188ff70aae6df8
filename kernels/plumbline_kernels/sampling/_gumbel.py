"""Launch the Triton kernels of `sample`: those of the limits, one for the draw, and one for the winner."""

from collections.abc import Iterator

import torch
from torch import Tensor

from plumbline_kernels._backend import CompileCase, cdiv, jit, next_power_of_2, tl, tuning
from plumbline_kernels.sampling import _limits

__all__ = ["GOLDEN", "MIX_1", "MIX_2", "SECOND", "compile_cases", "launch"]

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
    draw = tuning("sample_draw")
    threshold = _limits.launch(logits, temperature, top_k, top_p, min_p)
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
    """Yield the compile cases of the limits and of the draw."""
    yield from _limits.compile_cases()
    yield CompileCase(
        "sample draw",
        _draw_kernel,
        {"logits_ptr": "*fp32", "seeds_ptr": "*i64", "positions_ptr": "*i64"}
        | {"best_ptr": "*fp32", "token_ptr": "*i32"}
        | {f"{name}_ptr": "*fp32" for name in ("temperature", "threshold")}
        | {"stride": "i32", "vocab": "i32"},
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

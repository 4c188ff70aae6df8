"""The Triton kernels of a delta net.

A program takes a block of channels of one sequence and walks over its new tokens, with its part of the state in
registers. A decode reads and writes each state once, which is its limit. A long chunk is a long walk: the programs of
its heads are all the parallelism there is.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from plumbline_kernels._attention_batch import AttentionBatch
from plumbline_kernels._backend import CompileCase, cdiv, check, jit, next_power_of_2, tl, tuning

__all__ = ["compile_cases", "launch_conv", "launch_rule"]


@jit
def _conv_kernel(
    x_ptr,  # [T, C]
    weight_ptr,  # fp32 [C, TAPS]
    bias_ptr,  # fp32 [C], read if BIAS
    states_ptr,  # [rows, C, TAPS - 1]
    out_ptr,  # [T, C], contiguous
    starts_ptr,  # int32 [S + 1]
    lens_ptr,  # int32 [S]
    rows_ptr,  # int64 [S]
    x_stride,
    channels,
    TAPS: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    sequence = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = channel < channels
    start = tl.load(starts_ptr + sequence)
    count = tl.load(starts_ptr + sequence + 1) - start
    # The interpreter takes no scalar in a mask.
    zeros = tl.zeros([BLOCK_C], dtype=tl.int32)
    known = tl.load(lens_ptr + sequence + zeros) > count
    state = states_ptr + (tl.load(rows_ptr + sequence) * channels + channel) * (TAPS - 1)
    x = x_ptr + start.to(tl.int64) * x_stride + channel
    out = out_ptr + start.to(tl.int64) * channels + channel
    for token in range(count):
        total = tl.zeros([BLOCK_C], dtype=tl.float32)
        for tap in tl.static_range(TAPS):
            place = zeros + token - (TAPS - 1) + tap
            new = tl.load(x + place * x_stride, mask=mask & (place >= 0), other=0.0).to(tl.float32)
            old = tl.load(state + place + TAPS - 1, mask=mask & (place < 0) & known, other=0.0).to(tl.float32)
            total += (new + old) * tl.load(weight_ptr + channel * TAPS + tap, mask=mask, other=0.0)
        if BIAS:
            total += tl.load(bias_ptr + channel, mask=mask, other=0.0)
        total = total * tl.sigmoid(total)
        tl.store(out + token * channels, total.to(out_ptr.dtype.element_ty), mask=mask)
    # What a place takes comes from a later one, so none is overwritten before it is read.
    for tap in tl.static_range(TAPS - 1):
        place = zeros + count - (TAPS - 1) + tap
        new = tl.load(x + place * x_stride, mask=mask & (place >= 0), other=0.0)
        old = tl.load(state + place + TAPS - 1, mask=mask & (place < 0) & known, other=0.0)
        kept = new.to(tl.float32) + old.to(tl.float32)
        tl.store(state + tap, kept.to(states_ptr.dtype.element_ty), mask=mask)


@jit
def _rule_kernel(
    qkv_ptr,  # [T, C]
    decay_ptr,  # fp32 [T, HV], contiguous
    strength_ptr,  # fp32 [T, HV], contiguous
    states_ptr,  # fp32 [rows, HV, K, V], contiguous
    out_ptr,  # [T, HV, V], contiguous
    starts_ptr,  # int32 [S + 1]
    lens_ptr,  # int32 [S]
    rows_ptr,  # int64 [S]
    qkv_stride,
    key_heads,
    value_heads,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    SCALE: tl.constexpr,
    CORRECTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    key_head = head // (value_heads // key_heads)
    i = tl.arange(0, BLOCK_K)
    j = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    i_mask = i < KEY_DIM
    j_mask = j < VALUE_DIM
    both = i_mask[:, None] & j_mask[None, :]
    start = tl.load(starts_ptr + sequence)
    count = tl.load(starts_ptr + sequence + 1) - start
    known = tl.load(lens_ptr + sequence + tl.zeros([BLOCK_K], dtype=tl.int32)) > count
    place = (tl.load(rows_ptr + sequence) * value_heads + head) * KEY_DIM * VALUE_DIM
    at = states_ptr + place + i[:, None] * VALUE_DIM + j[None, :]
    state = tl.load(at, mask=both & known[:, None], other=0.0)
    for token in range(count):
        row = (start + token).to(tl.int64)
        qkv = qkv_ptr + row * qkv_stride
        q = tl.load(qkv + key_head * KEY_DIM + i, mask=i_mask, other=0.0).to(tl.float32)
        k = tl.load(qkv + (key_heads + key_head) * KEY_DIM + i, mask=i_mask, other=0.0).to(tl.float32)
        v = tl.load(qkv + 2 * key_heads * KEY_DIM + head * VALUE_DIM + j, mask=j_mask, other=0.0).to(
            tl.float32
        )
        if CORRECTS:
            q = q * tl.rsqrt(tl.sum(q * q, axis=0) + 1e-6) * SCALE
            k = k * tl.rsqrt(tl.sum(k * k, axis=0) + 1e-6)
        state = state * tl.exp(tl.load(decay_ptr + row * value_heads + head))
        error = v
        if CORRECTS:
            error = v - tl.sum(k[:, None] * state, axis=0)
        strength = tl.load(strength_ptr + row * value_heads + head)
        state += k[:, None] * (strength * error)[None, :]
        read = tl.sum(q[:, None] * state, axis=0)
        out = out_ptr + (row * value_heads + head) * VALUE_DIM + j
        tl.store(out, read.to(out_ptr.dtype.element_ty), mask=j_mask)
    tl.store(at, state, mask=both)


def launch_conv(
    x: Tensor, weight: Tensor, states: Tensor, batch: AttentionBatch, bias: Tensor | None = None
) -> Tensor:
    """Compute `causal_conv`."""
    check(
        weight.is_contiguous() and states.is_contiguous(), "causal_conv: weight and states must be contiguous"
    )
    channels, taps = weight.shape
    config = tuning("delta_conv")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grid = (len(batch.seq_lens), cdiv(channels, config["block_c"]))
    _conv_kernel[grid](
        x,
        weight,
        weight if bias is None else bias,
        states,
        out,
        batch.query_start_loc,
        batch.seq_lens,
        batch.state_rows,
        x.stride(0),
        channels,
        TAPS=taps,
        BIAS=bias is not None,
        BLOCK_C=config["block_c"],
        num_warps=config["num_warps"],
    )
    return out


def launch_rule(
    qkv: Tensor,
    decay: Tensor,
    strength: Tensor,
    states: Tensor,
    batch: AttentionBatch,
    key_heads: int,
    corrects: bool = True,
) -> Tensor:
    """Compute `delta_rule`."""
    check(
        states.is_contiguous() and qkv.stride(1) == 1, "delta_rule: states and rows of qkv must be contiguous"
    )
    check(decay.is_contiguous() and strength.is_contiguous(), "delta_rule: gates must be contiguous")
    _, value_heads, key_dim, value_dim = states.shape
    config = tuning("delta_rule")
    block = min(config["block_v"], next_power_of_2(value_dim))
    out = torch.zeros(len(qkv), value_heads, value_dim, dtype=qkv.dtype, device=qkv.device)
    _rule_kernel[(len(batch.seq_lens), value_heads, cdiv(value_dim, block))](
        qkv,
        decay,
        strength,
        states,
        out,
        batch.query_start_loc,
        batch.seq_lens,
        batch.state_rows,
        qkv.stride(0),
        key_heads,
        value_heads,
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        SCALE=key_dim**-0.5,
        CORRECTS=corrects,
        BLOCK_K=next_power_of_2(key_dim),
        BLOCK_V=block,
        num_warps=config["num_warps"],
    )
    return out


def compile_cases() -> Iterator[CompileCase]:
    """Yield both kernels with the shapes of Qwen3-Next and Qwen 3.5, and of Granite 4."""
    batch = {"starts_ptr": "*i32", "lens_ptr": "*i32", "rows_ptr": "*i64"}
    config = tuning("delta_conv")
    for bias in (False, True):
        yield CompileCase(
            f"delta conv{', with bias' if bias else ''}",
            _conv_kernel,
            {"x_ptr": "*bf16", "weight_ptr": "*fp32", "bias_ptr": "*fp32", "states_ptr": "*bf16"}
            | {"out_ptr": "*bf16"}
            | batch
            | {"x_stride": "i32", "channels": "i32"},
            {"TAPS": 4, "BIAS": bias, "BLOCK_C": config["block_c"]},
            {"num_warps": config["num_warps"]},
        )
    config = tuning("delta_rule")
    for corrects, value_dim in ((True, 128), (False, 64)):
        yield CompileCase(
            "delta rule" if corrects else "state space",
            _rule_kernel,
            {"qkv_ptr": "*bf16", "decay_ptr": "*fp32", "strength_ptr": "*fp32", "states_ptr": "*fp32"}
            | {"out_ptr": "*bf16"}
            | batch
            | {"qkv_stride": "i32", "key_heads": "i32", "value_heads": "i32"},
            {
                "KEY_DIM": 128,
                "VALUE_DIM": value_dim,
                "SCALE": 128**-0.5,
                "CORRECTS": corrects,
                "BLOCK_K": 128,
                "BLOCK_V": config["block_v"],
            },
            {"num_warps": config["num_warps"]},
        )

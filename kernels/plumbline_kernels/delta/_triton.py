"""The Triton kernels of a delta net: the convolution, and the decodes of the rule.

A decode reads and writes each state once, which is its limit: a program takes a block of channels, or a block of the
state of a head, of one sequence. Chunks of prompts have more to do: their convolution has programs for blocks of
tokens, too, and their rule is computed in `_chunks.py`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from plumbline_kernels._attention_batch import AttentionBatch
from plumbline_kernels._backend import CompileCase, cdiv, check, jit, next_power_of_2, tl, tuning
from plumbline_kernels.delta import _chunks
from plumbline_kernels.delta._chunks import block_of, launch_chunks
from plumbline_kernels.delta.shape import DeltaShape

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
    num_seqs,
    x_stride,
    channels,
    TAPS: tl.constexpr,
    BIAS: tl.constexpr,
    ACTIVATED: tl.constexpr,
    DECODE: tl.constexpr,  # one token per sequence, so the program id is the sequence
    BLOCK_T: tl.constexpr,  # at least TAPS - 1, unless DECODE
    BLOCK_C: tl.constexpr,
):
    sequence = tl.program_id(0)
    first = 0
    if not DECODE:
        sequence, first = block_of(starts_ptr, num_seqs, sequence, BLOCK_T)
    start = tl.load(starts_ptr + sequence)
    count = tl.load(starts_ptr + sequence + 1) - start
    if first >= count:
        return
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    channel_mask = channel < channels
    # The interpreter takes no scalar in a mask.
    zeros = tl.zeros([BLOCK_C], dtype=tl.int32)
    known = channel_mask & (tl.load(lens_ptr + sequence + zeros) > count)
    state = states_ptr + (tl.load(rows_ptr + sequence) * channels + channel) * (TAPS - 1)
    x = x_ptr + (start + first).to(tl.int64) * x_stride + channel
    token = tl.arange(0, BLOCK_T)
    mask = (first + token < count)[:, None] & channel_mask[None, :]
    total = tl.zeros([BLOCK_T, BLOCK_C], dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        place = token - (TAPS - 1) + tap
        new = mask & (first + place >= 0)[:, None]
        value = tl.load(x[None, :] + place[:, None] * x_stride, mask=new, other=0.0).to(tl.float32)
        if first == 0:
            old = mask & known[None, :] & (place < 0)[:, None]
            value += tl.load(state[None, :] + (place + TAPS - 1)[:, None], mask=old, other=0.0).to(tl.float32)
        total += value * tl.load(weight_ptr + channel * TAPS + tap, mask=channel_mask, other=0.0)[None, :]
    if BIAS:
        total += tl.load(bias_ptr + channel, mask=channel_mask, other=0.0)[None, :]
    if ACTIVATED:
        total = total * tl.sigmoid(total)
    out = out_ptr + (start + first + token).to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(out, total.to(out_ptr.dtype.element_ty), mask=mask)
    # Only the first tokens read the old state, so their program replaces it: no other one can read it too late.
    if first == 0:
        tl.debug_barrier()
        x += (count - (TAPS - 1)).to(tl.int64) * x_stride
        # What an entry takes comes from a later one, so none is overwritten before it is read.
        for tap in tl.static_range(TAPS - 1):
            source = zeros + count - (TAPS - 1) + tap
            added = tl.load(x + tap * x_stride, mask=channel_mask & (source >= 0), other=0.0)
            before = tl.load(state + source + TAPS - 1, mask=known & (source < 0), other=0.0)
            kept = added.to(tl.float32) + before.to(tl.float32)
            tl.store(state + tap, kept.to(states_ptr.dtype.element_ty), mask=channel_mask)


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
    TILED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Compute one token of each sequence."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    key_head = head % key_heads if TILED else head // (value_heads // key_heads)
    i = tl.arange(0, BLOCK_K)
    j = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    i_mask = i < KEY_DIM
    j_mask = j < VALUE_DIM
    both = i_mask[:, None] & j_mask[None, :]
    row = tl.load(starts_ptr + sequence).to(tl.int64)
    # The interpreter takes no scalar in a mask.
    known = tl.load(lens_ptr + sequence + tl.zeros([BLOCK_K], dtype=tl.int32)) > 1
    place = (tl.load(rows_ptr + sequence) * value_heads + head) * KEY_DIM * VALUE_DIM
    at = states_ptr + place + i[:, None] * VALUE_DIM + j[None, :]
    state = tl.load(at, mask=both & known[:, None], other=0.0)
    qkv = qkv_ptr + row * qkv_stride
    q = tl.load(qkv + key_head * KEY_DIM + i, mask=i_mask, other=0.0).to(tl.float32)
    k = tl.load(qkv + (key_heads + key_head) * KEY_DIM + i, mask=i_mask, other=0.0).to(tl.float32)
    v = tl.load(qkv + 2 * key_heads * KEY_DIM + head * VALUE_DIM + j, mask=j_mask, other=0.0).to(tl.float32)
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
    x: Tensor,
    weight: Tensor,
    states: Tensor,
    batch: AttentionBatch,
    bias: Tensor | None = None,
    activated: bool = True,
) -> Tensor:
    """Compute `causal_conv`: decodes and chunks as two launches of one kernel."""
    check(
        weight.is_contiguous() and states.is_contiguous(), "causal_conv: weight and states must be contiguous"
    )
    channels, taps = weight.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for seqs, decode in _parts(batch):
        config = tuning("delta_conv_decode" if decode else "delta_conv")
        block_t, num_seqs = config["block_t"], seqs.stop - seqs.start
        check(decode or block_t >= taps - 1, f"causal_conv: at most {block_t + 1} taps")
        blocks = num_seqs if decode else (len(x) - seqs.start) // block_t + num_seqs
        _conv_kernel[(blocks, cdiv(channels, config["block_c"]))](
            x,
            weight,
            weight if bias is None else bias,
            states,
            out,
            *_members(batch, seqs),
            num_seqs,
            x.stride(0),
            channels,
            TAPS=taps,
            BIAS=bias is not None,
            ACTIVATED=activated,
            DECODE=decode,
            BLOCK_T=block_t,
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
    shape: DeltaShape,
) -> Tensor:
    """Compute `delta_rule`: decodes token by token, chunks by `launch_chunks`."""
    check(
        states.is_contiguous() and qkv.stride(1) == 1, "delta_rule: states and rows of qkv must be contiguous"
    )
    check(decay.is_contiguous() and strength.is_contiguous(), "delta_rule: gates must be contiguous")
    _, value_heads, key_dim, value_dim = states.shape
    config = tuning("delta_rule")
    block = min(config["block_v"], next_power_of_2(value_dim))
    out = torch.zeros(len(qkv), value_heads, value_dim, dtype=qkv.dtype, device=qkv.device)
    for seqs, decode in _parts(batch):
        given = (qkv, decay, strength, states, out, *_members(batch, seqs))
        if not decode:
            launch_chunks(*given, shape)
            continue
        _rule_kernel[(seqs.stop, value_heads, cdiv(value_dim, block))](
            *given,
            qkv.stride(0),
            shape.key_heads,
            value_heads,
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            SCALE=key_dim**-0.5,
            CORRECTS=shape.corrects,
            TILED=shape.tiled,
            BLOCK_K=next_power_of_2(key_dim),
            BLOCK_V=block,
            num_warps=config["num_warps"],
        )
    return out


def _parts(batch: AttentionBatch) -> Iterator[tuple[slice, bool]]:
    """Yield the sequences of decodes, then those of chunks, with whether they are decodes; none that is empty."""
    num_seqs = len(batch.seq_lens)
    num_decodes = num_seqs if batch.max_query_len == 1 else batch.num_decodes
    if num_decodes:
        yield slice(0, num_decodes), True
    if num_decodes < num_seqs:
        yield slice(num_decodes, num_seqs), False


def _members(batch: AttentionBatch, seqs: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Return starts [S + 1], lengths [S] and rows of states [S] of some sequences."""
    assert batch.state_rows is not None
    return (
        batch.query_start_loc[seqs.start : seqs.stop + 1],
        batch.seq_lens[seqs],
        batch.state_rows[seqs],
    )


def compile_cases(capability: int) -> Iterator[CompileCase]:
    """Yield all kernels with the shapes of Qwen3-Next and Qwen 3.5, and of Granite 4."""
    batch = {"starts_ptr": "*i32", "lens_ptr": "*i32", "rows_ptr": "*i64"}
    for bias, decode in ((False, True), (False, False), (True, True), (True, False)):
        config = tuning("delta_conv_decode" if decode else "delta_conv")
        yield CompileCase(
            f"delta conv {'decode' if decode else 'chunk'}{', with bias' if bias else ''}",
            _conv_kernel,
            {"x_ptr": "*bf16", "weight_ptr": "*fp32", "bias_ptr": "*fp32", "states_ptr": "*bf16"}
            | {"out_ptr": "*bf16"}
            | batch
            | {"num_seqs": "i32", "x_stride": "i32", "channels": "i32"},
            {"TAPS": 4, "BIAS": bias, "ACTIVATED": True, "DECODE": decode}
            | {"BLOCK_T": config["block_t"], "BLOCK_C": config["block_c"]},
            {"num_warps": config["num_warps"]},
        )
    config = tuning("delta_rule")
    for corrects, value_dim in ((True, 128), (False, 64)):
        yield CompileCase(
            "delta decode" if corrects else "state space decode",
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
                "TILED": False,
                "BLOCK_K": 128,
                "BLOCK_V": config["block_v"],
            },
            {"num_warps": config["num_warps"]},
        )
    yield from _chunks.compile_cases(capability)

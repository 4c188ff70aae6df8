"""The Triton kernels of a delta net for chunks of prompts: 64 tokens at a time, by matrix products (arXiv 2412.06464).

`_in_chunks` of `net.py` has the algebra of a chunk. What does not depend on the state is computed for all chunks and
heads in parallel by `_prepare_kernel`: the decays, the inverse of the triangular system, and what each query reads of
the writes of its own chunk. Then `_walk_kernel` walks over the chunks of a sequence with a block of its state in
registers, and only multiplies. Between the two a token and a head take 2 * 64 + 4 numbers of memory.

Precision: sums, decays and the state are fp32. With bf16 inputs a factor in fp32 is split into two bf16 numbers, which
have 16 bits together; products of the two lower halves are left out. Rounding to tf32 (11 bits) would be cheaper, but
where keys repeat, writes are differences of almost equal numbers, and their errors add up until the next chunk: 0.025
of the largest result (64 equal keys, no decay), where the halves give 0.00015 and the rounding of results to bf16 is
0.0025. Other inputs take three products in tf32 for one (`tf32x3`), which is about fp32.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from plumbline_kernels._backend import CompileCase, capability_of, cdiv, jit, next_power_of_2, tl, tuning
from plumbline_kernels.delta.shape import DeltaShape

__all__ = ["block_of", "compile_cases", "launch_chunks"]


class ChunkPlan(NamedTuple):
    """How chunks are computed."""

    chunk: int
    """Tokens at once."""
    split: bool
    """Whether fp32 factors are split into two numbers of the type of the inputs."""


def plan_of(dtype: torch.dtype, capability: int) -> ChunkPlan:
    """Return how inputs of a type are computed: 64 tokens where registers hold the products of a chunk, else 32."""
    # Halves of fp16 would not do: a state may exceed its range.
    split = dtype == torch.bfloat16
    return ChunkPlan(64 if split and capability == 90 else 32, split)


@jit
def block_of(
    starts_ptr,  # int32 [S + 1]
    num_seqs,
    block,
    SIZE: tl.constexpr,
):
    """Return the sequence of a block of tokens, and the block's first token within it.

    Sequence i owns the blocks from (start[i] - start[0]) // SIZE + i up to that of its successor; the last may be
    empty. So the number of all blocks has a bound that needs no lengths on the host. The owner is found by bisection.
    """
    base = tl.load(starts_ptr)
    sequence = 0
    end = num_seqs
    while end - sequence > 1:
        middle = (sequence + end) // 2
        if (tl.load(starts_ptr + middle) - base) // SIZE + middle <= block:
            sequence = middle
        else:
            end = middle
    first = (block - (tl.load(starts_ptr + sequence) - base) // SIZE - sequence) * SIZE
    return sequence, first


@jit
def _lower(x, high):
    """Return what is left of fp32 after its upper half."""
    return (x - high.to(tl.float32)).to(high.dtype)


@jit
def _inputs_times(a, b, SPLIT: tl.constexpr):
    """Return inputs times inputs. Those of 16 bits have one precision: AMD's compiler refuses the name of another."""
    if SPLIT:
        product = tl.dot(a, b)
    else:
        product = tl.dot(a, b, input_precision="tf32x3")
    return product


@jit
def _input_times(a, b, SPLIT: tl.constexpr):
    """Return inputs times fp32."""
    if SPLIT:
        high = b.to(a.dtype)
        product = tl.dot(a, _lower(b, high), tl.dot(a, high))
    else:
        product = tl.dot(a.to(tl.float32), b, input_precision="tf32x3")
    return product


@jit
def _halves_times(high, low, b, SPLIT: tl.constexpr):
    """Return (high + low) b for b in fp32; if not SPLIT, `high` is fp32 and `low` is not read."""
    if SPLIT:
        b_high = b.to(high.dtype)
        product = tl.dot(low, b_high, tl.dot(high, _lower(b, b_high), tl.dot(high, b_high)))
    else:
        product = tl.dot(high, b, input_precision="tf32x3")
    return product


@jit
def _load_halves(at, SPLIT: tl.constexpr, SIZE: tl.constexpr):
    high = tl.load(at)
    low = high
    if SPLIT:
        low = tl.load(at + SIZE)
    return high, low


@jit
def _store_halves(at, x, SPLIT: tl.constexpr, SIZE: tl.constexpr):
    high = x.to(at.dtype.element_ty)
    tl.store(at, high)
    if SPLIT:
        tl.store(at + SIZE, _lower(x, high))


@jit
def _prepare_kernel(
    qkv_ptr,  # [T, C]
    decay_ptr,  # fp32 [T, HV], contiguous
    strength_ptr,  # fp32 [T, HV], contiguous
    solved_ptr,  # [chunks, HV, HALVES, CHUNK, CHUNK], written if CORRECTS: the inverse, times the strengths
    reads_ptr,  # [chunks, HV, HALVES, CHUNK, CHUNK]: what queries read of writes
    factors_ptr,  # fp32 [chunks, HV, 4, CHUNK]: of reads by keys and by queries, of writes, and of the state
    starts_ptr,  # int32 [S + 1]
    num_seqs,
    qkv_stride,
    key_heads,
    value_heads,
    KEY_DIM: tl.constexpr,
    SCALE: tl.constexpr,
    CORRECTS: tl.constexpr,
    TILED: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,  # log2(CHUNK)
    BLOCK_K: tl.constexpr,
):
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    sequence, first = block_of(starts_ptr, num_seqs, chunk, CHUNK)
    start = tl.load(starts_ptr + sequence)
    count = tl.load(starts_ptr + sequence + 1) - start
    if first >= count:
        return
    i = tl.arange(0, CHUNK)
    j = tl.arange(0, CHUNK)
    dim = tl.arange(0, BLOCK_K)
    # Beyond the end keys are zeros and nothing fades, so that such tokens change nothing.
    inside = first + i < count
    token = (start + first).to(tl.int64)
    key_head = head % key_heads if TILED else head // (value_heads // key_heads)
    at = qkv_ptr + token * qkv_stride + key_head * KEY_DIM + (i[:, None] * qkv_stride + dim[None, :])
    mask = inside[:, None] & (dim < KEY_DIM)[None, :]
    q = tl.load(at, mask=mask, other=0.0)
    k = tl.load(at + key_heads * KEY_DIM, mask=mask, other=0.0)
    gate = token * value_heads + head + i * value_heads
    strength = tl.load(strength_ptr + gate, mask=inside, other=0.0)
    total = tl.cumsum(tl.load(decay_ptr + gate, mask=inside, other=0.0), axis=0)
    last = tl.min(total, axis=0)
    # Masked before exp, which would overflow above the diagonal.
    past = total[:, None] - total[None, :]
    fading = tl.exp(tl.where(i[:, None] >= j[None, :], past, float("-inf")))
    reads = _inputs_times(q, tl.trans(k), SPLIT) * fading
    by_key = tl.exp(total)
    by_query = by_key
    written = tl.exp(last - total)
    place = chunk.to(tl.int64) * value_heads + head
    # The offset of a square of CHUNK * CHUNK, which has two halves if SPLIT.
    square = place * (SPLIT + 1) * CHUNK * CHUNK + (i[:, None] * CHUNK + j[None, :])
    if CORRECTS:
        # Keys and queries have their length in their factors, so that products take them as they are.
        wide = k.to(tl.float32)
        of_key = tl.rsqrt(tl.sum(wide * wide, axis=1) + 1e-6)
        wide = q.to(tl.float32)
        of_query = tl.rsqrt(tl.sum(wide * wide, axis=1) + 1e-6) * SCALE
        reads = reads * of_query[:, None] * of_key[None, :]
        _store_halves(reads_ptr + square, reads, SPLIT, CHUNK * CHUNK)
        by_key *= of_key
        by_query *= of_query
        written *= of_key
        seen = _inputs_times(k, tl.trans(k), SPLIT) * fading
        system = tl.where(i[:, None] > j[None, :], seen * (strength * of_key)[:, None] * of_key[None, :], 0.0)
        # Invert 1 + system in blocks of 2, 4, 8 ...: (B + X)^-1 = B^-1 - B^-1 X B^-1, where B has the blocks of half
        # the size on its diagonal and X joins pairs of them. A product of powers of the system would take as many
        # steps, but where keys repeat these powers grow to 1e17 and cancel.
        inverse = tl.where(i[:, None] == j[None, :], 1.0, 0.0)
        inverse -= tl.where((i >> 1)[:, None] == (j >> 1)[None, :], system, 0.0)
        for level in range(1, LEVELS):
            small = (i >> level)[:, None] != (j >> level)[None, :]
            joins = small & ((i >> level + 1)[:, None] == (j >> level + 1)[None, :])
            high = inverse.to(reads_ptr.dtype.element_ty)
            joined = _halves_times(high, _lower(inverse, high), tl.where(joins, system, 0.0), SPLIT)
            high = joined.to(high.dtype)
            inverse -= _halves_times(high, _lower(joined, high), inverse, SPLIT)
        _store_halves(solved_ptr + square, inverse * strength[None, :], SPLIT, CHUNK * CHUNK)
    else:
        _store_halves(reads_ptr + square, reads, SPLIT, CHUNK * CHUNK)
        by_key = strength
    factor = factors_ptr + place * 4 * CHUNK + i
    tl.store(factor, by_key)
    tl.store(factor + CHUNK, by_query)
    tl.store(factor + 2 * CHUNK, written)
    tl.store(factor + 3 * CHUNK, tl.exp(last + 0.0 * total))


@jit
def _walk_kernel(
    qkv_ptr,  # [T, C]
    solved_ptr,  # as in `_prepare_kernel`
    reads_ptr,
    factors_ptr,
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
    CORRECTS: tl.constexpr,
    TILED: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    i = tl.arange(0, CHUNK)
    j = tl.arange(0, CHUNK)
    dim = tl.arange(0, BLOCK_K)
    value = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    dim_mask = dim < KEY_DIM
    start = tl.load(starts_ptr + sequence)
    count = tl.load(starts_ptr + sequence + 1) - start
    chunk = (start - tl.load(starts_ptr)) // CHUNK + sequence
    # The interpreter takes no scalar in a mask.
    known = tl.load(lens_ptr + sequence + tl.zeros([BLOCK_K], dtype=tl.int32)) > count
    at = (tl.load(rows_ptr + sequence) * value_heads + head) * KEY_DIM * VALUE_DIM
    state_at = states_ptr + at + dim[:, None] * VALUE_DIM + value[None, :]
    state_mask = dim_mask[:, None] & (value < VALUE_DIM)[None, :]
    state = tl.load(state_at, mask=state_mask & known[:, None], other=0.0)
    key_head = head % key_heads if TILED else head // (value_heads // key_heads)
    key_at = qkv_ptr + key_head * KEY_DIM
    value_at = qkv_ptr + 2 * key_heads * KEY_DIM + head * VALUE_DIM
    key_tile = i[:, None] * qkv_stride + dim[None, :]
    value_tile = i[:, None] * qkv_stride + value[None, :]
    out_tile = i[:, None] * (value_heads * VALUE_DIM) + value[None, :]
    tile = i[:, None] * CHUNK + j[None, :]
    for first in range(0, count, CHUNK):
        inside = first + i < count
        token = (start + first).to(tl.int64)
        mask = inside[:, None] & dim_mask[None, :]
        keys = key_at + token * qkv_stride
        q = tl.load(keys + key_tile, mask=mask, other=0.0)
        k = tl.load(keys + key_heads * KEY_DIM + key_tile, mask=mask, other=0.0)
        value_mask = inside[:, None] & (value < VALUE_DIM)[None, :]
        v = tl.load(value_at + token * qkv_stride + value_tile, mask=value_mask, other=0.0).to(tl.float32)
        place = (chunk + first // CHUNK).to(tl.int64) * value_heads + head
        square = place * (SPLIT + 1) * CHUNK * CHUNK + tile
        factor = factors_ptr + place * 4 * CHUNK
        by_key = tl.load(factor + i)
        by_query = tl.load(factor + CHUNK + i)
        if CORRECTS:
            errors = v - by_key[:, None] * _input_times(k, state, SPLIT)
            high, low = _load_halves(solved_ptr + square, SPLIT, CHUNK * CHUNK)
            writes = _halves_times(high, low, errors, SPLIT)
        else:
            writes = by_key[:, None] * v
        out = by_query[:, None] * _input_times(q, state, SPLIT)
        high, low = _load_halves(reads_ptr + square, SPLIT, CHUNK * CHUNK)
        out += _halves_times(high, low, writes, SPLIT)
        tl.store(
            out_ptr + (token * value_heads + head) * VALUE_DIM + out_tile,
            out.to(out_ptr.dtype.element_ty),
            mask=value_mask,
        )
        writes = tl.load(factor + 2 * CHUNK + i)[:, None] * writes
        state = state * tl.load(factor + 3 * CHUNK) + _input_times(tl.trans(k), writes, SPLIT)
    tl.store(state_at, state, mask=state_mask)


def launch_chunks(
    qkv: Tensor,
    decay: Tensor,
    strength: Tensor,
    states: Tensor,
    out: Tensor,
    starts: Tensor,
    lens: Tensor,
    rows: Tensor,
    shape: DeltaShape,
) -> None:
    """Compute `delta_rule` for sequences of any number of new tokens, into their rows of `out` and of `states`.

    Args:
        qkv: [T, C], of the whole step.
        decay: fp32 [T, HV].
        strength: fp32 [T, HV].
        states: fp32 [rows, HV, key_dim, value_dim].
        out: [T, HV, value_dim].
        starts: int32 [S + 1]: the first token of each of these sequences, and the end of the last.
        lens: int32 [S]: their lengths with the new tokens.
        rows: int64 [S]: their states.
        shape: the heads.
    """
    _, value_heads, key_dim, value_dim = states.shape
    num_seqs = len(lens)
    plan = plan_of(qkv.dtype, capability_of(qkv.device))
    chunks = len(qkv) // plan.chunk + num_seqs
    squares = (chunks, value_heads, plan.split + 1, plan.chunk, plan.chunk)
    reads = torch.empty(squares, dtype=qkv.dtype if plan.split else torch.float32, device=qkv.device)
    solved = torch.empty_like(reads) if shape.corrects else reads
    factors = torch.empty(chunks, value_heads, 4, plan.chunk, dtype=torch.float32, device=qkv.device)
    block_k = max(next_power_of_2(key_dim), 16)
    _prepare_kernel[(chunks, value_heads)](
        qkv,
        decay,
        strength,
        solved,
        reads,
        factors,
        starts,
        num_seqs,
        qkv.stride(0),
        shape.key_heads,
        value_heads,
        KEY_DIM=key_dim,
        SCALE=key_dim**-0.5,
        CORRECTS=shape.corrects,
        TILED=shape.tiled,
        SPLIT=plan.split,
        CHUNK=plan.chunk,
        LEVELS=plan.chunk.bit_length() - 1,
        BLOCK_K=block_k,
        **tuning("delta_prepare"),
    )
    config = tuning(f"delta_walk_{plan.chunk}")
    block_v = min(config["block_v"], max(next_power_of_2(value_dim), 16))
    _walk_kernel[(num_seqs, value_heads, cdiv(value_dim, block_v))](
        qkv,
        solved,
        reads,
        factors,
        states,
        out,
        starts,
        lens,
        rows,
        qkv.stride(0),
        shape.key_heads,
        value_heads,
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        CORRECTS=shape.corrects,
        TILED=shape.tiled,
        SPLIT=plan.split,
        CHUNK=plan.chunk,
        BLOCK_K=block_k,
        BLOCK_V=block_v,
        num_warps=config["num_warps"],
        num_stages=config["num_stages"],
    )


def compile_cases(capability: int) -> Iterator[CompileCase]:
    """Yield both kernels with the heads of Qwen3-Next and Qwen 3.5, and of Granite 4."""
    prepared = {"solved_ptr": "*bf16", "reads_ptr": "*bf16", "factors_ptr": "*fp32", "starts_ptr": "*i32"}
    numbers = {"qkv_stride": "i32", "key_heads": "i32", "value_heads": "i32"}
    plan = plan_of(torch.bfloat16, capability)
    config = tuning(f"delta_walk_{plan.chunk}")
    for corrects, value_dim in ((True, 128), (False, 64)):
        name = "delta chunks" if corrects else "state space chunks"
        constants = {"KEY_DIM": 128, "CORRECTS": corrects, "TILED": False, "SPLIT": plan.split}
        constants |= {"CHUNK": plan.chunk, "BLOCK_K": 128}
        yield CompileCase(
            f"{name}, prepare",
            _prepare_kernel,
            {"qkv_ptr": "*bf16", "decay_ptr": "*fp32", "strength_ptr": "*fp32", "num_seqs": "i32"}
            | prepared
            | numbers,
            constants | {"SCALE": 128**-0.5, "LEVELS": plan.chunk.bit_length() - 1},
            tuning("delta_prepare"),
        )
        yield CompileCase(
            f"{name}, walk",
            _walk_kernel,
            {"qkv_ptr": "*bf16", "states_ptr": "*fp32", "out_ptr": "*bf16", "lens_ptr": "*i32"}
            | {"rows_ptr": "*i64"}
            | prepared
            | numbers,
            constants | {"VALUE_DIM": value_dim, "BLOCK_V": config["block_v"]},
            {"num_warps": config["num_warps"], "num_stages": config["num_stages"]},
        )

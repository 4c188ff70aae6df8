"""Find the least logit that top_k, top_p and min_p keep in each row, by bisection and without a sort.

Many programs share a row. They find its largest logit, then count tokens and add up their mass above borders that cut
the row's logits into equal regions. One program a row then knows the region of the threshold, copies its few tokens
and finds the threshold among them bit by bit. Sums are taken in one order, whatever else is in the batch.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from plumbline_kernels._backend import CompileCase, cdiv, jit, next_power_of_2, tl, tuning

__all__ = ["compile_cases", "launch"]

_BORDERS = 64
_NEAR = 16384
"""Tokens of a region that are copied; of a larger one, the whole row is searched."""


@jit
def _logit_of(key):
    """Return the fp32 with an ordered key; the keys beyond the infinities are NaN, and no logit is as large."""
    bits = tl.where((key >> 31) != 0, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@jit
def _find_key(logits_ptr, length, wanted, largest, divisor, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Return the largest key that still keeps as many tokens or as much mass as wanted, 0 if only -inf does.

    Each pass over the logits finds two bits, from the highest on: it sums for the three keys that have them.
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
        for start in range(0, length, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = tl.load(logits_ptr + token, mask=token < length, other=float("-inf"))
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
def _is_limited(temperature, top_k, top_p, min_p, vocab):
    return (temperature > 0.0) & (((top_k > 0) & (top_k < vocab)) | (top_p < 1.0) | (min_p > 0.0))


@jit
def _extremes_kernel(
    logits_ptr,  # fp32 [B, V]
    temperature_ptr,  # fp32 [B]
    top_k_ptr,  # int32 [B]
    top_p_ptr,  # fp32 [B]
    min_p_ptr,  # fp32 [B]
    extremes_ptr,  # fp32 [B, 2, parts]: the largest and the least finite logit of a part
    stride,
    vocab,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    if not _is_limited(tl.load(temperature_ptr + row), top_k, top_p, tl.load(min_p_ptr + row), vocab):
        return
    token = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row * stride + token, mask=token < vocab, other=float("-inf"))
    at = extremes_ptr + row * 2 * parts + part
    tl.store(at, tl.max(x, axis=0))
    tl.store(at + parts, tl.min(tl.where(x > float("-inf"), x, float("inf")), axis=0))


@jit
def _largest(extremes_ptr, row, parts, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    return tl.max(
        tl.load(extremes_ptr + row * 2 * parts + part, mask=part < parts, other=float("-inf")), axis=0
    )


@jit
def _sums_above(
    logits_ptr, sums_ptr, start, vocab, border, largest, temperature,
    COUNT: tl.constexpr, BORDERS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Store the count or the mass of a part's tokens above each border."""
    total = tl.zeros([BORDERS, CHUNK], dtype=tl.float32)
    for chunk in range(0, BLOCK, CHUNK):
        token = start + chunk + tl.arange(0, CHUNK)
        x = tl.load(logits_ptr + token, mask=token < vocab, other=float("-inf"))
        value = tl.where(x > float("-inf"), 1.0, 0.0) if COUNT else tl.exp((x - largest) / temperature)
        total += tl.where(x[None, :] >= border[:, None], value[None, :], 0.0)
    tl.store(sums_ptr + tl.arange(0, BORDERS), tl.sum(total, axis=1))


@jit
def _sums_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    extremes_ptr,
    borders_ptr,  # fp32 [B, BORDERS], descending
    sums_ptr,  # fp32 [B, 2, parts, BORDERS]: tokens and mass at and above each border
    stride,
    vocab,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    BORDERS: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    limited = (top_k > 0) & (top_k < vocab)
    if not _is_limited(temperature, top_k, top_p, 0.0, vocab):
        return
    largest = _largest(extremes_ptr, row, parts, PARTS)
    each = tl.arange(0, PARTS)
    minima = tl.load(extremes_ptr + (row * 2 + 1) * parts + each, mask=each < parts, other=float("inf"))
    span = largest - tl.min(minima, axis=0)
    if top_p < 1.0:
        # All tokens farther below together have less mass than top_p leaves out, twice over for rounding.
        span = tl.minimum(span, temperature * tl.log(2.0 * vocab / (1.0 - top_p)))
    number = tl.arange(0, BORDERS)
    border = largest - (number + 1).to(tl.float32) * (span / (BORDERS - 1))
    border = tl.where(number == BORDERS - 1, float("-inf"), border)
    if part == 0:
        tl.store(borders_ptr + row * BORDERS + number, border)
    logits_ptr += row * stride
    sums_ptr += (row * 2 * parts + part) * BORDERS
    if limited:
        _sums_above(
            logits_ptr,
            sums_ptr,
            part * BLOCK,
            vocab,
            border,
            largest,
            temperature,
            True,
            BORDERS,
            BLOCK,
            CHUNK,
        )
    if top_p < 1.0:
        sums_ptr += parts * BORDERS
        _sums_above(
            logits_ptr,
            sums_ptr,
            part * BLOCK,
            vocab,
            border,
            largest,
            temperature,
            False,
            BORDERS,
            BLOCK,
            CHUNK,
        )


@jit
def _summed(sums_ptr, parts, BORDERS: tl.constexpr, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)[:, None]
    at = sums_ptr + part * BORDERS + tl.arange(0, BORDERS)[None, :]
    return tl.sum(tl.load(at, mask=part < parts, other=0.0), axis=0)


@jit
def _least_kept(
    logits_ptr,
    near_ptr,
    borders_ptr,
    sums,  # fp32 [BORDERS]
    wanted,
    vocab,
    largest,
    temperature,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    NEAR: tl.constexpr,
    BORDERS: tl.constexpr,
):
    """Return the largest logit at and above which there are as many tokens or as much mass as wanted."""
    number = tl.arange(0, BORDERS)
    region = tl.minimum(tl.sum((sums < wanted).to(tl.int32), axis=0), BORDERS - 1)
    lower = tl.load(borders_ptr + region)
    upper = tl.load(borders_ptr + region - 1, mask=region > 0, other=float("inf"))
    above = tl.sum(tl.where(number == region - 1, sums, 0.0), axis=0)
    # What was copied before has been read.
    tl.debug_barrier()
    count = tl.full([], 0, dtype=tl.int32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + token, mask=token < vocab, other=float("-inf"))
        near = ((x >= lower) & (x < upper) & (x > float("-inf"))).to(tl.int32)
        place = count + tl.cumsum(near, axis=0) - 1
        tl.store(near_ptr + place, x, mask=(near > 0) & (place < NEAR))
        count += tl.sum(near, axis=0)
    tl.debug_barrier()
    source = logits_ptr
    length = vocab
    if count <= NEAR:
        source = near_ptr
        length = count
        wanted -= above
    key = _find_key(source, length, wanted, largest, temperature, COUNT, BLOCK)
    # Rounding may leave a region with a little less than wanted; then all of it is kept.
    return tl.where(key == 0, lower, _logit_of(key))


@jit
def _threshold_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    extremes_ptr,
    borders_ptr,
    sums_ptr,
    near_ptr,  # fp32 [B, NEAR], scratch
    threshold_ptr,  # fp32 [B]: the least logit that is kept
    stride,
    vocab,
    parts,
    BLOCK: tl.constexpr,
    NEAR: tl.constexpr,
    BORDERS: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    tl.store(threshold_ptr + row, float("-inf"))
    if not _is_limited(temperature, top_k, top_p, min_p, vocab):
        return
    logits_ptr += row * stride
    near_ptr += row * NEAR
    borders_ptr += row * BORDERS
    sums_ptr += row * 2 * parts * BORDERS
    largest = _largest(extremes_ptr, row, parts, PARTS)
    threshold = tl.full([], float("-inf"), dtype=tl.float32)
    limited = (top_k > 0) & (top_k < vocab)
    if limited:
        sums = _summed(sums_ptr, parts, BORDERS, PARTS)
        threshold = _least_kept(
            logits_ptr, near_ptr, borders_ptr, sums, top_k.to(tl.float32), vocab, largest, temperature,
            True, BLOCK, NEAR, BORDERS,
        )  # fmt: skip
    if top_p < 1.0:
        sums = _summed(sums_ptr + parts * BORDERS, parts, BORDERS, PARTS)
        mass = tl.max(sums, axis=0)
        if limited:
            kept = tl.zeros([BLOCK], dtype=tl.float32)
            for start in range(0, vocab, BLOCK):
                token = start + tl.arange(0, BLOCK)
                x = tl.load(logits_ptr + token, mask=token < vocab, other=float("-inf"))
                kept += tl.where(x >= threshold, tl.exp((x - largest) / temperature), 0.0)
            mass = tl.sum(kept, axis=0)
        # Every logit keeps no mass at all: a top_p of 0 wants a little, which the largest has.
        wanted = tl.maximum(top_p, 1e-30) * mass
        nucleus = _least_kept(
            logits_ptr, near_ptr, borders_ptr, sums, wanted, vocab, largest, temperature,
            False, BLOCK, NEAR, BORDERS,
        )  # fmt: skip
        threshold = tl.maximum(threshold, nucleus)
    if min_p > 0.0:
        threshold = tl.maximum(threshold, largest + temperature * tl.log(min_p))
    tl.store(threshold_ptr + row, threshold)


def launch(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Return the least logit of each row that is kept, fp32 [B]; -inf for rows without limits."""
    batch, vocab = logits.shape
    find, search = tuning("sample_sums"), tuning("sample_threshold")
    parts = cdiv(vocab, find["block"])
    settings = (temperature, top_k, top_p, min_p)

    def scratch(*size: int) -> Tensor:
        return torch.empty(batch, *size, dtype=torch.float32, device=logits.device)

    extremes, borders, sums = scratch(2, parts), scratch(_BORDERS), scratch(2, parts, _BORDERS)
    _extremes_kernel[(batch, parts)](
        logits, *settings, extremes, logits.stride(0), vocab, BLOCK=find["block"], num_warps=find["num_warps"]
    )
    _sums_kernel[(batch, parts)](
        logits,
        *settings[:3],
        extremes,
        borders,
        sums,
        logits.stride(0),
        vocab,
        BLOCK=find["block"],
        CHUNK=find["chunk"],
        BORDERS=_BORDERS,
        PARTS=next_power_of_2(parts),
        num_warps=find["num_warps"],
    )
    threshold = scratch()
    _threshold_kernel[(batch,)](
        logits,
        *settings,
        extremes,
        borders,
        sums,
        scratch(_NEAR),
        threshold,
        logits.stride(0),
        vocab,
        parts,
        BLOCK=min(search["block"], next_power_of_2(vocab)),
        NEAR=_NEAR,
        BORDERS=_BORDERS,
        PARTS=next_power_of_2(parts),
        num_warps=search["num_warps"],
    )
    return threshold


def compile_cases() -> Iterator[CompileCase]:
    """Yield the compile cases of the three kernels, for a vocabulary of 152,000."""
    find, search = tuning("sample_sums"), tuning("sample_threshold")
    rows = {"logits_ptr": "*fp32", "temperature_ptr": "*fp32", "top_k_ptr": "*i32", "top_p_ptr": "*fp32"}
    sizes = {"stride": "i32", "vocab": "i32"}
    scratch = {
        f"{name}_ptr": "*fp32" for name in ("min_p", "extremes", "borders", "sums", "near", "threshold")
    }
    parts = {"BORDERS": _BORDERS, "PARTS": next_power_of_2(cdiv(152_000, find["block"]))}
    yield CompileCase(
        "sample extremes", _extremes_kernel, rows | scratch | sizes, {"BLOCK": find["block"]}, find
    )
    yield CompileCase(
        "sample sums",
        _sums_kernel,
        rows | scratch | sizes,
        {"BLOCK": find["block"], "CHUNK": find["chunk"]} | parts,
        find,
    )
    yield CompileCase(
        "sample threshold",
        _threshold_kernel,
        rows | scratch | sizes | {"parts": "i32"},
        {"BLOCK": search["block"], "NEAR": _NEAR} | parts,
        search,
    )

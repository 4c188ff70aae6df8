"""Launch the Triton kernels of `paged_attention`, with the tiles that suit decodes and prefill chunks."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plumbline_kernels._attention_batch import AttentionBatch
from plumbline_kernels._backend import OPTIONS, CompileCase, capability_of, check, next_power_of_2, tuning
from plumbline_kernels.attention._exact import launch_exact
from plumbline_kernels.attention._kernels import attend_kernel, reduce_kernel
from plumbline_kernels.devices import shared_bytes

__all__ = ["MAX_SEGMENTS", "compile_cases", "launch", "num_segments", "reduce"]

MAX_SEGMENTS = 16
_HEAD_SIZES = (64, 128, 256, 512)
"""Heads up to each have tiles of their own."""
_LOG2E = 1.4426950408889634


def launch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    tiled: bool = False,
) -> Tensor:
    """Run decodes and prefill chunks as two launches of one kernel, each with the tiles that suit it."""
    check(q.stride(2) == 1 and q.stride(1) == q.shape[2], "paged_attention: heads of q must be contiguous")
    check(k_cache.stride() == v_cache.stride(), "paged_attention: the caches must share their strides")
    check(k_cache.stride(3) == 1, "paged_attention: heads in the cache must be contiguous")
    check(batch.block_tables.stride(1) == 1, "paged_attention: rows of block_tables must be contiguous")
    num_seqs = batch.seq_lens.shape[0]
    num_decodes = num_seqs if batch.max_query_len == 1 else batch.num_decodes
    # Padding rows stay zero; a step of decodes alone has none.
    empty = torch.empty if num_decodes == len(q) else torch.zeros
    out = empty(q.shape, dtype=q.dtype, device=q.device)
    if batch.exact:
        tiled = tiled and window is not None
        launch_exact(q, k_cache, v_cache, out, batch, scale, window or 0, softcap, sinks, tiled)
        return out
    scores = _Scores(scale, window or 0, softcap, sinks, tiled and window is not None)
    if num_decodes:
        _launch_part(q, k_cache, v_cache, out, batch, slice(0, num_decodes), num_decodes, scores, True)
    if num_decodes < num_seqs:
        tokens = q.shape[0] - num_decodes
        _launch_part(q, k_cache, v_cache, out, batch, slice(num_decodes, num_seqs), tokens, scores, False)
    return out


class _Scores(NamedTuple):
    """How scores become weights; see `paged_attention`."""

    scale: float
    window: int  # 0 for none
    softcap: float | None
    sinks: Tensor | None
    tiled: bool


def _launch_part(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    batch: AttentionBatch,
    seqs: slice,
    num_tokens: int,
    scores: _Scores,
    decode: bool,
) -> None:
    _, num_heads, head_dim = q.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = num_heads // num_kv_heads
    num_seqs = seqs.stop - seqs.start
    config, in_pages = _tiles(decode, group, head_dim, block_size, k_cache.itemsize, capability_of(q.device))
    block_q = 1 if decode else config["block_m"] // group
    q_blocks = num_seqs if decode else num_tokens // block_q + num_seqs
    segments = num_segments(q_blocks * num_kv_heads, batch.max_seq_len, config["tile"]) if decode else 1
    parts, maxima, sums = out, out, out
    if segments > 1:
        # Decodes own the first rows, one each.
        parts = torch.empty((num_seqs, num_heads, segments, head_dim), dtype=torch.float32, device=q.device)
        maxima = torch.empty((num_seqs, num_heads, segments), dtype=torch.float32, device=q.device)
        sums = torch.empty_like(maxima)
    attend_kernel[(q_blocks, num_kv_heads, segments)](
        q,
        k_cache,
        v_cache,
        _pages(k_cache, config["tile"]) if in_pages else k_cache,
        _pages(v_cache, config["tile"]) if in_pages else v_cache,
        parts,
        maxima,
        sums,
        batch.query_start_loc[seqs.start :],
        batch.seq_lens[seqs.start :],
        batch.block_tables[seqs.start :],
        out if scores.sinks is None else scores.sinks,
        out if batch.reach is None else batch.reach,
        num_seqs,
        q.stride(0),
        batch.block_tables.stride(0),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        scores.scale * _LOG2E * (2.0 / scores.softcap if scores.softcap else 1.0),
        scores.window,
        (scores.softcap or 0.0) * _LOG2E,
        H=num_heads,
        GROUP=group,
        HD=head_dim,
        HD_PAD=max(next_power_of_2(head_dim), 16),
        BLOCK_SIZE=block_size,
        BLOCK_M=config["block_m"],
        BLOCK_Q=block_q,
        TILE=config["tile"],
        PAGES=in_pages,
        SEGMENTS=segments,
        DECODE=decode,
        CAPPED=scores.softcap is not None,
        SINKS=scores.sinks is not None,
        REACH=not decode and batch.reach is not None,
        TILED=scores.tiled,
        **{name: config[name] for name in OPTIONS if name in config},
    )
    if segments > 1:
        reduce(parts, maxima, sums, out, scores.sinks)


def _pages(cache: Tensor, tile: int) -> Any:
    """Describe a cache for loads of whole tiles of a head by TMA."""
    # Where there is no Triton, the rest of this module imports.
    from triton.tools.tensor_descriptor import TensorDescriptor

    pages = cache.transpose(1, 2)
    box = [1, 1, tile, max(next_power_of_2(cache.shape[3]), 16)]
    return TensorDescriptor(pages, list(pages.shape), list(pages.stride()), box)


def reduce(parts: Tensor, maxima: Tensor, sums: Tensor, out: Tensor, sinks: Tensor | None = None) -> None:
    """Join segments of keys: write their results to the first rows of out [T, H, HD].

    Args:
        parts: fp32 [rows, H, SEGMENTS, HD].
        maxima: fp32 [rows, H, SEGMENTS].
        sums: like maxima.
        out: contiguous.
        sinks: fp32 [H].
    """
    rows, num_heads, segments, head_dim = parts.shape
    reduce_kernel[(rows * num_heads,)](
        parts,
        maxima,
        sums,
        out,
        out if sinks is None else sinks,
        H=num_heads,
        HD=head_dim,
        HD_PAD=max(next_power_of_2(head_dim), 16),
        SEGMENTS=segments,
        SINKS=sinks is not None,
        num_warps=tuning("attention_reduce")["num_warps"],
    )


def _tiles(
    decode: bool, group: int, head_dim: int, block_size: int, itemsize: int, capability: int
) -> tuple[dict[str, int], bool]:
    """Return the tiles for this kind of work, and whether they are loaded page by page.

    Those of prompts are where a GPU can, and each lies in one page: TMA loads them, and takes few registers. Others are
    loaded key by key, with the tiles of sm_80: before sm_90 the sums of products are spread over more registers, and
    larger tiles would spill. A decode is bound by the bytes of its cache, which pointers load as fast.
    """
    size = next(size for size in _HEAD_SIZES if head_dim <= size)
    name = f"attention_{'decode' if decode else 'prefill'}_{size}"
    config = tuning(name, capability)
    in_pages = (
        not decode
        and shared_bytes(capability) >= shared_bytes(90)
        and itemsize == 2
        and head_dim % 8 == 0
        and block_size % config["tile"] == 0
    )
    if not (decode or in_pages):
        config = tuning(name, 80)
    # Large groups take at least one token.
    return config | {"block_m": max(config["block_m"], next_power_of_2(group))}, in_pages


def num_segments(programs: int, max_seq_len: int, tile: int) -> int:
    """How many ways to split the keys so that a small batch still fills the GPU; depends on nothing on the device."""
    wanted = min(256 // programs if programs else 1, max_seq_len // (2 * tile), MAX_SEGMENTS)
    return 1 << max(wanted, 1).bit_length() - 1


def compile_cases(capability: int = 90) -> Iterator[CompileCase]:
    """Decode and prefill for the head sizes in use, whole and split, with 8 B-like heads and blocks of 64 and 16."""
    for head_dim in (64, 80, 96, 128, 192, 256, 512):
        for segments in (0, 1, MAX_SEGMENTS):  # 0 is prefill
            yield _attend_case(
                f"paged_attention hd={head_dim} segments={segments}", head_dim, segments, capability
            )
            yield _attend_case(
                f"paged_attention hd={head_dim} segments={segments}, capped, with sinks",
                head_dim,
                segments,
                capability,
                CAPPED=True,
                SINKS=True,
            )
        yield _attend_case(f"paged_attention hd={head_dim}, with reach", head_dim, 0, capability, REACH=True)
        yield CompileCase(
            f"paged_attention reduce hd={head_dim}",
            reduce_kernel,
            {f"{tensor}_ptr": "*fp32" for tensor in ("parts", "max", "sum", "sinks")} | {"out_ptr": "*bf16"},
            {
                "H": 32,
                "HD": head_dim,
                "HD_PAD": next_power_of_2(head_dim),
                "SEGMENTS": MAX_SEGMENTS,
                "SINKS": True,
            },
            tuning("attention_reduce"),
        )
    for segments in (0, MAX_SEGMENTS):
        name = f"paged_attention hd=128 segments={segments}, windows side by side"
        yield _attend_case(name, 128, segments, capability, TILED=True)
    for head_dim in (64, 128, 256):
        name = f"paged_attention hd={head_dim} segments=0, blocks of 16"
        yield _attend_case(name, head_dim, 0, capability, BLOCK_SIZE=16)


def _attend_case(name: str, head_dim: int, segments: int, capability: int, **constants: int) -> CompileCase:
    block_size = constants.get("BLOCK_SIZE", 64)
    config, in_pages = _tiles(segments > 0, 4, head_dim, block_size, 2, capability)
    pointers = {f"{tensor}_ptr": "*bf16" for tensor in ("q", "k_cache", "v_cache")}
    box = f"tensordesc<bf16[1, 1, {config['tile']}, {next_power_of_2(head_dim)}]>"
    pointers |= dict.fromkeys(("k_pages", "v_pages"), box if in_pages else "*bf16")
    indices = {f"{tensor}_ptr": "*i32" for tensor in ("query_start", "seq_lens", "block_tables")}
    outputs = {"out_ptr": "*bf16" if segments < 2 else "*fp32", "max_ptr": "*fp32", "sum_ptr": "*fp32"}
    outputs |= {"sinks_ptr": "*fp32", "reach_ptr": "*i64"}
    strides = ("q_stride", "table_stride", "cache_block_stride", "cache_slot_stride", "cache_head_stride")
    integers = dict.fromkeys(("num_seqs", "window", *strides), "i32")
    return CompileCase(
        name,
        attend_kernel,
        pointers | indices | outputs | integers | {"scale_log2": "fp32", "cap": "fp32"},
        {
            "CAPPED": False,
            "SINKS": False,
            "REACH": False,
            "TILED": False,
            "H": 32,
            "GROUP": 4,
            "HD": head_dim,
            "HD_PAD": next_power_of_2(head_dim),
            "BLOCK_SIZE": block_size,
            "BLOCK_M": config["block_m"],
            "BLOCK_Q": 1 if segments else config["block_m"] // 4,
            "TILE": config["tile"],
            "PAGES": in_pages,
            "SEGMENTS": max(segments, 1),
            "DECODE": segments > 0,
        }
        | constants,
        config,
        # A warp group multiplies at least 64 rows. With so many, heads of 512 spilled.
        ("wgmma",) if config["block_m"] >= 64 else ("mma.sync",),
    )

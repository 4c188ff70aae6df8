"""Launch the Triton kernels of `paged_attention` that give a query the same bits in any batch."""

from collections.abc import Iterator

import torch
from torch import Tensor

from plumbline_kernels._attention_batch import AttentionBatch
from plumbline_kernels._backend import CompileCase, capability_of, cdiv, next_power_of_2, tuning
from plumbline_kernels.attention._exact_kernels import exact_kernel, join_kernel

__all__ = ["compile_cases", "launch_exact"]

_LENGTH = 512
"""Keys of a segment: fewer keep more of a GPU busy with one long request, more cost prompts fewer joins."""
_FULL = 256
"""Programs that fill a GPU."""
_HEAD_SIZES = (64, 128, 256, 512)
_LOG2E = 1.4426950408889634


def launch_exact(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    batch: AttentionBatch,
    scale: float,
    window: int,
    softcap: float | None,
    sinks: Tensor | None,
    tiled: bool,
) -> None:
    """Compute `paged_attention` into `out`, decodes and prompts as two launches of one kernel."""
    num_seqs = len(batch.seq_lens)
    num_decodes = num_seqs if batch.max_query_len == 1 else batch.num_decodes
    _, num_heads, head_dim = q.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = num_heads // num_kv_heads
    parts = [(slice(0, num_decodes), True), (slice(num_decodes, num_seqs), False)]
    for seqs, decode in parts:
        count = seqs.stop - seqs.start
        if not count:
            continue
        config = config_of(decode, group, head_dim, capability_of(q.device))
        block_q = 1 if decode else config["block_m"] // group
        blocks = count if decode else (len(q) - num_decodes) // block_q + count
        places = cdiv(batch.max_seq_len, _LENGTH)
        shares = num_shares(blocks * num_kv_heads, places) if decode else 1
        results, maxima, sums = out, out, out
        if shares > 1:
            shape = (count, num_heads, places)
            results = torch.empty((*shape, head_dim), dtype=torch.float32, device=q.device)
            maxima, sums = torch.empty((2, *shape), dtype=torch.float32, device=q.device)
        exact_kernel[(blocks, num_kv_heads, shares)](
            q,
            k_cache,
            v_cache,
            results,
            maxima,
            sums,
            batch.query_start_loc[seqs.start :],
            batch.seq_lens[seqs.start :],
            batch.block_tables[seqs.start :],
            out if sinks is None else sinks,
            out if batch.reach is None else batch.reach,
            count,
            places,
            q.stride(0),
            batch.block_tables.stride(0),
            k_cache.stride(0),
            k_cache.stride(1),
            k_cache.stride(2),
            scale * _LOG2E * (2.0 / softcap if softcap else 1.0),
            window,
            (softcap or 0.0) * _LOG2E,
            H=num_heads,
            GROUP=group,
            HD=head_dim,
            HD_PAD=max(next_power_of_2(head_dim), 16),
            BLOCK_SIZE=block_size,
            BLOCK_M=config["block_m"],
            BLOCK_Q=block_q,
            TILE=config["tile"],
            TILES=_LENGTH // config["tile"],
            DECODE=decode,
            SPLIT=shares > 1,
            CAPPED=softcap is not None,
            SINKS=sinks is not None,
            REACH=not decode and batch.reach is not None,
            TILED=tiled,
            num_warps=config["num_warps"],
            num_stages=config["num_stages"],
        )
        if shares > 1:
            join_kernel[(count * num_heads,)](
                results,
                maxima,
                sums,
                out,
                batch.seq_lens,
                out if sinks is None else sinks,
                places,
                window,
                H=num_heads,
                HD=head_dim,
                HD_PAD=max(next_power_of_2(head_dim), 16),
                LENGTH=_LENGTH,
                SINKS=sinks is not None,
                TILED=tiled,
                num_warps=1,
            )


def num_shares(programs: int, segments: int) -> int:
    """Return how many programs share the segments of a decode; bits do not depend on it."""
    return max(min(_FULL // max(programs, 1), segments), 1)


def config_of(decode: bool, group: int, head_dim: int, capability: int = 90) -> dict[str, int]:
    """Return tiles that give a row the same bits: the same keys, and as many rows in a warp, decoded or not."""
    size = next(size for size in _HEAD_SIZES if head_dim <= size)
    small = tuning(f"attention_exact_decode_{size}", capability)
    if decode and group <= small["block_m"]:
        return small
    config = tuning(f"attention_exact_prefill_{size}", capability)
    return config | {"block_m": max(config["block_m"], next_power_of_2(group))}


def compile_cases(capability: int = 90) -> Iterator[CompileCase]:
    """Yield decodes, whole and split, and prompts for the head sizes in use, with blocks of 16, and the join."""
    for head_dim in (64, 80, 96, 128, 192, 256, 512):
        for kind in ("prompt", "decode", "split"):
            yield _case(f"exact attention hd={head_dim} {kind}", head_dim, kind, capability)
        yield CompileCase(
            f"exact attention join hd={head_dim}",
            join_kernel,
            {f"{tensor}_ptr": "*fp32" for tensor in ("parts", "max", "sum", "sinks")}
            | {"out_ptr": "*bf16", "seq_lens_ptr": "*i32", "places": "i32", "window": "i32"},
            {"H": 32, "HD": head_dim, "HD_PAD": next_power_of_2(head_dim), "LENGTH": _LENGTH}
            | {"SINKS": True, "TILED": False},
            {"num_warps": 1},
        )
    for kind in ("prompt", "split"):
        yield _case(f"exact attention hd=128 {kind}, capped", 128, kind, capability, CAPPED=True, SINKS=True)
    yield _case("exact attention hd=128, with reach", 128, "prompt", capability, REACH=True)
    yield _case("exact attention hd=128, windows side by side", 128, "prompt", capability, TILED=True)


def _case(name: str, head_dim: int, kind: str, capability: int, **constants: bool) -> CompileCase:
    decode = kind != "prompt"
    config = config_of(decode, 4, head_dim, capability)
    strides = ("q_stride", "table_stride", "cache_block_stride", "cache_slot_stride", "cache_head_stride")
    return CompileCase(
        name,
        exact_kernel,
        {f"{tensor}_ptr": "*bf16" for tensor in ("q", "k_cache", "v_cache")}
        | {f"{tensor}_ptr": "*i32" for tensor in ("query_start", "seq_lens", "block_tables")}
        | {"out_ptr": "*fp32" if kind == "split" else "*bf16", "max_ptr": "*fp32", "sum_ptr": "*fp32"}
        | {"sinks_ptr": "*fp32", "reach_ptr": "*i64", "scale_log2": "fp32", "cap": "fp32"}
        | dict.fromkeys(("num_seqs", "places", "window", *strides), "i32"),
        dict.fromkeys(("CAPPED", "SINKS", "REACH", "TILED"), False)
        | {
            "H": 32,
            "GROUP": 4,
            "HD": head_dim,
            "HD_PAD": next_power_of_2(head_dim),
            "BLOCK_SIZE": 16,
            "BLOCK_M": config["block_m"],
            "BLOCK_Q": 1 if decode else config["block_m"] // 4,
            "TILE": config["tile"],
            "TILES": _LENGTH // config["tile"],
            "DECODE": decode,
            "SPLIT": kind == "split",
        }
        | constants,
        config,
        ("wgmma",),
    )

"""Compute attention over the paged cache, for any mix of decodes and prefill chunks in one call.

A sequence in a step:

    |<------------- seq_len -------------->|
    |<---- context_len ---->|<- query_len ->|
      keys in the cache       new tokens, whose keys and values are in the cache as well

Token i of the chunk is at position context_len + i and attends to all positions up to its own, or up to a later one of
the chunk (`AttentionBatch.reach`); with a sliding window w, position p attends to none before p - w + 1, and with
windows side by side to none before p // w * w. Slots that a sequence does not own may hold anything, NaN included.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels._attention_batch import AttentionBatch
from plumbline_kernels._backend import cdiv, check, use_triton
from plumbline_kernels.attention import _triton
from plumbline_kernels.attention._capped import Capped

__all__ = ["paged_attention", "paged_attention_torch"]


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    tiled: bool = False,
) -> Tensor:
    """Attend with `q` [T, H, hd] to the cached keys and values [num_blocks, block_size, KV, hd]; returns [T, H, hd].

    Query head h reads the key head h // (H // KV). Rows that belong to no sequence come back as zeros. With `softcap`
    c, a scaled score s becomes c * tanh(s / c). `sinks`, fp32 [H], are scores of one more key, whose value is zero.
    With `tiled`, windows are side by side.
    """
    check(q.dim() == 3, "paged_attention: q must be [T, H, hd]")
    check(k_cache.shape == v_cache.shape, "paged_attention: k_cache and v_cache must have the same shape")
    check(q.shape[2] == k_cache.shape[3], "paged_attention: q and the cache differ in head_dim")
    check(q.shape[1] % k_cache.shape[2] == 0, "paged_attention: query heads must be a multiple of key heads")
    check(q.dtype == k_cache.dtype == v_cache.dtype, "paged_attention: q and the caches must share a dtype")
    check(sliding_window is None or sliding_window > 0, "paged_attention: sliding_window must be positive")
    check(
        sinks is None or sinks.shape == (q.shape[1],), "paged_attention: sinks must have one score per head"
    )
    if use_triton(q):
        return _triton.launch(q, k_cache, v_cache, batch, scale, sliding_window, softcap, sinks, tiled)
    return paged_attention_torch(q, k_cache, v_cache, batch, scale, sliding_window, softcap, sinks, tiled)


_Attend = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]


class _Window(NamedTuple):
    """The keys before a query that it attends to."""

    size: int | None  # None for all
    tiled: bool

    def first(self, position: Tensor) -> Tensor:
        """Return the first position that each position attends to."""
        if self.size is None:
            return torch.zeros_like(position)
        if self.tiled:
            return position // self.size * self.size
        return (position - (self.size - 1)).clamp_(min=0)


class _Decodes(NamedTuple):
    """One gather for all decodes, padded to the longest."""

    num_seqs: int
    slots: Tensor  # int64 [num_seqs * length]; padding repeats the sequence's last own slot
    mask: Tensor  # additive [num_seqs, 1, 1, length]


class _Block(NamedTuple):
    """Consecutive queries of a chunk, with the keys that they attend to."""

    tokens: slice
    keys: slice  # of the chunk's keys
    mask: Tensor  # additive [queries, 1, 1, keys]


class _Chunk(NamedTuple):
    """One prefill chunk."""

    slots: Tensor  # int64 [keys]; padding repeats the sequence's last own slot
    blocks: list[_Block]


def paged_attention_torch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    tiled: bool = False,
) -> Tensor:
    """Compute `paged_attention` in torch: one gather and one SDPA call for all decodes, one call per block of a chunk.

    The keys of a decode are laid out so that they are summed in the same order in any batch: see `_PADDING` and
    `_SPLIT`. If the batch is `exact`, each query of a chunk is computed like a decode, with broadcast keys.
    """
    num_tokens, num_heads, head_dim = q.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    window = _Window(sliding_window, tiled)
    key = (window, block_size, q.dtype)
    plan = batch.plans.get(key)
    if plan is None:
        plan = batch.plans[key] = _plan(batch, block_size, window, q.dtype)
    decodes, chunks = plan
    if softcap is not None or sinks is not None:
        capped = Capped(softcap, sinks, batch.exact)
        attend: _Attend = capped.attend
        attend_block: _Attend = capped.attend_block
    else:
        attend = partial(_attend, exact=batch.exact)
        attend_block = partial(_attend_block, exact=batch.exact)
    k_flat = k_cache.view(-1, num_kv_heads, head_dim)
    v_flat = v_cache.view(-1, num_kv_heads, head_dim)

    attended = None
    if decodes is not None:
        shape = (decodes.num_seqs, -1, num_kv_heads, head_dim)
        k = k_flat.index_select(0, decodes.slots).view(shape).transpose(1, 2)
        v = v_flat.index_select(0, decodes.slots).view(shape).transpose(1, 2)
        rows = q if decodes.num_seqs == num_tokens else q[: decodes.num_seqs]
        attended = attend(rows, k, v, decodes.mask, scale)
        if decodes.num_seqs == num_tokens:
            return attended

    out = q.new_zeros(num_tokens, num_heads, head_dim)
    if decodes is not None and attended is not None:
        out[: decodes.num_seqs] = attended
    for slots, blocks in chunks:
        k_chunk = k_flat.index_select(0, slots).transpose(0, 1).unsqueeze(0)
        v_chunk = v_flat.index_select(0, slots).transpose(0, 1).unsqueeze(0)
        for tokens, keys, mask in blocks:
            out[tokens] = attend_block(q[tokens], k_chunk[:, :, keys], v_chunk[:, :, keys], mask, scale)
    return out


def _attend_block(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, exact: bool) -> Tensor:
    """Attend with queries of a chunk, q [Q, H, hd], to keys that they share [1, KV, L, hd]; returns [Q, H, hd]."""
    if exact:
        k, v = (x.expand(mask.shape[0], -1, -1, -1) for x in (k, v))
        return _attend(q, k, v, mask, scale, exact=True)
    rows = q.transpose(0, 1).unsqueeze(0)
    rows = F.scaled_dot_product_attention(
        rows, k, v, mask[:, 0, 0], scale=scale, enable_gqa=rows.shape[1] != k.shape[1]
    )
    return rows[0].transpose(0, 1)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, exact: bool) -> Tensor:
    """Attend with one query per entry, q [N, H, hd], to its keys [N, KV, L, hd]; returns [N, H, hd].

    The query heads of one key head act as the rows of one matrix, so no key is copied per query head. With several
    rows BLAS may sum in an order that depends on the number of keys (MKL on Intel CPUs does for two rows of fp32), so
    an exact batch computes one row at a time.
    """
    num_queries, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    rows = q.view(num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    if exact and q.dtype == torch.float16:
        # BLAS sums fp16 in an order that depends on the number of keys, even for one row.
        return _attend(q.float(), k.float(), v.float(), mask.float(), scale, exact=True).to(q.dtype)
    if exact or (rows.shape[2] == 2 and q.dtype == torch.float32):
        parts = torch.split(rows, 1, 2)
        out = torch.cat([F.scaled_dot_product_attention(part, k, v, mask, scale=scale) for part in parts], 2)
    else:
        out = F.scaled_dot_product_attention(rows, k, v, mask, scale=scale)
    return out.reshape(num_queries, num_heads, head_dim)


_PADDING = 16
"""Keys are padded to a multiple of this, the width of a vector, so that a sum ends the same way for any length."""

_SPLIT = 512
"""Keys start at a multiple of this, the number that torch's CPU kernel takes at a time, so that the key of a position
is always at the same place in the same pass."""

_QUERIES = 128
"""Queries of a chunk that share their keys: fewer waste less on keys that causality hides, more save calls."""


def _plan(
    batch: AttentionBatch, block_size: int, window: _Window, dtype: torch.dtype
) -> tuple[_Decodes | None, list[_Chunk]]:
    num_seqs = batch.seq_lens.shape[0]
    num_decodes = num_seqs if batch.max_query_len == 1 else batch.num_decodes
    decodes = _plan_decodes(batch, num_decodes, block_size, window, dtype) if num_decodes else None
    if num_decodes == num_seqs:
        return decodes, []
    starts = batch.query_start_loc[num_decodes:].tolist()
    seq_lens = batch.seq_lens[num_decodes:].tolist()
    tables = batch.block_tables[num_decodes:].long()
    chunks = [
        _plan_chunk(table, start, stop, seq_len, block_size, window, dtype, batch.reach)
        for table, start, stop, seq_len in zip(tables, starts[:-1], starts[1:], seq_lens, strict=True)
        if stop > start
    ]
    return decodes, chunks


def _plan_decodes(
    batch: AttentionBatch, count: int, block_size: int, window: _Window, dtype: torch.dtype
) -> _Decodes:
    last = (batch.seq_lens[:count].unsqueeze(1).long() - 1).clamp_(min=0)
    length = batch.max_seq_len if count == batch.seq_lens.shape[0] else int(last.max()) + 1
    if window.size is None or window.size >= length:
        wanted = _offsets(cdiv(length, _PADDING) * _PADDING)
        hidden = wanted > last
    else:
        first = window.first(last)
        start = first // _SPLIT * _SPLIT
        length = int((last - start).max()) + 1
        wanted = _offsets(cdiv(length, _PADDING) * _PADDING) + start
        hidden = (wanted > last) | (wanted < first)
    # Padding reads the sequence's own last slot: what it holds is finite, and the mask gives it no weight.
    positions = torch.minimum(wanted, last)
    slots = batch.block_tables[:count].long().gather(1, positions // block_size)
    slots = slots.mul_(block_size).add_(positions % block_size)
    return _Decodes(count, slots.flatten(), _additive(hidden, dtype))


@lru_cache(maxsize=64)
def _offsets(length: int) -> Tensor:
    """Return 0 .. length - 1 as a row; cached, because a decoding batch asks for the same length many times."""
    return torch.arange(length).unsqueeze(0)


def _plan_chunk(
    table: Tensor,
    start: int,
    stop: int,
    seq_len: int,
    block_size: int,
    window: _Window,
    dtype: torch.dtype,
    reach: Tensor | None = None,
) -> _Chunk:
    def first_key(position: int) -> int:
        """Return the first key position of the block that begins with the query at `position`."""
        return int(window.first(torch.tensor(position))) // _SPLIT * _SPLIT

    context_len = seq_len - (stop - start)
    base = first_key(context_len)
    keys = torch.arange(base, cdiv(seq_len, _PADDING) * _PADDING).clamp_(max=seq_len - 1)
    slots = table[keys // block_size] * block_size + keys % block_size
    blocks = []
    for position in range(context_len, seq_len, _QUERIES):
        end = min(position + _QUERIES, seq_len)
        token = start + position - context_len
        far = torch.arange(position, end) if reach is None else reach[token : token + end - position]
        first, last = first_key(position), cdiv(int(far[-1]) + 1, _PADDING) * _PADDING
        wanted = torch.arange(first, last)
        hidden = wanted > far.unsqueeze(1)
        if window.size is not None:
            hidden |= wanted < window.first(torch.arange(position, end)).unsqueeze(1)
        tokens = slice(token, token + end - position)
        blocks.append(_Block(tokens, slice(first - base, last - base), _additive(hidden, dtype)))
    return _Chunk(slots, blocks)


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to the scores, [queries, 1, 1, keys]: -inf where `hidden` [queries, keys] is set."""
    return torch.where(hidden, float("-inf"), 0.0).to(dtype)[:, None, None]

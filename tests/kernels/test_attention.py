"""Laws of the attention reference, against one that computes one query and one head at a time."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.weights.reach import reach_of_runs
from torch import Tensor

from plumbline_kernels.attention import AttentionBatch, paged_attention

torch.set_num_threads(1)
SETTINGS = settings(max_examples=EXPLORED or 20, deadline=None)


@dataclass
class Case:
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    batch: AttentionBatch
    owned: list[list[int]]  # the blocks of each sequence


def make_case(
    lens: list[tuple[int, int]],
    group: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    padding: int = 0,
    exact: bool = False,
) -> Case:
    """A batch of (context_len, query_len), decodes first, over scattered blocks; all else in the cache is NaN."""
    lens = sorted(lens, key=lambda item: item[1] != 1)
    generator = torch.Generator().manual_seed(seed)
    seq_lens = [context + query for context, query in lens]
    counts = [-(-length // block_size) for length in seq_lens]
    num_blocks = sum(counts) + 2
    order = torch.randperm(num_blocks, generator=generator).tolist()
    owned = []
    for count in counts:
        owned.append(order[:count])
        order = order[count:]
    caches = [
        torch.full((num_blocks, block_size, kv_heads, head_dim), float("nan"), dtype=dtype) for _ in "kv"
    ]
    for blocks, length in zip(owned, seq_lens, strict=True):
        at = torch.tensor([blocks[p // block_size] * block_size + p % block_size for p in range(length)])
        for cache in caches:
            cache.view(-1, kv_heads, head_dim)[at] = torch.randn(
                length, kv_heads, head_dim, generator=generator
            ).to(dtype)
    width = max(counts)
    starts = [0]
    for _, query in lens:
        starts.append(starts[-1] + query)
    positions = [p for context, query in lens for p in range(context, context + query)] + [0] * padding
    batch = AttentionBatch(
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=torch.tensor([b + [0] * (width - len(b)) for b in owned], dtype=torch.int32),
        slot_mapping=torch.full((len(positions),), -1),
        positions=torch.tensor(positions),
        max_query_len=max(query for _, query in lens),
        max_seq_len=max(seq_lens),
        num_decodes=sum(query == 1 for _, query in lens),
        exact=exact,
    )
    q = torch.randn(len(positions), group * kv_heads, head_dim, generator=generator).to(dtype)
    return Case(q, caches[0], caches[1], batch, owned)


def naive(
    case: Case,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    tiled: bool = False,
) -> Tensor:
    """Softmax over the visible keys of each query and head, and its sink, in fp64."""
    block_size, kv_heads = case.k_cache.shape[1:3]
    group = case.q.shape[1] // kv_heads
    out = torch.zeros(case.q.shape, dtype=torch.float64)
    starts = case.batch.query_start_loc.tolist()
    for index, length in enumerate(case.batch.seq_lens.tolist()):
        context = length - (starts[index + 1] - starts[index])
        for token in range(starts[index], starts[index + 1]):
            position = context + token - starts[index]
            first = 0 if window is None else max(0, position - window + 1)
            if window is not None and tiled:
                first = position // window * window
            last = position if case.batch.reach is None else int(case.batch.reach[token])
            at = [(case.owned[index][p // block_size], p % block_size) for p in range(first, last + 1)]
            for head in range(case.q.shape[1]):
                keys = torch.stack([case.k_cache[block, slot, head // group] for block, slot in at]).double()
                values = torch.stack(
                    [case.v_cache[block, slot, head // group] for block, slot in at]
                ).double()
                scores = keys @ case.q[token, head].double() * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                if sinks is not None:
                    scores = torch.cat((scores, sinks[head : head + 1].double()))
                out[token, head] = torch.softmax(scores, 0)[: len(values)] @ values
    return out


lengths = st.lists(st.tuples(st.integers(0, 20), st.sampled_from([1, 1, 1, 2, 5, 9])), min_size=1, max_size=4)


@SETTINGS
@given(
    lens=lengths,
    group=st.sampled_from([1, 2, 3]),
    kv_heads=st.sampled_from([1, 2]),
    head_dim=st.sampled_from([4, 8]),
    block_size=st.sampled_from([1, 3, 4, 16]),
    window=st.none() | st.integers(1, 24),
    tiled=st.booleans(),
    padding=st.integers(0, 2),
    exact=st.booleans(),
    softcap=st.sampled_from([None, None, 0.5, 20.0]),
    has_sinks=st.booleans(),
    run=st.sampled_from([0, 0, 2, 4]),
    seed=st.integers(0, 1000),
)
def test_any_mix_of_decodes_and_chunks_attends_as_each_query_would_alone(
    lens: list[tuple[int, int]],
    group: int,
    kv_heads: int,
    head_dim: int,
    block_size: Any,
    window: int,
    tiled: Any,
    padding: Any,
    exact: Any,
    softcap: Any,
    has_sinks: Any,
    run: Any,
    seed: int,
) -> None:
    """Paging, raggedness, grouping, windows and padding change nothing, and unowned slots are never read."""
    case = make_case(lens, group, kv_heads, head_dim, block_size, seed, padding=padding, exact=exact)
    if run:
        case.batch = replace(case.batch, reach=reach_of_runs(case.batch, run))
    scale = 1 / math.sqrt(head_dim)
    sinks = torch.randn(group * kv_heads, generator=torch.Generator().manual_seed(seed)) * 3
    parts = (scale, window, softcap, sinks if has_sinks else None, tiled)
    out = paged_attention(case.q, case.k_cache, case.v_cache, case.batch, *parts)
    torch.testing.assert_close(out.double(), naive(case, *parts), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)], ids=str)
@pytest.mark.parametrize("window", [None, 11])
def test_half_precision_stays_near_the_reference(dtype: torch.dtype, tolerance: float, window: int) -> None:
    case = make_case([(30, 1), (0, 13), (7, 6), (3, 1)], 2, 2, 16, 8, seed=5, dtype=dtype)
    out = paged_attention(case.q, case.k_cache, case.v_cache, case.batch, 0.25, window)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), naive(case, 0.25, window), atol=tolerance, rtol=tolerance)


def alone(
    case: Case,
    sequence: int,
    query_len: int,
    seq_len: int,
    window: int | None,
    exact: bool,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The last `query_len` queries up to `seq_len` of a sequence, computed by themselves."""
    start = (
        int(case.batch.query_start_loc[sequence + 1])
        - int(case.batch.seq_lens[sequence])
        + seq_len
        - query_len
    )
    batch = AttentionBatch(
        query_start_loc=torch.tensor([0, query_len], dtype=torch.int32),
        seq_lens=torch.tensor([seq_len], dtype=torch.int32),
        block_tables=case.batch.block_tables[sequence : sequence + 1],
        slot_mapping=torch.full((query_len,), -1),
        positions=torch.arange(seq_len - query_len, seq_len),
        max_query_len=query_len,
        max_seq_len=seq_len,
        num_decodes=int(query_len == 1),
        exact=exact,
    )
    q = case.q[start : start + query_len]
    return paged_attention(q, case.k_cache, case.v_cache, batch, 0.2, window, softcap, sinks)


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize(
    ("dtype", "window", "capped"),
    [
        *itertools.product([torch.float32], [None, 530], [False, True]),
        (torch.float32, 50, False),
        # The type of the numbers changes the products, and no mask.
        *itertools.product([torch.bfloat16, torch.float16], [None], [False, True]),
    ],
)
def test_in_an_exact_batch_a_query_has_the_same_bits_whatever_is_around_it(
    group: int, dtype: torch.dtype, window: int, capped: bool
) -> None:
    """Other sequences, the longest length, the size of the chunk, decode or prefill: none touches a bit of a row."""
    lens = [(4, 1), (1099, 1), (0, 131), (500, 140), (63, 1)]
    case = make_case(lens, group, 2, 32, 16, seed=group, dtype=dtype, exact=True)
    parts = (20.0, torch.linspace(-3, 3, 2 * group)) if capped else (None, None)
    together = paged_attention(case.q, case.k_cache, case.v_cache, case.batch, 0.2, window, *parts)
    starts = case.batch.query_start_loc.tolist()
    for sequence, seq_len in enumerate(case.batch.seq_lens.tolist()):
        query_len = starts[sequence + 1] - starts[sequence]
        rows = together[starts[sequence] : starts[sequence + 1]]
        for size in (1, 7, 130, query_len):
            if size <= query_len - 8 or size == query_len:
                for end in {seq_len, seq_len - (query_len - size) // 2}:
                    offset = end - seq_len + query_len
                    expected = rows[offset - size : offset]
                    assert torch.equal(alone(case, sequence, size, end, window, True, *parts), expected), (
                        sequence,
                        size,
                        end,
                    )


@DTYPES
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("window", [None, 50, 530])
def test_a_decode_has_the_same_bits_in_any_batch(dtype: torch.dtype, group: int, window: int) -> None:
    """Also without `exact`, for up to two query heads per key head."""
    case = make_case(
        [(4, 1), (1099, 1), (300, 1), (63, 1), (0, 70)], group, 2, 32, 16, seed=group, dtype=dtype
    )
    together = paged_attention(case.q, case.k_cache, case.v_cache, case.batch, 0.2, window)
    for sequence, seq_len in enumerate(case.batch.seq_lens.tolist()[:4]):
        assert torch.equal(alone(case, sequence, 1, seq_len, window, False)[0], together[sequence])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: (c.q[0], c.k_cache, c.v_cache), r"q must be \[T, H, hd\]"),
        (lambda c: (c.q, c.k_cache[:1], c.v_cache), "the same shape"),
        (lambda c: (c.q[..., :4], c.k_cache, c.v_cache), "head_dim"),
        (lambda c: (c.q[:, :3], c.k_cache, c.v_cache), "multiple"),
        (lambda c: (c.q.half(), c.k_cache, c.v_cache), "dtype"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change: Any, message: str) -> None:
    case = make_case([(3, 1), (2, 4)], 2, 2, 8, 4, seed=1)
    with pytest.raises(ValueError, match=message):
        paged_attention(*change(case), case.batch, 1.0)  # type: ignore[call-arg]

"""Compare the Triton kernels under the interpreter with their torch references; test_triton.py runs this file.

The interpreter must be chosen before Triton is imported, and it computes garbage for bf16, so fp32 and fp16 only.
Shapes are tiny: a program costs up to a millisecond.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.weights.model_families import CASES
from support.weights.reach import reach_of_runs
from torch import Tensor
from triton.runtime import interpreter

from plumbline.engines.native.models import describe, random_model
from plumbline_kernels import (
    _backend,
    attention,
    latent,
    logits,
    lora,
    norm,
    rope_kv,
    sampling,
    swiglu,
)
from plumbline_kernels.attention import _triton as attention_triton
from plumbline_kernels.latent import _triton as latent_triton
from plumbline_kernels.sampling import _limits

assert os.environ.get("TRITON_INTERPRET") == os.environ.get("PLUMBLINE_FORCE_TRITON") == "1"

DTYPES = [torch.float32, torch.float16]
TOLERANCE: dict[torch.dtype, Any] = {
    torch.float32: {"atol": 2e-6, "rtol": 2e-5},
    torch.float16: {"atol": 2e-3, "rtol": 2e-3},
}
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture
def randn() -> object:
    generator = torch.Generator().manual_seed(1)

    def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    return make


@dtypes
@pytest.mark.parametrize("width", [48, 64])
def test_rms_norm(dtype: torch.dtype, width: int, randn: Callable[..., torch.Tensor]) -> None:
    x, residual, weight = randn(5, width, dtype=dtype), randn(5, width, dtype=dtype), randn(width)
    torch.testing.assert_close(
        norm.rms_norm(x, weight, 1e-5), norm.rms_norm_torch(x, norm.twice(weight), 1e-5), **TOLERANCE[dtype]
    )
    for factor in (1.0, 0.3):
        total = (residual.float() + factor * x.float()).to(dtype)
        normed, updated = norm.add_rms_norm(x, residual.clone(), weight, 1e-5, factor)
        torch.testing.assert_close(updated, total, **TOLERANCE[dtype])
        torch.testing.assert_close(
            normed, norm.rms_norm_torch(total, norm.twice(weight), 1e-5), **TOLERANCE[dtype]
        )
    assert norm.add_rms_norm(x, residual, weight, 1e-5)[1] is residual


@dtypes
@pytest.mark.parametrize("shift", [False, True])
def test_layer_norm(dtype: torch.dtype, shift: float, randn: Callable[..., torch.Tensor]) -> None:
    x, residual, weight = randn(5, 48, dtype=dtype) + 1, randn(5, 48, dtype=dtype), randn(48)
    bias = randn(48) if shift else None
    expected = norm.layer_norm_torch(x, weight, bias, 1e-5)
    torch.testing.assert_close(norm.layer_norm(x, weight, bias, 1e-5), expected, **TOLERANCE[dtype])
    total = (residual.float() + 0.3 * x.float()).to(dtype)
    normed, updated = norm.add_layer_norm(x, residual, weight, bias, 1e-5, 0.3)
    torch.testing.assert_close(updated, total, **TOLERANCE[dtype])
    torch.testing.assert_close(normed, norm.layer_norm_torch(total, weight, bias, 1e-5), **TOLERANCE[dtype])


@dtypes
def test_gates(dtype: torch.dtype, randn: Callable[..., torch.Tensor]) -> None:
    gate_up = randn(3, 2 * 1100, dtype=dtype)[:, :2060]
    torch.testing.assert_close(swiglu.silu_mul(gate_up), swiglu.silu_mul_torch(gate_up), **TOLERANCE[dtype])
    torch.testing.assert_close(swiglu.gelu_mul(gate_up), swiglu.gelu_mul_torch(gate_up), **TOLERANCE[dtype])
    torch.testing.assert_close(swiglu.gelu(gate_up), swiglu.gelu_torch(gate_up), **TOLERANCE[dtype])
    torch.testing.assert_close(swiglu.relu2(gate_up), swiglu.relu2_torch(gate_up), **TOLERANCE[dtype])
    torch.testing.assert_close(swiglu.relu(gate_up), swiglu.relu_torch(gate_up), **TOLERANCE[dtype])
    torch.testing.assert_close(swiglu.gelu_erf(gate_up), swiglu.gelu_erf_torch(gate_up), **TOLERANCE[dtype])
    torch.testing.assert_close(
        swiglu.gelu_erf_mul(gate_up), swiglu.gelu_erf_mul_torch(gate_up), **TOLERANCE[dtype]
    )
    gate_up *= 5
    torch.testing.assert_close(swiglu.oss_mul(gate_up), swiglu.oss_mul_torch(gate_up), **TOLERANCE[dtype])


@dtypes
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(("tokens", "inputs", "outputs", "rank"), [(1, 40, 24, 16), (23, 70, 40, 48)])
def test_lora_add(
    dtype: torch.dtype,
    splits: int,
    tokens: int,
    inputs: int,
    outputs: int,
    rank: int,
    randn: Callable[..., torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows without an adapter, groups of more than a block, and rows of y that are part of wider ones."""
    small = {"block_m": 16, "block_n": 16, "block_k": 16, "block_r": 32, "num_warps": 4, "num_stages": 1}
    monkeypatch.setattr(lora, "tuning", lambda name, *_: small)
    monkeypatch.setattr(lora, "_num_splits", lambda programs, tiles: splits)
    x, whole = randn(tokens, inputs, dtype=dtype), randn(tokens, outputs + 8, dtype=dtype)
    down, up = randn(3, rank, inputs, dtype=dtype) / 8, randn(3, outputs, rank, dtype=dtype) / 8
    owners = [2] if tokens == 1 else [0] * 3 + [2] * 17 + [None] * 3
    rows = torch.tensor([row for row, owner in enumerate(owners) if owner is not None])
    adapted = (
        lora.AdapterRows(rows, (2,), (0, 1)) if tokens == 1 else lora.AdapterRows(rows, (0, 2), (0, 3, 20))
    )
    y, expected = whole.clone()[:, :outputs], whole.clone()[:, :outputs]
    assert lora.lora_add(x, y, down, up, adapted) is y
    for row, owner in enumerate(owners):
        if owner is not None:
            hidden = (x[row].float() @ down[owner].float().t()).to(dtype)
            expected[row] += (hidden.float() @ up[owner].float().t()).to(dtype)
    torch.testing.assert_close(y, expected, **TOLERANCE[dtype])
    assert not torch.equal(y, whole[:, :outputs])


@dtypes
@pytest.mark.parametrize("norms", ["none", "rms", "layer", "whole", "after", "values"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 16), (4, 4, 24), (10, 1, 32)])
def test_rope_kv_write(
    dtype: torch.dtype,
    norms: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    randn: Callable[..., torch.Tensor],
) -> None:
    qkv = randn(5, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    cos_sin, positions = randn(50, head_dim), torch.tensor([3, 49, 0, 7, 1])
    slots = torch.tensor([9, -1, 0, 31, 17])
    given = None
    if norms != "none":
        given = rope_kv.HeadNorms(
            randn(heads + kv_heads, head_dim),
            1e-5,
            norms == "layer",
            norms == "whole",
            norms == "after",
            norms == "values",
        )
    temperature = randn(50)
    for table, factors in ((cos_sin, None), (None, None), (cos_sin, temperature)):
        ours: Any = [torch.full((8, 4, kv_heads, head_dim), 7.0, dtype=dtype) for _ in "kv"]
        expected: Any = [cache.clone() for cache in ours]
        q = rope_kv.rope_kv_write(
            qkv.clone(),
            table,
            positions,
            slots,
            ours[0],
            ours[1],
            heads,
            kv_heads,
            given,
            temperature=factors,
        )
        plan = rope_kv.plan_rope(table, positions, slots, factors)
        expected_q = rope_kv.rope_kv_write_torch(qkv, plan, expected[0], expected[1], heads, given)
        torch.testing.assert_close(q, expected_q, **TOLERANCE[dtype])
        for cache, expected_cache in zip(ours, expected, strict=True):
            torch.testing.assert_close(cache, expected_cache, **TOLERANCE[dtype])


def make_batch(lens: list[tuple[int, int]], block_size: int, padding: int = 0) -> attention.AttentionBatch:
    """A batch of (query_len, seq_len), decodes first, over scattered blocks."""
    num_blocks = sum(-(-seq // block_size) for _, seq in lens)
    order = [(5 * i + 2) % (num_blocks + 1) for i in range(num_blocks + 1)] if (num_blocks + 1) % 5 else None
    free = order or list(range(num_blocks + 1))
    width = max(-(-seq // block_size) for _, seq in lens) + 1
    tables, starts = [], [0]
    for query, seq in lens:
        count = -(-seq // block_size)
        tables.append(free[:count] + [0] * (width - count))
        free = free[count:]
        starts.append(starts[-1] + query)
    tokens = starts[-1] + padding
    return attention.AttentionBatch(
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor([seq for _, seq in lens], dtype=torch.int32),
        block_tables=torch.tensor(tables, dtype=torch.int32),
        slot_mapping=torch.full((tokens,), -1),
        positions=torch.zeros(tokens, dtype=torch.int64),
        max_query_len=max(query for query, _ in lens),
        max_seq_len=max(seq for _, seq in lens),
        num_decodes=sum(query == 1 for query, _ in lens),
    )


SMALL = {"block_m": 16, "tile": 16, "num_warps": 4, "num_stages": 1}


@dtypes
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(
    ("lens", "heads", "kv_heads", "head_dim", "segments"),
    [
        ([(1, 1), (1, 40), (1, 17)], 4, 2, 16, 1),
        ([(1, 5), (1, 70)], 6, 2, 24, 4),
        ([(7, 7), (20, 41)], 6, 2, 16, 1),
        ([(1, 33), (13, 13), (2, 19)], 3, 1, 32, 2),
        ([(9, 30)], 2, 2, 16, 1),
    ],
)
def test_paged_attention(
    dtype: torch.dtype,
    window: int | None,
    lens: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    head_dim: int,
    segments: int,
    randn: Callable[..., torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slots that no sequence owns contain NaN; in half precision prompts are read page by page."""
    pages = dtype == torch.float16
    monkeypatch.setattr(attention_triton, "_tiles", lambda decode, *_: (SMALL, pages and not decode))
    monkeypatch.setattr(attention_triton, "num_segments", lambda programs, length, tile: segments)
    block_size = 16 if pages else 8
    batch = make_batch(lens, block_size, padding=2)
    num_blocks = int(batch.block_tables.max()) + 2
    caches: list[Any] = []
    for _ in "kv":
        cache = torch.full((num_blocks, block_size, kv_heads, head_dim), float("nan"), dtype=dtype)
        for table, seq in zip(batch.block_tables.tolist(), batch.seq_lens.tolist(), strict=True):
            for position in range(seq):
                cache[table[position // block_size], position % block_size] = randn(
                    kv_heads, head_dim, dtype=dtype
                )
        caches.append(cache)
    q = randn(len(batch.positions), heads, head_dim, dtype=dtype)
    reaching = replace(batch, reach=reach_of_runs(batch, 5))
    for given, softcap, sinks, tiled in (
        (batch, None, None, False),
        (batch, None, None, True),
        (batch, 0.7, None, False),
        (reaching, None, randn(heads) * 3, False),
        (reaching, 5.0, randn(heads), False),
    ):
        if tiled and window is None:
            continue
        ours = attention.paged_attention(q, caches[0], caches[1], given, 0.3, window, softcap, sinks, tiled)
        expected = attention.paged_attention_torch(
            q, caches[0], caches[1], given, 0.3, window, softcap, sinks, tiled
        )
        torch.testing.assert_close(ours, expected, **TOLERANCE[dtype])
        assert not expected.isnan().any()


def test_a_prompt_that_ends_a_block_reads_no_further_entry_of_its_table(
    randn: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last query sees all tiles whole, and the table of the last sequence may end with the memory."""
    monkeypatch.setattr(attention_triton, "_tiles", lambda *_: (SMALL, True))
    batch = make_batch([(17, 32)], 16)
    table = batch.block_tables[:, :2].contiguous()
    cache = randn(4, 16, 1, 16, dtype=torch.float16)
    memory: Any = interpreter._interpreter
    read: list[int] = []

    def load(pointers: Any, mask: Any, *more: Any) -> Any:
        read.extend(pointers[mask].tolist())
        return memory.load(pointers, mask, *more)

    monkeypatch.setattr(interpreter, "_interpreter", SimpleNamespace(load=load, store=memory.store))
    q = randn(17, 1, 16, dtype=torch.float16)
    attention.paged_attention(q, cache, cache, replace(batch, block_tables=table), 0.3, None)
    assert table.data_ptr() + table.nbytes - 4 in read
    assert table.data_ptr() + table.nbytes not in read


def test_paged_attention_of_padding_sequences_is_zero(
    randn: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences of length 0, which pad a batch to a fixed size, give zeros, whole or split."""
    monkeypatch.setattr(attention_triton, "_tiles", lambda *_: (SMALL, False))
    cache = torch.full((3, 8, 1, 16), float("nan"))
    cache[1] = randn(8, 1, 16)
    batch = attention.AttentionBatch(
        query_start_loc=torch.tensor([0, 1, 2], dtype=torch.int32),
        seq_lens=torch.tensor([8, 0], dtype=torch.int32),
        block_tables=torch.tensor([[1], [0]], dtype=torch.int32),
        slot_mapping=torch.tensor([15, -1]),
        positions=torch.tensor([7, 0]),
        max_query_len=1,
        max_seq_len=8,
        num_decodes=2,
    )
    for segments in (1, 2):
        monkeypatch.setattr(attention_triton, "num_segments", lambda programs, length, tile, n=segments: n)
        out = attention.paged_attention(randn(2, 2, 16), cache, cache, batch, 1.0)
        assert not out[0].isnan().any()
        assert (out[1] == 0).all()


@dtypes
@pytest.mark.parametrize(("segments", "heads"), [(1, 5), (4, 20)])
def test_latent_attention(
    dtype: torch.dtype,
    segments: int,
    heads: int,
    randn: Callable[..., torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that the write makes, and attention over them; slots that no sequence owns contain NaN."""
    monkeypatch.setattr(latent_triton, "num_segments", lambda programs, length, tile: segments)
    rank, rope, block_size = 20, 8, 8
    batch = make_batch([(1, 60), (1, 1), (9, 9), (6, 46)], block_size, padding=2)
    num_blocks = int(batch.block_tables.max()) + 2
    cache = torch.full((num_blocks, block_size, 1, rank + rope), float("nan"), dtype=dtype)
    for table, seq in zip(batch.block_tables.tolist(), batch.seq_lens.tolist(), strict=True):
        for position in range(seq):
            cache[table[position // block_size], position % block_size] = randn(1, rank + rope, dtype=dtype)
    kv, weight, table = randn(len(batch.positions), rank + rope, dtype=dtype), randn(rank), randn(70, rope)
    plan = rope_kv.plan_rope(table, batch.positions, batch.slot_mapping)
    expected = cache.clone()
    latent.latent_write(kv, weight, 1e-5, table, batch.positions, batch.slot_mapping, cache)
    latent.latent_write_torch(kv, plan, expected, norm.twice(weight), 1e-5)
    torch.testing.assert_close(cache, expected, equal_nan=True, **TOLERANCE[dtype])
    q = randn(len(batch.positions), heads, rank + rope, dtype=dtype)
    ours = latent.latent_attention(q, cache, batch, rank, 0.3)
    theirs = attention.paged_attention_torch(q, cache, cache, batch, 0.3)[..., :rank]
    torch.testing.assert_close(ours, theirs, **TOLERANCE[dtype])
    assert not ours.isnan().any()


def test_apply_penalties(randn: Callable[..., torch.Tensor]) -> None:
    ours = randn(4, 1500) * 3
    ours[1, 3] = float("-inf")
    expected = ours.clone()
    prompt = randn(4, 1500) > 1
    counts = (randn(4, 1500) * 2).clamp(min=0).int()
    rows = [torch.tensor(r) for r in ([1.0, 1.3, 1.0, 0.8], [0.0, 0.4, 0.0, -1.0], [0.0, 0.0, 0.5, 2.0])]
    logits.apply_penalties(ours, prompt, counts, *rows)
    logits.apply_penalties_torch(expected, prompt, counts, *rows)
    torch.testing.assert_close(ours, expected)


def test_apply_bitmask(randn: Callable[..., torch.Tensor]) -> None:
    ours = randn(3, 1070)
    expected = ours.clone()
    bitmask = torch.randint(-(2**31), 2**31, (3, 34), generator=torch.Generator().manual_seed(2)).int()
    logits.apply_bitmask(ours, bitmask)
    logits.apply_bitmask_torch(expected, bitmask)
    assert torch.equal(ours, expected)


@pytest.mark.parametrize("room", [16384, 40])
def test_sample_draws_the_same_tokens(
    room: int, randn: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All mixtures of filters, each row with another seed and position, negative ones included.

    Rows have several parts; some are flat, equal, or have one token far below the others. With little room some rows
    have more tokens in the region of their threshold than are copied.
    """
    monkeypatch.setattr(_limits, "_NEAR", room)
    monkeypatch.setattr(_limits, "tuning", lambda _: {"block": 256, "chunk": 64, "num_warps": 4})
    vocab, cases = 700, []
    for t in (0.0, 0.7, 1.5):
        for k in (0, 1, 20, 5000):
            for p, m in ((1.0, 0.0), (0.0, 0.0), (0.6, 0.0), (1.0, 0.1), (0.9, 0.02)):
                cases.append((t, k, p, m))
    temperature, top_k, top_p, min_p = (torch.tensor(column) for column in zip(*cases, strict=True))
    rows = len(cases)
    scores = randn(rows, vocab) * 3
    scores[:, 5] = scores[:, 9] = scores.amax(1)
    scores[1, 100:] = float("-inf")
    scores[::3] *= 1e-3
    scores[::7, 3] = -1e9
    scores[::11] = 1.0
    seeds = torch.arange(rows) * 0x1234567890ABCDE - 2**61
    arguments: Any = (scores, temperature, top_k.int(), top_p, min_p, seeds, torch.arange(rows) * 17 - 3)
    assert torch.equal(sampling.sample(*arguments), sampling.sample_torch(*arguments))


@torch.inference_mode()
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.runs_on_kernels],
    ids=lambda case: case.name,
)
def test_a_model_of_each_family_runs_on_the_kernels(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill, then a step of a decode, a chunk and padding: the logits of the reference implementations.

    Tokens reach further ones, as those of images do, in models of which some layers ignore that.
    """
    config = describe(json.loads(case.config().to_json_string()))
    outcomes = []
    for forced in (True, False):
        monkeypatch.setattr(_backend, "_FORCED", forced)
        model = random_model(config, seed=1)
        caches = model.allocate_kv(4, 8, num_states=2)
        logits = []
        for tokens, query_start, seq_lens, slots, positions, decodes in (
            ([3, 9, 4, 7, 7], [0, 5], [5], range(8, 13), range(5), 0),
            ([1, 5, 6, 8, 0], [0, 1, 4], [6, 3], [13, 24, 25, 26, -1], [5, 0, 1, 2, 0], 1),
        ):
            batch = attention.AttentionBatch(
                query_start_loc=torch.tensor(query_start, dtype=torch.int32),
                seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
                block_tables=torch.tensor([[1], [3]][: len(seq_lens)], dtype=torch.int32),
                slot_mapping=torch.tensor(list(slots)),
                positions=torch.tensor(list(positions)),
                max_query_len=max(b - a for a, b in itertools.pairwise(query_start)),
                max_seq_len=max(seq_lens),
                num_decodes=decodes,
                state_rows=torch.tensor([1, 0][: len(seq_lens)]),
            )
            if case.family == "gemma4_text":
                batch = replace(batch, reach=reach_of_runs(batch, 3))
            hidden = model.forward(torch.tensor(tokens), batch, caches)
            logits.append(model.compute_logits(hidden[: query_start[-1]]))
        outcomes.append(torch.cat(logits))
    torch.testing.assert_close(outcomes[0], outcomes[1], atol=2e-5, rtol=1e-4)
    assert not torch.equal(outcomes[0], outcomes[1])  # else the same path ran twice


def test_the_wrappers_name_what_is_wrong(randn: Callable[..., torch.Tensor]) -> None:
    """Layouts that a kernel cannot read are refused."""
    with pytest.raises(ValueError, match="gate_up"):
        swiglu.silu_mul(randn(8, 4).t())
    with pytest.raises(ValueError, match="norm: rows and weight"):
        norm.rms_norm(randn(8, 4).t(), randn(8), 1e-5)

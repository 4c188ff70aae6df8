"""Laws of the compiled CPU kernels, against the reference implementations in torch."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.weights.reach import reach_of_runs
from torch import Tensor

from plumbline_kernels.attention import AttentionBatch, paged_attention_torch
from plumbline_kernels.cpu.layout import (
    AttendOp,
    HeadsStruct,
    LatentStruct,
    LatentValuesOp,
    LatentWriteOp,
    LinearOp,
    NormStruct,
)
from plumbline_kernels.cpu.library import Library, load
from plumbline_kernels.cpu.program import Program
from plumbline_kernels.latent import latent_queries_torch, latent_values_torch, latent_write_torch
from plumbline_kernels.norm import twice
from plumbline_kernels.rope_kv import plan_rope
from plumbline_kernels.sampling import gumbel_noise, sample_torch

torch.set_num_threads(1)
SETTINGS = settings(max_examples=EXPLORED or 25, deadline=None)
OLDER = {"native": (), "no bf16 products": ("-mno-avx512bf16",), "AVX2": ("-march=x86-64-v3",)}
"""Processors to compile for: this one, and older ones that it can imitate."""
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module", params=OLDER, ids=list(OLDER))
def library(request: pytest.FixtureRequest) -> Library:
    if request.param != "native" and platform.machine() != "x86_64":
        pytest.skip("the older processors are those of x86-64")
    return load(*OLDER[request.param])


DTYPES = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def program(library: Library, dtype: torch.dtype, capacity: int = 300, **changes: Any) -> Program:
    fields: dict[str, Any] = {"dtype": dtype, "capacity": capacity, "block_size": 4}
    return Program(library, **(fields | changes))


def angles() -> Tensor:
    turns = randn(40, 16, seed=2)
    return torch.cat((turns.cos(), turns.sin()), 1)


def tokens(count: int, lens: list[tuple[int, int]] | None = None, block_size: int = 4) -> AttentionBatch:
    """A batch of (context, new tokens) over scattered blocks, decodes first; by default one prompt."""
    lens = sorted(lens or [(0, count)], key=lambda item: item[1] != 1)
    blocks = [-(-(context + new) // block_size) for context, new in lens]
    order = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(1)).int()
    tables = torch.zeros(len(lens), max(blocks), dtype=torch.int32)
    for row, part in enumerate(order.split(blocks)):
        tables[row, : len(part)] = part
    positions = [p for context, new in lens for p in range(context, context + new)]
    return AttentionBatch(
        query_start_loc=torch.tensor([0, *torch.tensor([new for _, new in lens]).cumsum(0)]).int(),
        seq_lens=torch.tensor([context + new for context, new in lens]).int(),
        block_tables=tables,
        slot_mapping=torch.arange(len(positions)),
        positions=torch.tensor(positions) % 40,
        max_query_len=max(new for _, new in lens),
        max_seq_len=max(context + new for context, new in lens),
        num_decodes=sum(new == 1 for _, new in lens),
    )


def run(recorded: Program, result: Tensor, count: int) -> Tensor:
    recorded.run(torch.zeros(count, dtype=torch.int64), tokens(count), None)
    return result[:count].clone()


lengths = st.lists(
    st.tuples(st.integers(0, 150), st.sampled_from([1, 1, 1, 2, 9, 70])), min_size=1, max_size=4
)


@DTYPES
@SETTINGS
@given(
    lens=lengths,
    heads=st.sampled_from([(2, 2), (4, 2), (3, 1), (7, 1)]),
    head_dim=st.sampled_from([32, 64, 96, 512]),
    block_size=st.sampled_from([1, 3, 16]),
    window=st.none() | st.integers(1, 140),
    tiled=st.booleans(),
    softcap=st.sampled_from([None, None, 0.7, 30.0]),
    has_sinks=st.booleans(),
    run=st.sampled_from([0, 0, 3, 80]),
    seed=st.integers(0, 1000),
)
def test_any_mix_of_decodes_and_chunks_attends_as_the_reference(
    library: Any,
    dtype: torch.dtype,
    lens: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
    tiled: bool,
    softcap: float | None,
    has_sinks: bool,
    run: int,
    seed: int,
) -> None:
    """Slots past the sequences are NaN, so one that is read shows."""
    batch = tokens(0, lens, block_size)
    if run:
        batch = replace(batch, reach=reach_of_runs(batch, run))
    count, (num_heads, kv_heads) = len(batch.positions), heads
    q = randn(count, num_heads, head_dim, seed=seed, dtype=dtype)
    num_blocks = int(batch.block_tables.max()) + 1
    shape = (num_blocks, block_size, kv_heads, head_dim)
    caches = [randn(*shape, seed=seed + n, dtype=dtype) for n in (1, 2)]
    for table, length in zip(batch.block_tables, batch.seq_lens.tolist(), strict=True):
        for position in range(length, -(-length // block_size) * block_size):
            for cache in caches:
                cache[int(table[position // block_size]), position % block_size] = float("nan")
    scale = head_dim**-0.5
    sinks = randn(num_heads, seed=seed) * 3 if has_sinks else None
    expected = paged_attention_torch(
        q.float(), caches[0].float(), caches[1].float(), batch, scale, window, softcap, sinks, tiled
    )

    recorded = program(library, dtype, block_size=block_size)
    rules: dict[str, Any] = {
        "scale": scale,
        "window": window,
        "tiled": tiled,
        "softcap": softcap,
        "sinks": sinks,
    }
    shared = HeadsStruct(heads=num_heads, kv_heads=kv_heads, dim=head_dim, **rules)
    attend = AttendOp(heads=shared, q=q.flatten(1), keys=caches[0], values=caches[1])
    out = recorded.fill(attend, num_heads * head_dim)
    recorded.run(torch.zeros(count, dtype=torch.int64), batch, None)
    torch.testing.assert_close(
        out[:count].float(), expected.flatten(1), atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype]
    )


@DTYPES
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 32), (199, 48), (5, 80), (320, 256)])
def test_a_linear_layer_multiplies_and_adds_with_the_same_bits_in_any_batch(
    library: Any, dtype: torch.dtype, outputs: int, inputs: int
) -> None:
    weight, bias = randn(outputs, inputs, seed=1, dtype=dtype), randn(outputs, seed=2, dtype=dtype)
    x = randn(110, inputs, seed=3, dtype=dtype)
    packed = library.pack(weight)
    logits = library.logits(x, packed, bias)
    expected = F.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(logits.double(), expected, atol=1e-4, rtol=1e-4)
    for start, stop in ((0, 1), (1, 3), (3, 8), (8, 14), (14, 110)):
        assert torch.equal(library.logits(x[start:stop], packed, bias), logits[start:stop])
    recorded = program(library, dtype)
    out = run(recorded, recorded.fill(LinearOp(x=x, matrix=packed.matrix(bias)), outputs), len(x))
    assert torch.equal(out, logits.to(dtype))
    assert library.logits(x[:0], packed, None).shape == (0, outputs)


@pytest.mark.parametrize("rows", [1, 15, 16, 39, 110])
def test_tiles_multiply_as_vectors_do(rows: int) -> None:
    """Sums of bytes are exact, so they have the same bits; those of pairs are added in another order."""
    cpus = Path("/proc/cpuinfo")
    if not cpus.is_file() or "amx_bf16" not in cpus.read_text("utf-8"):
        pytest.skip("this processor has no AMX")
    tiles, vectors = load(), load("-mno-amx-bf16")
    x, weight = randn(rows, 384, seed=1, dtype=torch.bfloat16), randn(199, 384, seed=2, dtype=torch.bfloat16)
    found, wanted = (lib.logits(x, lib.pack(weight), None) for lib in (tiles, vectors))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    for bits, group, is_shifted in product((8, 6, 5, 4), (16, 32, 64, 128), (False, True)):
        half = 1 << bits - 1
        levels = torch.randint(-half, half, weight.shape, generator=torch.Generator().manual_seed(bits))
        scales = randn(199, 384 // group, seed=3)
        shifts = randn(199, 384 // group, seed=4) if is_shifted else None
        found, wanted = (
            lib.logits(x, lib.pack(levels.to(torch.int8), bits, scales, shifts), None)
            for lib in (tiles, vectors)
        )
        assert torch.equal(found, wanted), (bits, group, is_shifted)


@DTYPES
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 32), (199, 48), (70, 384)])
def test_a_rounded_layer_multiplies_rounded_weights_and_inputs(
    library: Any, dtype: torch.dtype, bits: int, outputs: int, inputs: int
) -> None:
    """Each group of weights and of inputs is rounded by a scale of its own; all else is exact, in any batch."""
    weight, bias = randn(outputs, inputs, seed=1, dtype=dtype), randn(outputs, seed=2, dtype=dtype)
    weight[3] = 0
    x = randn(40, inputs, seed=3, dtype=dtype)
    packed = library.pack(weight, bits)
    assert packed.data.dtype == torch.uint8
    assert packed.data.numel() * 8 // bits >= outputs * inputs

    parts = weight.float().unflatten(1, (-1, packed.group))
    rounded = library.logits(torch.eye(inputs), packed, None).t()
    off = rounded.unflatten(1, (-1, packed.group)) - parts
    if bits == 8:
        assert (off.abs() <= parts.abs().amax(2, keepdim=True) * 0.51 / 127).all()
    else:
        # Fitted levels err less than evenly spaced ones between the least and the most do on average.
        spread = parts.amax(2) - parts.amin(2)
        assert off.square().mean() < ((spread / 15) ** 2 / 12).mean()
    rows = x.float().unflatten(1, (-1, packed.group))
    row_scales = rows.abs().amax(2, keepdim=True) / 127
    expected = F.linear(
        ((rows / row_scales).round() * row_scales).flatten(1).double(), rounded.double(), bias.double()
    )
    logits = library.logits(x, packed, bias)
    # An input in the middle between two levels may be rounded to either.
    torch.testing.assert_close(logits.double(), expected, atol=0.3, rtol=1e-3)
    assert (logits.double() - expected).abs().median() < 1e-4
    for start, stop in ((0, 1), (1, 3), (3, 8), (8, 40)):
        assert torch.equal(library.logits(x[start:stop], packed, bias), logits[start:stop])
    recorded = program(library, dtype)
    out = recorded.fill(LinearOp(x=x, matrix=packed.matrix(bias)), outputs)
    assert torch.equal(run(recorded, out, len(x)), logits.to(dtype))


@DTYPES
@pytest.mark.parametrize(
    ("bits", "group"), [(8, 16), (8, 384), (6, 16), (6, 128), (5, 16), (5, 32), (4, 16), (4, 32), (4, 128)]
)
def test_a_weight_on_a_grid_keeps_its_integers(
    library: Any, dtype: torch.dtype, bits: int, group: int
) -> None:
    """Packing knows the scales, so no integer changes, also where a group has no large one."""
    levels = torch.randint(
        -(1 << bits - 1), 1 << bits - 1, (70, 384), generator=torch.Generator().manual_seed(1)
    )
    scales = randn(70, 384 // group, seed=2).abs() + 0.1
    weight = (levels * scales.repeat_interleave(group, 1)).to(dtype)
    packed = library.pack(weight, bits, scales)
    assert packed.group == min(group, 128)
    # With scales that bf16 has, the same integers are the weight itself.
    rows = torch.eye(384)
    unit = library.pack(levels.to(dtype), bits, torch.ones_like(scales))
    assert torch.equal(packed.data, unit.data)
    assert torch.equal(packed.data, library.pack(levels.to(torch.int8), bits, scales).data)
    assert packed.data.numel() * 8 == packed.bits * 384 * (70 + -70 % library._panel)
    assert torch.equal(library.logits(rows, unit, None).t(), levels.float())
    factors = scales.bfloat16().float().repeat_interleave(group, 1)
    torch.testing.assert_close(library.logits(rows, packed, None).t(), levels * factors)
    x = randn(40, 384, seed=3, dtype=dtype)
    logits, recorded = library.logits(x, packed, None), program(library, dtype)
    out = recorded.fill(LinearOp(x=x, matrix=packed.matrix(None)), 70)
    assert torch.equal(run(recorded, out, len(x)), logits.to(dtype))
    for start, stop in ((0, 1), (1, 3), (3, 8), (8, 24), (24, 40)):
        assert torch.equal(library.logits(x[start:stop], packed, None), logits[start:stop])


def test_inputs_that_no_group_divides_are_refused() -> None:
    with pytest.raises(ValueError, match="40 inputs cannot have 8 bits"):
        load().pack(randn(4, 40), 8)


@DTYPES
@pytest.mark.parametrize("bits", [8, 6, 5, 4])
def test_groups_of_a_grid_may_be_shifted_with_the_same_bits_in_any_batch(
    library: Library, dtype: torch.dtype, bits: int
) -> None:
    levels = torch.randint(
        -(1 << bits - 1), 1 << bits - 1, (40, 3, 32), generator=torch.Generator().manual_seed(1)
    )
    scales, shifts = (randn(40, 3, seed=n).bfloat16().float() for n in (5, 6))
    weight = (levels * scales.unsqueeze(2) + shifts.unsqueeze(2)).flatten(1)
    packed = library.pack(weight, bits, scales, shifts)
    x = randn(9, 3, 32, seed=7).mul_(40).round_().clamp_(-126, 126)
    x[:, :, 0] = 127  # So inputs are integers after rounding, too.
    x = x.flatten(1)
    found = library.logits(x.to(dtype), packed, None)
    torch.testing.assert_close(found, x @ weight.T, atol=0.05, rtol=1e-5)
    assert torch.equal(found, torch.cat([library.logits(row.to(dtype), packed, None) for row in x.split(1)]))


@pytest.mark.parametrize("bits", [8, 6, 5, 4])
@pytest.mark.parametrize("rows", [1, 5, 30])
def test_sums_of_the_largest_products_are_exact(library: Library, bits: int, rows: int) -> None:
    """Processors that add two products to 16 bits must not lose one."""
    lowest, highest = -(1 << bits - 1), (1 << bits - 1) - 1
    inputs = randn(rows, 64, seed=3).sign() * 127
    levels = torch.where(randn(40, 64, seed=4) < 0, lowest, highest).float()
    levels[0], levels[1], levels[2] = lowest, highest, lowest * inputs[0].sign()
    levels.clamp_(max=highest)
    packed = library.pack(levels, bits, torch.ones(40, 2))
    assert torch.equal(library.logits(inputs, packed, None), inputs @ levels.T)


@DTYPES
def test_latents_are_written_and_read_as_the_reference_does(library: Any, dtype: torch.dtype) -> None:
    heads, rank, key_dim, rope, value_dim, count = 3, 48, 16, 32, 64, 5
    q, kv = (
        randn(count, heads * (key_dim + rope), dtype=dtype),
        randn(count, rank + rope, seed=1, dtype=dtype),
    )
    keys, values = (
        randn(heads, key_dim, rank, seed=2, dtype=dtype),
        randn(heads, rank, value_dim, seed=3, dtype=dtype),
    )
    norm, turns = randn(rank, seed=4), randn(40, 16, seed=5)
    cos_sin = torch.cat((turns.cos(), turns.sin()), 1)
    batch = tokens(count)
    batch.slot_mapping[:] = torch.tensor([5, -1, 23, 0, -1])
    ours, theirs = (torch.full((6, 4, 1, rank + rope), 99.0, dtype=dtype) for _ in range(2))
    packed = [[library.pack(m.t().contiguous()).matrix(None) for m in part] for part in (keys, values)]
    latent = LatentStruct(
        cos_sin=cos_sin,
        norm=NormStruct(weight=norm, eps=1e-6),
        keys=packed[0],
        values=packed[1],
        heads=heads,
        rank=rank,
        key_dim=key_dim,
        rope_dim=rope,
        value_dim=value_dim,
    )

    recorded = program(library, dtype)
    queries = recorded.fill(LatentWriteOp(latent=latent, q=q, kv=kv, cache=ours), heads * (rank + rope))
    mapped = recorded.fill(LatentValuesOp(latent=latent, x=queries), heads * value_dim)
    recorded.run(torch.zeros(count, dtype=torch.int64), batch, None)

    plan = plan_rope(cos_sin, batch.positions, batch.slot_mapping)
    latent_write_torch(kv, plan, theirs, twice(norm), 1e-6)
    expected = latent_queries_torch(q, plan, keys, exact=False)
    results = latent_values_torch(queries[:count].view(count, heads, -1), values, exact=False)
    for mine, reference in (
        (ours, theirs),
        (queries[:count], expected.flatten(1)),
        (mapped[:count], results),
    ):
        torch.testing.assert_close(mine, reference, atol=3 * TOLERANCES[dtype], rtol=3e-2)


@SETTINGS
@given(
    rows=st.integers(1, 5),
    vocab=st.sampled_from([1, 7, 64, 199, 1000]),
    temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 5, 64, 5000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 1e-6]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    levels=st.sampled_from([0.0, 0.5]),
    masked=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_draws_are_those_of_the_reference(
    library: Any,
    rows: int,
    vocab: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    levels: Any,
    masked: Any,
    seed: int,
) -> None:
    """With `levels` many logits tie. Logarithms may differ in the last place, so near ties may be drawn either way."""
    logits = randn(rows, vocab, seed=seed) * 4
    if levels:
        logits = (logits / levels).round() * levels
    if masked:
        logits[:, 1::2] = float("-inf")
    given_rows = (
        torch.full((rows,), temperature) * (torch.arange(rows) != 2),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        torch.arange(rows) + (seed << 33),
        torch.arange(rows) * 7,
    )
    ours, theirs = library.sample(logits, *given_rows), sample_torch(logits, *given_rows)
    noise = gumbel_noise(*given_rows[4:], vocab)
    for row in torch.nonzero(ours != theirs).flatten().tolist():
        scores = logits[row] / temperature + noise[row]
        assert abs(scores[ours[row]] - scores[theirs[row]]) < 1e-4 * scores[theirs[row]].abs().clamp(min=1)
    assert (ours != theirs).sum() <= 1


@pytest.mark.parametrize("number", [float("nan"), float("-inf"), float("inf")])
@pytest.mark.parametrize("top_k", [0, 5])
@pytest.mark.parametrize("top_p", [0.0, 0.9, 1.0])
def test_a_row_without_a_likeliest_token_draws_some_token(number: float, top_k: int, top_p: float) -> None:
    """An adapter or a damaged checkpoint may make all logits NaN; the process must go on."""
    heat, kept, least = (torch.tensor([x]) for x in (1.0, top_p, 0.0))
    whole = torch.tensor([7])
    drawn = load().sample(
        torch.full((1, 96), number), heat, torch.tensor([top_k]).int(), kept, least, whole, whole
    )
    assert 0 <= int(drawn) < 96


def test_libraries_in_one_process_share_no_variables(library: Any) -> None:
    """Buffers of a thread have other sizes for other processors: shared ones were overrun."""
    functions = ctypes.CDLL(library.path)
    assert hasattr(functions, "plumbline_run")
    assert not hasattr(functions, "_ZZ4poolvE6memory")  # `memory` in `pool()`.


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("bits", [0, 8, 4])
def test_a_number_that_is_none_is_seen_in_the_results_of_its_row_alone(
    library: Any, bits: int, number: Any
) -> None:
    weight, x = library.pack(randn(32, 64), bits), randn(2, 64, seed=1)
    x[1, 5] = number
    finite = library.logits(x, weight, None).isfinite()
    assert finite[0].all()
    assert not finite[1].any()


def test_more_query_heads_of_a_key_head_than_a_tile_has_rows_are_left_to_torch() -> None:
    assert load().supports(torch.float32, 64, 64, (64,))
    assert not load().supports(torch.float32, 64, 65, (64,))

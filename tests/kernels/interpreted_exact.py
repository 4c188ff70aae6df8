"""A token has the same bits in any batch where kernels are exact; test_triton.py runs this file under the interpreter.

NumPy's products may add up in an order that depends on the shapes of tiles. A matrix instruction does not: its
accumulator is a chain over the inputs, whatever the tile is (benchmarks/gpu/invariant.py compares them on a GPU). So
the interpreter's `dot` is replaced by such a chain here.

Laws, each for rows alone and among others:

    products, narrow products, experts, adapters, latents    row i of n rows == row i alone
    attention                                                any cut of a prompt, decodes alone and together
    an engine                                                any neighbours, chunks, prefix hits, preemptions, proposals
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.gpu.families import Kept
from engines.conftest import Driver, build_engine, tiny_model
from engines.native import test_reproducibility as law
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.weights.model_driver import Driver as ModelDriver
from support.weights.model_families import CASES, Case
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from plumbline.engines.native.models import ModelDescription, describe, random_model
from plumbline.engines.native.models.support import exact_problem
from plumbline_kernels import experts, latent, lora, narrow, product, swiglu
from plumbline_kernels.attention import AttentionBatch, _exact, paged_attention, paged_attention_torch
from plumbline_kernels.narrow import pack_narrow, stack_narrow
from plumbline_kernels.routing import Routing

assert os.environ.get("TRITON_INTERPRET") == os.environ.get("PLUMBLINE_FORCE_TRITON") == "1"

ROWS = st.integers(1, 140)
few = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)


def chain(builder: Any, a: Any, b: Any, acc: Any, precision: Any, imprecise: Any) -> TensorHandle:
    """Multiply tiles input by input."""
    left, right = a.data.astype(np.float32), b.data.astype(np.float32)
    total = acc.data.astype(np.float32)
    for k in range(left.shape[-1]):
        total = total + left[..., :, k : k + 1] * right[..., k : k + 1, :]
    return TensorHandle(total, acc.dtype.scalar)


@pytest.fixture(autouse=True)
def dots_are_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InterpreterBuilder, "create_dot", chain)
    # Several segments within few keys.
    monkeypatch.setattr(_exact, "_LENGTH", 64)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check_rows(call: Callable[[Tensor], Tensor], x: Tensor, first: int, count: int) -> Tensor:
    """Compare some rows with those of all rows; returns all results."""
    whole = call(x)
    part = slice(first % len(x), first % len(x) + count)
    assert torch.equal(call(x[part]), whole[part])
    return whole


@dtypes
@few
@given(rows=ROWS, first=ROWS, count=ROWS, inputs=st.sampled_from([16, 70, 256]), turned=st.booleans())
def test_a_row_of_a_product(
    dtype: torch.dtype, rows: int, first: int, count: int, inputs: int, turned: bool
) -> None:
    x, weight, bias = (
        randn(rows, inputs, dtype=dtype),
        randn(40, inputs, dtype=dtype, seed=1),
        randn(40, seed=2),
    )
    given = weight.t().contiguous().t() if turned else weight
    found = check_rows(lambda part: product.product(part, given, bias.to(dtype)), x, first, count)
    expected = (x.float() @ weight.float().t() + bias.to(dtype).float()).to(dtype)
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)


@few
@given(
    rows=ROWS, first=ROWS, count=ROWS, kind=st.sampled_from([(8, False), (4, False), (8, True), (4, True)])
)
def test_a_row_of_a_narrow_product(rows: int, first: int, count: int, kind: tuple[int, bool]) -> None:
    bits, floats = kind
    shifts = None if floats else randn(24, 4, seed=3) / 50
    weight = pack_narrow(randn(24, 128, seed=1), bits, randn(24, 4, seed=2).abs() / 4 + 0.02, shifts, floats)
    x = randn(rows, 128, dtype=torch.float16)
    found = check_rows(lambda part: narrow.narrow_linear(part, weight, None, exact=True), x, first, count)
    expected = narrow.narrow_linear_torch(x.float(), weight)
    torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("bits", [0, 8, 4])
@few
@given(rows=st.integers(1, 90), first=ROWS, count=ROWS, sigmoid=st.booleans())
def test_a_token_of_experts(bits: int, rows: int, first: int, count: int, sigmoid: bool) -> None:
    number, width, inner = 4, 32, 32
    gate_up, down = randn(number, 2 * inner, width, seed=1) / 4, randn(number, width, inner, seed=2) / 4
    stacks: Any = gate_up.half(), down.half()
    if bits:
        scales = torch.full((2 * inner, 2), 0.02), torch.full((width, 2), 0.02)
        stacks = [
            stack_narrow([pack_narrow(each, bits, scale) for each in matrices])
            for matrices, scale in zip((gate_up, down), scales, strict=True)
        ]
    routing = Routing(top_k=2, sigmoid=sigmoid)
    x = torch.cat([randn(rows, width), randn(rows, number, seed=4)], 1).half()

    def call(part: Tensor) -> Tensor:
        given = part[:, :width].contiguous(), part[:, width:].float()
        return experts.mix_routed(
            *given, routing, None, stacks[0], None, stacks[1], None, swiglu.silu_mul_torch, exact=True
        )

    check_rows(call, x, first, count)


@few
@given(owners=st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=90), row=ROWS)
def test_a_row_with_an_adapter(owners: list[int], row: int) -> None:
    row %= len(owners)
    down, up = randn(3, 16, 80, seed=1).half() / 8, randn(3, 40, 16, seed=2).half() / 8
    x, y = randn(len(owners), 80, dtype=torch.float16), randn(len(owners), 40, dtype=torch.float16, seed=3)
    order = sorted(range(len(owners)), key=owners.__getitem__)
    slots = tuple(sorted(set(owners)))
    starts = (0, *np.cumsum([owners.count(slot) for slot in slots]).tolist())
    whole = lora.lora_add(
        x, y.clone(), down, up, lora.AdapterRows(torch.tensor(order), slots, starts), exact=True
    )
    one = lora.AdapterRows(torch.tensor([0]), (owners[row],), (0, 1))
    alone = lora.lora_add(x[row : row + 1], y[row : row + 1].clone(), down, up, one, exact=True)
    assert torch.equal(alone[0], whole[row])


def batch_of(starts: list[int], ends: list[int], tables: Tensor, exact: bool = True) -> AttentionBatch:
    """Return a step of one sequence for each start, whose new tokens go up to its end."""
    counts = [end - start for start, end in zip(starts, ends, strict=True)]
    zeros = torch.zeros(sum(counts), dtype=torch.int64)
    return AttentionBatch(
        query_start_loc=torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32),
        seq_lens=torch.tensor(ends, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=zeros,
        positions=zeros,
        max_query_len=max(counts),
        max_seq_len=max(ends),
        num_decodes=next((index for index, count in enumerate(counts) if count != 1), len(counts)),
        exact=exact,
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 50},
    "side by side": {"sliding_window": 40, "tiled": True},
    "capped, sinks": {"softcap": 20.0, "sinks": randn(4, seed=7)},
    "window, sinks": {"sliding_window": 70, "sinks": randn(4, seed=7)},
}


@pytest.mark.parametrize("option", OPTIONS)
@dtypes
@settings(few, max_examples=3)
@given(length=st.integers(2, 200), cuts=st.sets(st.integers(1, 199), max_size=4), among=st.booleans())
def test_a_query(dtype: torch.dtype, option: str, length: int, cuts: set[int], among: bool) -> None:
    """Whatever parts a prompt has, in one step with others or not, and decoded at its end."""
    blocks, size = -(-length // 16) + 1, 16
    k, v = (torch.full((2 * blocks, size, 2, 32), float("nan"), dtype=dtype) for _ in "kv")
    table = torch.randperm(2 * blocks, generator=torch.Generator().manual_seed(length))[:blocks].int()
    for index, cache in enumerate((k, v)):
        keys = randn(length, 2, 32, dtype=dtype, seed=index)
        for position in range(length):
            cache[int(table[position // size]), position % size] = keys[position]
    q = 2 * randn(length, 4, 32, dtype=dtype, seed=5)
    options: dict[str, Any] = OPTIONS[option]

    def attend(starts: list[int], ends: list[int]) -> Tensor:
        rows = torch.cat([q[start:end] for start, end in zip(starts, ends, strict=True)])
        batch = batch_of(starts, ends, table.expand(len(starts), -1))
        return paged_attention(rows, k, v, batch, 0.3, **options)

    whole = attend([0], [length])
    expected = paged_attention_torch(q, k, v, batch_of([0], [length], table[None], False), 0.3, **options)
    torch.testing.assert_close(whole, expected, atol=4e-3, rtol=4e-3)
    edges = [0, *sorted(cut for cut in cuts if cut < length), length]
    decoded = sorted({length - 1, length // 2, 0})
    parts = [(at, at + 1) for at in decoded] + [
        (start, end) for start, end in pairwise(edges) if end - start > 1
    ]
    for group in [parts] if among else [[part] for part in parts]:
        found = attend([start for start, _ in group], [end for _, end in group])
        assert torch.equal(found, torch.cat([whole[start:end] for start, end in group]))


def describe_case(case: Case) -> ModelDescription:
    return describe(json.loads(case.config().to_json_string()))


@few
@given(length=st.integers(2, 120), cut=st.integers(1, 119))
def test_a_token_over_latents(length: int, cut: int) -> None:
    cut = min(cut, length - 1)
    cache = randn(-(-length // 16), 16, 1, 48, dtype=torch.float16)
    table = torch.arange(len(cache), dtype=torch.int32)[None]
    q = randn(length, 2, 48, dtype=torch.float16, seed=1)
    whole = latent.latent_attention(q, cache, batch_of([0], [length], table), 32, 0.2)
    for start, end in ((cut, length), (cut, cut + 1)):
        found = latent.latent_attention(q[start:end], cache, batch_of([start], [end], table), 32, 0.2)
        assert torch.equal(found, whole[start:end])
    values = randn(2, 32, 24, dtype=torch.float16, seed=2)
    check_rows(lambda part: latent.latent_values_torch(part, values, exact=True), whole, cut, 1)


def test_kernels_that_are_not_exact_differ() -> None:
    """Else the laws would prove nothing of `exact`."""
    x, weight = randn(70, 512), pack_narrow(randn(16, 512), 8, torch.full((16, 4), 0.02))
    assert not torch.equal(narrow.narrow_linear(x[:1], weight), narrow.narrow_linear(x, weight)[:1])
    k = randn(64, 16, 2, 32)
    table = torch.arange(64, dtype=torch.int32)[None]
    q = randn(1, 4, 32)
    alone = batch_of([1023], [1024], table, exact=False)
    among = replace(alone, max_seq_len=16)  # The longest request decides how many segments there are.
    assert not torch.equal(*(paged_attention(q, k, k, each, 0.03) for each in (alone, among)))


def build(backend: str, **changes: Any) -> Driver:
    """Return an engine on kernels; one that speculates runs its decodes, and what they verify, as graphs."""
    recorder = Kept() if changes.get("speculation") else None
    model = tiny_model(compiled=False, experts=backend == "experts")
    return build_engine(model, recorder, **{"max_model_len": 140, "batch_invariant": True, **changes})


@pytest.mark.parametrize("backend", ["dense", "experts"])
@settings(few, max_examples=1)
@given(
    number=st.integers(2, 60), neighbours=st.sampled_from([3, 5]), warm=st.booleans(), seed=st.integers(0, 99)
)
def test_an_answer_depends_on_its_request_alone(
    backend: str, number: int, neighbours: int, warm: bool, seed: int
) -> None:
    requests: list[law.Request] = [
        (
            [number + index] * 8 + [9, 10, 11] * 4,
            "plain",
            {"temperature": 0.5 * index, "seed": seed, "max_tokens": 8, "ignore_eos": True, "logprobs": 2},
        )
        for index in range(2)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(law, "build", build)
        limits: dict[str, Any] = {"max_num_seqs": 8, "num_blocks": 18, "expected_output_len": 1}
        driver = law.check(backend, requests, neighbours, warm, speculation=True, **limits)
    speculator = driver.core.scheduler.speculator
    assert speculator is not None, "exact kernels verify proposals"


FAMILIES = {case.family: case for case in CASES if case.runs_on_kernels}


@pytest.mark.parametrize(
    "case",
    [case for case in FAMILIES.values() if exact_problem(describe_case(case)) is None],
    ids=lambda case: case.name,
)
def test_a_token_of_each_family(case: Case) -> None:
    """A prompt in one step, in parts among others, and decoded."""
    driver = ModelDriver(random_model(describe_case(case), seed=1), num_blocks=12, block_size=8, exact=True)
    tokens = [3, 9, 4, 7, 7, 1, 5, 6, 8, 2, 2]
    whole, other, parts = (driver.add(each, 16) for each in (tokens, tokens[::-1], tokens))
    driver.step([(whole, len(tokens))])
    driver.step([(parts, 4), (other, 6)])
    driver.step([(parts, 1), (other, 5)])
    driver.step([(parts, 5)])
    driver.step([(parts, 1)])
    assert torch.equal(torch.stack(parts.logits), torch.stack(whole.logits))

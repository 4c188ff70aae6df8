"""Multiply with weights of 8 and 4 bits under the interpreter; test_triton.py runs this file.

The laws, in fp32 and fp16, because the interpreter computes garbage for bf16:

* Every code of every kind of levels is decoded exactly: the product with the identity is the weight.
* Products are those of the reference, within the rounding of the inputs' type, for tiles of one group and of several,
  with scales of any type, and for grouped rows of experts.
* A layer that is built from numbers on a grid computes with the levels of that grid.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from plumbline.engines.native.models.linear import Linear
from plumbline_kernels import _backend, _experts_triton, experts, narrow, swiglu
from plumbline_kernels.narrow import _triton as narrow_triton

assert os.environ.get("TRITON_INTERPRET") == os.environ.get("PLUMBLINE_FORCE_TRITON") == "1"

SMALL = {"block_m": 16, "block_n": 16, "block_k": 32, "num_warps": 4, "num_stages": 1}
KINDS = [(8, False), (4, False), (8, True), (4, True)]
"""Bits, and whether levels are floats."""
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
kinds = pytest.mark.parametrize(("bits", "floats"), KINDS)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def packed(
    outputs: int, inputs: int, groups: int, bits: int, floats: bool, shifted: bool, kind: torch.dtype
) -> narrow.NarrowWeight:
    """A weight of levels, with scales and shifts that a type has."""
    scales = (randn(outputs, groups).abs() / 4 + 0.1).to(kind)
    shifts = randn(outputs, groups, seed=2).to(kind) if shifted else None
    return narrow.pack_narrow(randn(outputs, inputs, seed=3), bits, scales, shifts, floats)


@dtypes
@kinds
@pytest.mark.parametrize("groups", [1, 32])
def test_every_code_is_exact(dtype: torch.dtype, bits: int, floats: bool, groups: int) -> None:
    """A group is more than a tile, or a tile has many groups; NaN is a matter of `pack_narrow`."""
    codes = torch.arange(256).to(torch.uint8)
    if floats and bits == 8:
        codes = codes[(codes & 127) != 127].repeat(2)[:256].view(torch.float8_e4m3fn)
    levels = codes.view(torch.int8) if bits == 8 and not floats else codes
    weight = narrow.NarrowWeight(levels.unsqueeze(0), torch.ones(groups, 1), None, bits, floats)
    product = narrow.narrow_linear(torch.eye(weight.inputs, dtype=dtype), weight)
    assert torch.equal(product.t().float(), weight.dequantised(torch.float32))


@dtypes
@kinds
@pytest.mark.parametrize(
    ("tokens", "group", "kind"), [(3, 16, torch.float32), (20, 48, torch.bfloat16), (3, 144, torch.float16)]
)
def test_narrow_linear(
    dtype: torch.dtype, bits: int, floats: bool, tokens: int, group: int, kind: torch.dtype
) -> None:
    """Some columns and inputs more than whole tiles have, rows of a wider tensor, with and without a bias; a copy."""
    outputs, inputs = 37, 144
    weight = packed(outputs, inputs, inputs // group, bits, floats, tokens == 20 and not floats, kind)
    assert weight.scales.dtype == kind
    x = randn(tokens, inputs + 8, dtype=dtype)[:, :inputs] * 0.1
    tolerance: Any = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 4e-3, "rtol": 2e-3}
    widened, whole = narrow_triton.widen(weight, dtype), weight.dequantised(dtype)
    torch.testing.assert_close(widened, whole, atol=0, rtol=2e-3 if tokens == 20 and not floats else 0)
    for bias in (None, randn(outputs, dtype=dtype)):
        ours = narrow.narrow_linear(x, weight, bias)
        torch.testing.assert_close(ours, narrow.narrow_linear_torch(x, weight, bias), **tolerance)
    scales, shifts = (None if part is None else part.t() for part in (weight.scales, weight.shifts))
    layer = Linear(weight.dequantised(torch.float32), bias, None, bits, scales, shifts, floats)
    torch.testing.assert_close(layer(x), ours, **tolerance)


@kinds
@pytest.mark.parametrize(("inputs", "splits"), [(144, 2), (288, 4)])
def test_parts_of_the_inputs_sum_to_the_product(
    bits: int, floats: bool, inputs: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last part has a tile that is not whole, or none at all; groups end within tiles."""
    config = SMALL | {"block": 64}
    monkeypatch.setattr(narrow_triton, "tuning", lambda name, *_: config)
    assert narrow_triton.num_splits(3, -(-inputs // SMALL["block_k"])) == splits
    weight = packed(37, inputs, inputs // 48, bits, floats, not floats, torch.float16)
    x = randn(3, inputs) * 0.1
    for bias in (None, randn(37)):
        expected = narrow.narrow_linear_torch(x, weight, bias)
        torch.testing.assert_close(narrow.narrow_linear(x, weight, bias), expected, atol=1e-5, rtol=1e-5)


def test_nan_makes_its_output_nan() -> None:
    codes = torch.zeros(20, 64, dtype=torch.uint8)
    codes[7, 3], codes[9, 60] = 127, 255
    weight = narrow.pack_narrow(codes.view(torch.float8_e4m3fn).float(), 8, torch.ones(20, 2), None, True)
    found = narrow.narrow_linear(randn(3, 64), weight).isnan()
    assert torch.equal(found, narrow.narrow_linear_torch(randn(3, 64), weight).isnan())
    assert found.any(0).nonzero().flatten().tolist() == [7, 9]
    assert found.all(0)[[7, 9]].all()


def test_many_rows_are_multiplied_with_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x, bias = packed(20, 32, 1, 8, True, False, torch.float32), randn(5, 32), randn(20)
    few = narrow.narrow_linear(x, weight, bias)
    monkeypatch.setattr(narrow_triton, "_MANY_ROWS", 4)
    monkeypatch.setattr(narrow_triton, "_linear_kernel", None)
    torch.testing.assert_close(narrow.narrow_linear(x, weight, bias), few)


@dtypes
@pytest.mark.parametrize(
    ("gate_up", "down", "shifted"),
    [(0, 0, False), (0, 0, True), (1, 1, True), (2, 2, False), (3, 3, False), (3, None, False)],
)
def test_narrow_experts(
    dtype: torch.dtype, gate_up: int, down: int, shifted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens without some experts, more rows than a block, and a pair of which one projection is whole."""
    monkeypatch.setattr(_experts_triton, "tuning", lambda name, *_: SMALL)

    def made(number: int, outputs: int, inputs: int, kind: int | None) -> Tensor | narrow.NarrowWeight:
        if kind is None:
            return randn(number, outputs, inputs, dtype=dtype) / 4
        return narrow.stack_narrow(
            [packed(outputs, inputs, 2, *KINDS[kind], shifted, torch.float32) for _ in range(number)]
        )

    x, weights = randn(40, 24, dtype=dtype) / 4, randn(40, 2)
    chosen = torch.stack([torch.randperm(3)[:2] * 2 for _ in range(40)])
    matrices = made(5, 40, 24, gate_up), made(5, 24, 20, down)
    outcomes = []
    for forced in (True, False):
        monkeypatch.setattr(_backend, "_FORCED", forced)
        bias = randn(5, 40, dtype=dtype)
        outcomes.append(
            experts.mix(x, weights, chosen, matrices[0], bias, matrices[1], None, swiglu.silu_mul_torch)
        )
    tolerance: Any = {"atol": 1e-5, "rtol": 2e-5} if dtype == torch.float32 else {"atol": 1e-2, "rtol": 2e-3}
    torch.testing.assert_close(*outcomes, **tolerance)

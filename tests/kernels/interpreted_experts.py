"""Choose experts, mix their results and draw tokens under the interpreter; test_triton.py runs this file.

* Choices, weights and the order of rows by expert are those of the reference, in one kernel or in two.
* A token takes different experts whatever its logits are, and a row without a number draws no token.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from plumbline_kernels import _backend, _experts_triton, experts, sampling, swiglu
from plumbline_kernels.routing import _triton as routing_triton

assert os.environ.get("TRITON_INTERPRET") == os.environ.get("PLUMBLINE_FORCE_TRITON") == "1"

TOLERANCE: dict[torch.dtype, Any] = {
    torch.float32: {"atol": 2e-6, "rtol": 2e-5},
    torch.float16: {"atol": 2e-3, "rtol": 2e-3},
}
dtypes = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)


@pytest.fixture
def randn() -> object:
    generator = torch.Generator().manual_seed(1)

    def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    return make


@dtypes
@pytest.mark.parametrize("tokens", [1, 6, 40])
@pytest.mark.parametrize("bias", [False, True])
def test_experts(
    dtype: torch.dtype,
    tokens: int,
    bias: bool,
    randn: Callable[..., torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some experts are taken by no token, others by more than a block."""
    small = {"block_m": 16, "block_n": 16, "block_k": 16, "num_warps": 4, "num_stages": 1}
    monkeypatch.setattr(_experts_triton, "tuning", lambda name, *_: small)
    x, weights = randn(tokens, 24, dtype=dtype), randn(tokens, 2)
    chosen = torch.stack([torch.randperm(3)[:2] * 2 for _ in range(tokens)])
    gate_up, down = randn(5, 40, 24, dtype=dtype) / 4, randn(5, 24, 20, dtype=dtype) / 4
    biases = (randn(5, 40, dtype=dtype), randn(5, 24, dtype=dtype)) if bias else (None, None)
    outcomes = []
    for forced in (True, False):
        monkeypatch.setattr(_backend, "_FORCED", forced)
        outcomes.append(
            experts.mix(x, weights, chosen, gate_up, biases[0], down, biases[1], swiglu.silu_mul_torch)
        )
    torch.testing.assert_close(*outcomes, atol=5 * TOLERANCE[dtype]["atol"], rtol=TOLERANCE[dtype]["rtol"])


ROUTINGS = {
    "softmax": experts.Routing(3),
    "softmax, not normalised": experts.Routing(3, normalised=False, scale=2.5),
    "sigmoid": experts.Routing(2, sigmoid=True, floor=1e-6),
    "late softmax": experts.Routing(4, late_softmax=True),
    "one": experts.Routing(1),
}


@pytest.mark.parametrize("most", [1 << 20, 1])
@pytest.mark.parametrize("tokens", [1, 5, 40])
@pytest.mark.parametrize("name", ROUTINGS)
def test_routing(
    name: str, tokens: int, most: int, randn: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choices, weights and the order of rows by expert, in one kernel or in two; 21 experts are no power of two."""
    monkeypatch.setattr(routing_triton, "_MOST_NUMBERS", most)
    monkeypatch.setattr(routing_triton, "_CHUNK", 32)
    routing = ROUTINGS[name]
    logits, correction = randn(tokens, 21), randn(21) if name == "sigmoid" else None
    expected, chosen = experts.route(logits, routing, correction)
    weights, groups = routing_triton.route_and_group(logits, routing, correction, 4)
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=1e-5)
    counts = chosen.flatten().bincount(minlength=21)
    assert groups.order.tolist() == chosen.flatten().argsort(stable=True).tolist()
    assert groups.row_ends.tolist() == counts.cumsum(0).tolist()
    assert groups.block_ends.tolist() == ((counts + 3) // 4).cumsum(0).tolist()


@pytest.mark.parametrize("fault", [float("nan"), float("inf"), float("-inf")])
def test_routing_of_bad_logits_takes_different_experts(
    fault: float, randn: Callable[..., torch.Tensor]
) -> None:
    logits = randn(3, 21)
    logits[1] = fault
    weights, groups = routing_triton.route_and_group(logits, experts.Routing(3), None, 4)
    assert sorted(groups.order.tolist()) == list(range(9))
    assert weights[[0, 2]].isfinite().all()


@dtypes
@pytest.mark.parametrize("tokens", [1, 6, 40])
def test_experts_by_logits(
    dtype: torch.dtype, tokens: int, randn: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"block_m": 16, "block_n": 16, "block_k": 16, "num_warps": 4, "num_stages": 1}
    monkeypatch.setattr(_experts_triton, "tuning", lambda name, *_: small)
    x, logits, routing = randn(tokens, 24, dtype=dtype), randn(tokens, 5), experts.Routing(2)
    stacks = randn(5, 40, 24, dtype=dtype) / 4, None, randn(5, 24, 20, dtype=dtype) / 4, None
    outcomes = []
    for forced in (True, False):
        monkeypatch.setattr(_backend, "_FORCED", forced)
        outcomes.append(
            experts.mix_routed(x, logits, routing, None, *stacks, swiglu.silu_mul_torch, dtype=dtype)
        )
    assert outcomes[0].dtype == dtype
    torch.testing.assert_close(*outcomes, atol=5 * TOLERANCE[dtype]["atol"], rtol=TOLERANCE[dtype]["rtol"])


def test_experts_with_weights_of_a_wider_tensor(
    randn: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weights, chosen = randn(3, 16), randn(3, 2)[:, :1], torch.zeros(3, 1, dtype=torch.int64)
    gate_up, down = randn(1, 32, 16), randn(1, 16, 16)
    outcomes = []
    for forced in (True, False):
        monkeypatch.setattr(_backend, "_FORCED", forced)
        outcomes.append(experts.mix(x, weights, chosen, gate_up, None, down, None, swiglu.silu_mul_torch))
    torch.testing.assert_close(*outcomes, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("fault", [float("nan"), float("-inf")])
def test_a_row_without_a_number_draws_no_token(
    temperature: float, fault: float, randn: Callable[..., torch.Tensor]
) -> None:
    """And never one outside the vocabulary; other rows draw as before, also one with a NaN among its logits."""
    table = randn(4, 3000)
    table[1] = fault
    table[2, 5] = float("nan")
    ones, seeds = torch.ones(4), torch.arange(4)
    given = (ones * temperature, torch.zeros(4, dtype=torch.int32), ones, ones * 0, seeds, seeds)
    drawn = sampling.sample(table, *given).tolist()
    assert drawn[1] == -1
    assert all(0 <= drawn[row] < 3000 for row in (0, 2, 3))

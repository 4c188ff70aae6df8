"""Laws of compiled experts, against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kernels.cpu.test_operations import DTYPES, TOLERANCES, library, program, randn, run

from plumbline_kernels.cpu.layout import ACTIVATIONS, ExpertsOp, ExpertsStruct
from plumbline_kernels.experts import Routing, mix_torch, route, spread
from plumbline_kernels.swiglu import oss_mul, relu2, silu_mul

__all__ = ["library"]


ROUTINGS = {
    "softmax": Routing(2),
    "not normalised": Routing(3, normalised=False, scale=1.5),
    "sigmoid in groups": Routing(3, sigmoid=True, groups=4, chosen_groups=2, floor=0.1, scale=2.5),
    "groups by the best": Routing(2, groups=2, chosen_groups=1, best_two=False),
    "late softmax": Routing(4, late_softmax=True),
    "of inputs": Routing(2, of_inputs=True),
    "scaled late softmax": Routing(2, late_softmax=True, scale=0.5),
    "sparse mixer": Routing(2, mixer=True, jitter=0.2),
}


@DTYPES
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("bits", [0, 8])
def test_experts_are_those_of_the_reference_with_the_same_bits_in_any_batch(
    library: Any, dtype: torch.dtype, routing: str, bits: int
) -> None:
    """Some have a correction, a gated shared expert, the activation of gpt-oss, or no gates, factors and a router that
    reads something else; rounded weights change little."""
    number, width, inner, rules = 8, 64, 48, ROUTINGS[routing]
    is_oss, grouped, plain = rules.late_softmax, rules.groups > 1, rules.of_inputs
    x, shared = randn(70, width, dtype=dtype), randn(70, width, seed=1, dtype=dtype)
    router, router_bias = randn(number, width, seed=2), randn(number, seed=3)
    asked = randn(70, width, seed=9, dtype=dtype) if plain else None
    factors = randn(number, seed=10).abs() if plain else None
    gate_up = randn(number, inner if plain else 2 * inner, width, seed=4, dtype=dtype) / 8
    down = randn(number, width, inner, seed=5, dtype=dtype) / 8
    bias = randn(number, 2 * inner, seed=6, dtype=dtype) if is_oss else None
    correction, gate = (
        randn(number, seed=7) if grouped else None,
        randn(width, seed=8) / 8 if grouped else None,
    )

    def projections(weights: Any, biases: Any) -> Any:
        return [
            library.pack(w, bits).matrix(None if biases is None else biases[i]) for i, w in enumerate(weights)
        ]

    block = ExpertsStruct(
        router=library.pack(router).matrix(router_bias),
        gate_up=projections(gate_up, bias),
        down=projections(down, None),
        activation=ACTIVATIONS["swiglu_oss" if is_oss else "relu2" if plain else "silu"],
        number=number,
        correction=correction,
        shared_gate=gate,
        factors=factors,
        **rules._asdict(),
    )

    def compute(rows: slice) -> Any:
        recorded = program(library, dtype)
        taken, other = x[rows].clone(), (x if asked is None else asked)[rows].clone()
        mix = ExpertsOp(experts=block, x=taken, asked=other, shared=shared[rows].clone(), width=width)
        return run(recorded, recorded.fill(mix, width), len(taken))

    out = compute(slice(0, 70))
    logits = F.linear((x if asked is None else asked).float(), router, router_bias)
    weights, chosen = route(logits, rules, correction)
    layers = [
        lambda rows, i=i: F.linear(rows, gate_up[i].float(), None if bias is None else bias[i].float())
        for i in range(number)
    ]
    backs = [lambda rows, w=w: F.linear(rows, w.float()) for w in down]
    if factors is not None:
        given = spread(x.float(), weights * factors[chosen], chosen)
        expected = mix_torch(*given, layers, backs, relu2).view(70, rules.top_k, -1).sum(1)
    else:
        expected = mix_torch(x.float(), weights, chosen, layers, backs, oss_mul if is_oss else silu_mul)
    expected += shared.float() if gate is None else shared.float() * (x.float() @ gate).sigmoid().unsqueeze(1)
    if bits:
        assert (out.float() - expected).norm() < 0.03 * expected.norm()
    else:
        torch.testing.assert_close(
            out.float(), expected, atol=4 * TOLERANCES[dtype], rtol=4 * TOLERANCES[dtype]
        )
    for start, stop in ((0, 1), (1, 3), (3, 40), (40, 70)):
        assert torch.equal(compute(slice(start, stop)), out[start:stop])

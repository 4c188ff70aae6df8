"""Laws of experts: a token's experts and weights are those of the definition, and its result is their weighted sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline_kernels.experts import Routing, mix_torch, route
from plumbline_kernels.swiglu import oss_mul

SETTINGS = settings(max_examples=EXPLORED or 25, deadline=None)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


routings = st.builds(
    Routing,
    top_k=st.integers(1, 4),
    sigmoid=st.booleans(),
    late_softmax=st.booleans(),
    groups=st.sampled_from([1, 2, 4]),
    best_two=st.booleans(),
    normalised=st.booleans(),
    floor=st.sampled_from([0.0, 0.5]),
    scale=st.sampled_from([1.0, 2.5]),
)


@SETTINGS
@given(routing=routings, corrected=st.booleans(), seed=st.integers(0, 1000))
def test_a_token_takes_its_best_experts_with_the_weights_of_the_definition(
    routing: Routing, corrected: bool, seed: int
) -> None:
    """One token and one expert at a time; half of the groups may be chosen from."""
    routing = routing._replace(chosen_groups=max(routing.groups // 2, 1), mixer=False, of_inputs=False)
    logits, correction = randn(5, 16, seed=seed), randn(16, seed=seed + 1) if corrected else None
    weights, chosen = route(logits, routing, correction)
    for token in range(5):
        row = logits[token].double()
        if routing.late_softmax:
            best = sorted(range(16), key=lambda e: -row[e])[: routing.top_k]
            expected = torch.softmax(row[best], 0) * routing.scale
        else:
            scores = torch.sigmoid(row) if routing.sigmoid else torch.softmax(row, 0)
            choice = scores if correction is None else scores + correction
            size = 16 // routing.groups
            members = [range(group * size, (group + 1) * size) for group in range(routing.groups)]
            quality = [sum(sorted(choice[list(m)])[-2 if routing.best_two else -1 :]) for m in members]
            kept = sorted(range(routing.groups), key=lambda g: -quality[g])[: routing.chosen_groups]
            best = sorted((e for g in kept for e in members[g]), key=lambda e: -choice[e])[: routing.top_k]
            expected = scores[best]
            if routing.normalised:
                expected = expected / max(float(expected.sum()), routing.floor)
            expected = expected * routing.scale
        assert chosen[token].tolist() == best
        torch.testing.assert_close(weights[token].double(), expected, atol=1e-6, rtol=1e-5)


@SETTINGS
@given(tokens=st.integers(0, 9), top_k=st.integers(1, 3), seed=st.integers(0, 1000))
def test_the_result_of_a_token_is_the_weighted_sum_of_its_experts(tokens: int, top_k: int, seed: int) -> None:
    matrices, back = randn(4, 12, 8, seed=seed), randn(4, 8, 6, seed=seed + 1)
    x, weights = randn(tokens, 8, seed=seed + 2), randn(tokens, top_k, seed=seed + 3)
    chosen = (
        torch.stack([torch.randperm(4)[:top_k] for _ in range(tokens)])
        if tokens
        else torch.zeros(0, top_k).long()
    )
    gate_up: list[Any] = [lambda rows, m=m: rows @ m.t() for m in matrices]
    down: list[Any] = [lambda rows, m=m: rows @ m.t() for m in back]

    def activate(rows: torch.Tensor) -> torch.Tensor:
        return rows[:, :6].relu() * rows[:, 6:]

    out = mix_torch(x, weights, chosen, gate_up, down, activate)
    for token in range(tokens):
        expected = sum(
            weights[token, k] * down[e](activate(gate_up[e](x[token : token + 1])))[0]
            for k, e in enumerate(chosen[token].tolist())
        )
        torch.testing.assert_close(out[token], expected, atol=1e-4, rtol=1e-4)
    assert out.shape == x.shape


@pytest.mark.parametrize(
    ("gate", "up", "expected"),
    [
        (0.0, 5.0, 0.0),
        (2.0, -1.0, 0.0),
        (1.0, 0.0, 1 / (1 + 2.718281828**-1.702)),
        (50.0, 50.0, 7 / (1 + 2.718281828 ** (-1.702 * 7)) * 8),
        (1.0, -50.0, -6 / (1 + 2.718281828**-1.702)),
        (-50.0, 1.0, 0.0),
    ],
)
def test_the_activation_of_gpt_oss_clamps_and_shifts(gate: float, up: float, expected: float) -> None:
    assert float(oss_mul(torch.tensor([[gate, up]]))) == pytest.approx(expected, abs=1e-5)

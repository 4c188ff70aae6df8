"""Compute feed-forward blocks of experts: the choice of experts for each token, and their weighted sum.

A router gives every token a logit for each expert. The logits become scores, the token takes its best experts, and the
block's result is the sum of their results times weights. Rows are grouped by expert, so that each expert's weights are
read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels import _experts_triton
from plumbline_kernels._backend import check, use_triton
from plumbline_kernels.narrow import NarrowWeight, narrow_linear_torch
from plumbline_kernels.routing import Routing, takes
from plumbline_kernels.swiglu import sigmoid_torch

__all__ = ["Routing", "mix", "mix_routed", "mix_torch", "route", "spread"]

Linear = Callable[[Tensor], Tensor]


def route(logits: Tensor, routing: Routing, correction: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Choose the experts of tokens.

    Args:
        logits: fp32 [T, E].
        routing: how.
        correction: fp32 [E], what is added to the scores for the choice alone.

    Returns:
        Weights, fp32 [T, top_k], and the experts that they are for, int64 [T, top_k].
    """
    if routing.late_softmax:
        best, chosen = logits.topk(routing.top_k, -1)
        return best.softmax(-1) * routing.scale, chosen
    if routing.mixer:
        return _mix_sparsely(logits, routing)
    scores = sigmoid_torch(logits) if routing.sigmoid else logits.softmax(-1)
    choice = scores if correction is None else scores + correction
    if routing.groups > 1:
        choice = _mask_groups(choice, routing)
    chosen = choice.topk(routing.top_k, -1).indices
    weights = scores.gather(-1, chosen)
    if routing.normalised:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=routing.floor)
    return weights * routing.scale, chosen


def _mix_sparsely(logits: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """Choose the best expert again and again; its weight is the softmax over the logits that are near to its own."""
    left, weights, chosen = logits.clone(), [], []
    for _ in range(routing.top_k):
        best, place = left.max(-1, keepdim=True)
        far = (best - logits) / torch.maximum(logits.abs(), best) > 2 * routing.jitter
        weights.append(left.masked_fill(far, float("-inf")).softmax(-1).gather(-1, place))
        chosen.append(place)
        left = left.scatter(-1, place, float("-inf"))
    return torch.cat(weights, -1), torch.cat(chosen, -1)


def _mask_groups(choice: Tensor, routing: Routing) -> Tensor:
    """Hide the experts of all but the best groups; choice is [T, E]."""
    members = choice.view(choice.shape[0], routing.groups, -1)
    quality = members.topk(2, -1).values.sum(-1) if routing.best_two else members.amax(-1)
    kept = torch.zeros_like(quality, dtype=torch.bool)
    kept.scatter_(-1, quality.topk(routing.chosen_groups, -1).indices, True)
    return members.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(-2)


def spread(x: Tensor, weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a row for each token and expert, already multiplied by its weight, for `mix`.

    Args:
        x: [T, D].
        weights: fp32 [T, k].
        chosen: int64 [T, k].

    Returns:
        Rows [T * k, D], weights of one, fp32 [T * k, 1], and experts, int64 [T * k, 1].
    """
    rows = (x.unsqueeze(1) * weights.unsqueeze(2).to(x.dtype)).flatten(0, 1)
    return rows, torch.ones_like(weights).view(-1, 1), chosen.reshape(-1, 1)


def mix(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: Tensor | NarrowWeight,
    gate_up_bias: Tensor | None,
    down: Tensor | NarrowWeight,
    down_bias: Tensor | None,
    activate: Callable[[Tensor], Tensor],
    exact: bool = False,
) -> Tensor:
    """Return the weighted sums of the chosen experts' results, fp32 [T, D].

    Args:
        x: [T, D].
        weights: fp32 [T, k].
        chosen: int64 [T, k].
        gate_up: [E, 2 * I, D], whole or narrow, with a bias [E, 2 * I]; without gates I in the place of 2 * I.
        gate_up_bias: see `gate_up`.
        down: [E, D, I], with a bias [E, D].
        down_bias: see `down`.
        activate: the activation, [rows, 2 * I] to [rows, I].
        exact: whether a token must have the same bits in any batch; on a CPU the linear layers decide it.
    """
    check(x.dim() == 2 and weights.shape == chosen.shape, "mix: x must be [T, D], weights and chosen [T, k]")
    check(gate_up.shape[2] == x.shape[1] == down.shape[1], "mix: experts must have the width of x")
    if use_triton(x):
        experts = _experts_triton.GroupedExperts(gate_up, gate_up_bias, down, down_bias, activate)
        return _experts_triton.launch(x, weights, chosen, experts, exact)

    def projections(matrices: Tensor | NarrowWeight, biases: Tensor | None) -> list[Linear]:
        shifts = [None] * matrices.shape[0] if biases is None else list(biases)
        if isinstance(matrices, NarrowWeight):
            return [
                partial(narrow_linear_torch, weight=matrices.matrix(index), bias=shift)
                for index, shift in enumerate(shifts)
            ]
        return [partial(F.linear, weight=m, bias=b) for m, b in zip(matrices, shifts, strict=True)]

    stacks = projections(gate_up, gate_up_bias), projections(down, down_bias)
    return mix_torch(x, weights, chosen, *stacks, activate)


def mix_routed(
    x: Tensor,
    logits: Tensor,
    routing: Routing,
    correction: Tensor | None,
    gate_up: Tensor | NarrowWeight,
    gate_up_bias: Tensor | None,
    down: Tensor | NarrowWeight,
    down_bias: Tensor | None,
    activate: Callable[[Tensor], Tensor],
    dtype: torch.dtype = torch.float32,
    exact: bool = False,
) -> Tensor:
    """Return `mix` of x by the experts that `route` chooses, in a type, with as few launches as there can be.

    Args:
        x: [T, D].
        logits: see `route`.
        routing: see `route`.
        correction: see `route`.
        gate_up: see `mix`.
        gate_up_bias: see `mix`.
        down: see `mix`.
        down_bias: see `mix`.
        activate: see `mix`.
        dtype: of the result, which is summed in fp32.
        exact: see `mix`.
    """
    if use_triton(x) and takes(routing):
        experts = _experts_triton.GroupedExperts(gate_up, gate_up_bias, down, down_bias, activate)
        return _experts_triton.launch_routed(x, logits, routing, correction, experts, dtype, exact)
    weights, chosen = route(logits, routing, correction)
    return mix(x, weights, chosen, gate_up, gate_up_bias, down, down_bias, activate, exact).to(dtype)


def mix_torch(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: Sequence[Linear],
    down: Sequence[Linear],
    activate: Callable[[Tensor], Tensor],
) -> Tensor:
    """Compute `mix` in torch with the experts' projections, which may be packed.

    Args:
        x: [T, D].
        weights: fp32 [T, k].
        chosen: int64 [T, k].
        gate_up: for each expert the projection to [rows, 2 * I].
        down: for each expert the projection back to [rows, D].
        activate: the gated activation, [rows, 2 * I] to [rows, I].
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    # Experts in ascending order: the order in which a token's results are added does not depend on other tokens.
    order = chosen.flatten().argsort(stable=True)
    tokens, factors = order // chosen.shape[1], weights.flatten()[order].unsqueeze(1)
    first = 0
    for expert, count in enumerate(torch.bincount(chosen.flatten(), minlength=len(gate_up)).tolist()):
        if count:
            rows = tokens[first : first + count]
            result = down[expert](activate(gate_up[expert](x.index_select(0, rows))))
            out.index_add_(0, rows, result.float() * factors[first : first + count])
            first += count
    return out

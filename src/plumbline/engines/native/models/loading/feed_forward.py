"""Fetch the weights of dense blocks and experts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.engines.native.models.description import Dense, Experts, FeedForward
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.loading.projections import build_linear, in_order
from plumbline.engines.native.models.loading.rounding import Rounding
from plumbline.engines.native.models.loading.source import WeightSource
from plumbline.engines.native.models.stored import Grid
from plumbline.engines.native.models.weights import (
    DenseWeights,
    ExpertNormWeights,
    ExpertsWeights,
    NormWeights,
    Stack,
)
from plumbline_kernels.experts import Routing
from plumbline_kernels.narrow import NarrowWeight, pack_narrow, stack_narrow

__all__ = ["fetch_feed_forward"]


def fetch_feed_forward(
    source: WeightSource, prefix: str, block: FeedForward, rounding: Rounding
) -> DenseWeights | ExpertsWeights:
    """Fetch the weights of a layer's feed-forward block.

    Args:
        source: of the model.
        prefix: what the names of its tensors begin with.
        block: its description.
        rounding: of the projections down.
    """
    if isinstance(block, Dense):
        return _dense(source, prefix, block, source.names.gate_up, source.names.down, rounding)
    return _experts(source, prefix, block, rounding)


def _dense(
    source: WeightSource,
    prefix: str,
    block: Dense,
    gate_up: tuple[str, ...],
    down: str,
    rounding: Rounding,
) -> DenseWeights:
    hidden, width = source.description.hidden_size, block.width
    return DenseWeights(
        activation=block.activation,
        gated=block.gated,
        gate_up=source.linear(
            prefix,
            gate_up,
            (width, width) if block.gated else (width,),
            hidden,
            block.bias,
            factors=None if block.scales is None else torch.tensor(block.scales).repeat_interleave(width),
        ),
        down=source.linear(prefix, (down,), (hidden,), width, block.bias, rounding=rounding),
        curve=_curve(source, prefix) if block.activation == "xielu" else None,
    )


def _curve(source: WeightSource, prefix: str) -> Tensor:
    """Fetch the numbers of a `xielu` (arXiv 2411.13010)."""
    of_squares, of_exponentials, of_x, most = (
        source.fetch(f"{prefix}{source.names.curve}.{name}", (1,), torch.float32)
        for name in ("alpha_p", "alpha_n", "beta", "eps")
    )
    return torch.cat((F.softplus(of_squares), of_x + F.softplus(of_exponentials), of_x, most))


def _experts(source: WeightSource, prefix: str, block: Experts, rounding: Rounding) -> ExpertsWeights:
    names, hidden, router = source.names, source.description.hidden_size, block.router
    number, fp32 = (block.number,), torch.float32
    shared_gate = None
    if block.shared_gate:
        shared_gate = source.fetch(f"{prefix}{names.shared_gate}.weight", (hidden,), fp32)
    norms = None
    if block.has_norms:
        norms = ExpertNormWeights(
            router=NormWeights(source.fetch(prefix + names.router_scale, (hidden,), fp32) * hidden**-0.5),
            before=source.norm(prefix + names.before_experts),
            after=source.norm(prefix + names.after_experts),
            after_shared=source.norm(prefix + names.after_shared),
        )
    return ExpertsWeights(
        routing=Routing(
            top_k=router.top_k,
            sigmoid=router.scores == "sigmoid",
            late_softmax=router.scores == "softmax_of_chosen",
            groups=router.groups,
            chosen_groups=router.chosen_groups,
            best_two=router.groups_by_two,
            normalised=router.normalised,
            floor=router.floor,
            scale=router.scale,
            mixer=router.scores == "sparse_mixer",
            jitter=router.jitter,
            of_inputs=router.of_inputs,
        ),
        router=Linear(
            source.fetch(f"{prefix}{names.router}.weight", (block.number, hidden), fp32),
            source.fetch(f"{prefix}{names.router}.bias", number, fp32) if router.bias else None,
            source.library,
        ),
        correction=(source.fetch(prefix + names.correction, number, fp32) if router.correction else None),
        gate_up=_stack(
            source,
            prefix,
            names.expert_gate_up,
            block,
            (block.width,) * (1 + block.gated),
            hidden,
            Rounding(source.bits),
        ),
        down=_stack(source, prefix, (names.expert_down,), block, (hidden,), block.width, rounding),
        activation=block.activation,
        gated=block.gated,
        shared=(
            None
            if block.shared is None
            else _dense(source, prefix, block.shared, names.shared_gate_up, names.shared_down, rounding)
        ),
        shared_gate=shared_gate,
        factors=source.fetch(prefix + names.router_factors, number, fp32) if router.by_expert else None,
        norms=norms,
        shared_scale=block.shared_scale,
    )


def _stack(
    source: WeightSource,
    prefix: str,
    names: tuple[str, ...],
    block: Experts,
    outputs: tuple[int, ...],
    inputs: int,
    rounding: Rounding,
) -> list[Linear] | Stack:
    """Build one projection of every expert: a layer for each, or for the kernels of a GPU a stack.

    A stack keeps the integers of quantised experts if all have them alike.
    """
    if source.streamed:
        parts = partial(_experts_parts, source, prefix, names, block, outputs, inputs)
        shape = sum(outputs), inputs
        return source.stacks.stack(
            prefix + names[0],
            block.number,
            shape,
            lambda: (build_linear(*part, None, rounding) for part in parts()),
        )
    found = _experts_parts(source, prefix, names, block, outputs, inputs)
    if not source.stacked:
        return [build_linear(*part, source.library, rounding) for part in found]
    narrow: list[NarrowWeight] = []
    whole: Tensor | None = None
    biases: list[Tensor] = []
    for expert, (weight, bias, grid) in enumerate(found):
        if bias is not None:
            biases.append(bias)
        if whole is None and grid is not None and source.bits in (None, grid.bits):
            packed = pack_narrow(weight, grid.bits, grid.scales, grid.shifts, grid.floats)
            if not narrow or packed.is_like(narrow[0]):
                narrow.append(packed)
                continue
        if whole is None:
            whole = weight.new_empty(block.number, *weight.shape)
            for earlier, each in enumerate(narrow):
                whole[earlier] = each.dequantised(weight.dtype)
        whole[expert] = weight
    return Stack(stack_narrow(narrow) if whole is None else whole, torch.stack(biases) if biases else None)


def _experts_parts(
    source: WeightSource,
    prefix: str,
    names: tuple[str, ...],
    block: Experts,
    outputs: tuple[int, ...],
    inputs: int,
) -> Iterator[tuple[Tensor, Tensor | None, Grid | None]]:
    """Yield weight [out, in], bias [out] and grid of each expert."""
    number, width = block.number, sum(outputs)
    if "{}" in names[0]:
        for expert in range(number):
            named = tuple(name.format(expert) for name in names)
            yield source.projection(prefix, named, outputs, inputs, block.bias)
        return
    (name,) = names
    biases = source.fetch(f"{prefix}{name}_bias", (number, width), None) if block.bias else None
    for expert, (weight, grid) in enumerate(source.matrices(prefix + name, (number, width, inputs))):
        bias = None if biases is None else biases[expert]
        if source.names.experts_alternate and len(outputs) == 2:
            rows = torch.arange(width).view(-1, 2).t().flatten()
            weight, bias, grid = in_order(weight, bias, grid, rows)
        yield weight, bias, grid

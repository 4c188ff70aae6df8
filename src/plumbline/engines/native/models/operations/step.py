"""Hold the tokens of a step, with the operations that Triton kernels and torch share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.engines.native.models.adapters.layers import EagerAdapters
from plumbline.engines.native.models.description import Activation, Attention
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.operations.interface import (
    DeltaHeads,
    Heads,
    KVCache,
    LatentHeads,
    PreparedNorm,
    TokenInputs,
)
from plumbline.engines.native.models.weights import ExpertsWeights, SelectiveWeights, ShortConvWeights
from plumbline_kernels._backend import use_triton
from plumbline_kernels.attention import AttentionBatch, RowSelection
from plumbline_kernels.cpu.library import PackedWeight
from plumbline_kernels.delta import (
    causal_conv,
    delta_gates,
    delta_rule,
    gated_group_norm,
    gated_norm,
    selective_scan,
    state_space_gates,
)
from plumbline_kernels.experts import route, spread
from plumbline_kernels.latent import latent_values_torch
from plumbline_kernels.norm import add_torch, rms_norm_torch, twice
from plumbline_kernels.product import product
from plumbline_kernels.rope_kv import RopePlan, rotate_torch, rotations
from plumbline_kernels.swiglu import sigmoid_torch, xielu_torch

__all__ = ["Activations", "Mix", "Step", "add_shared"]

Activations = Mapping[str, Callable[[Tensor], Tensor]]
"""By their names."""
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Return the weighted sums of experts' results, fp32 [T, D], for rows, their weights and their experts."""


def _mixed(x: Tensor, weights: ExpertsWeights, asked: Tensor | None, mix: Mix, exact: bool) -> Tensor:
    """Choose the experts of each token, and return the sum of their results, fp32 [T, D]."""
    logits = weights.router((x if asked is None else asked).float(), exact)
    factors, chosen = route(logits, weights.routing, weights.correction)
    if weights.factors is not None:
        factors = factors * weights.factors[chosen]
    if weights.routing.of_inputs:
        return mix(*spread(x, factors, chosen)).view(len(x), weights.routing.top_k, -1).sum(1)
    return mix(x, factors, chosen)


def add_shared(
    total: Tensor, x: Tensor, weights: ExpertsWeights, shared: Tensor | None, exact: bool
) -> Tensor:
    """Add the result of shared experts, times its gate, to fp32 sums [T, D]."""
    if shared is not None:
        if weights.shared_gate is not None:
            shared = shared * sigmoid_torch(_gate(x.float(), weights.shared_gate, exact))
        total += shared * weights.shared_scale
    return total.to(x.dtype)


def _gate(x: Tensor, gate: Tensor, exact: bool) -> Tensor:
    """Multiply rows with one column; BLAS and torch's sums on a GPU add in an order that depends on their number."""
    if exact and use_triton(x):
        return product(x, gate.unsqueeze(0))
    return (x * gate).sum(1, keepdim=True)


class Step:
    """The tokens of a step, with the operations that all eager implementations share."""

    gated: ClassVar[Activations]
    plain: ClassVar[Activations]

    def __init__(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        selection: RowSelection | None,
        given: Tensor | None = None,
    ) -> None:
        self._token_ids, self._batch, self._selection, self._given = token_ids, batch, selection, given
        self._causal: AttentionBatch | None = None
        """The batch of layers that are causal, once one has asked for it."""

    def norm(self, x: Tensor, norm: PreparedNorm) -> Tensor:
        raise NotImplementedError

    def embed(self, table: Tensor | PackedWeight, factor: float) -> Tensor:
        assert isinstance(table, Tensor), "only compiled kernels have packed embeddings"
        if self._given is None:
            rows = F.embedding(self._token_ids, table)
            return rows if factor == 1.0 else rows.mul_(factor)
        rows = F.embedding(self._token_ids.clamp(min=0), table)
        if factor != 1.0:
            rows = rows.mul_(factor)
        places = (self._token_ids < 0).nonzero().flatten()
        return rows.index_copy_(0, places, self._given[-1 - self._token_ids[places], : table.shape[1]])

    def place(self, residual: Tensor, table: Tensor) -> Tensor:
        return residual.add_(F.embedding(self._batch.positions, table))

    def norm_embedded(self, residual: Tensor, norm: PreparedNorm) -> Tensor:
        return self.norm(residual, norm)

    def clip(self, x: Tensor, size: float) -> Tensor:
        return x.clamp_(-size, size)

    def give(self, residual: Tensor, part: int) -> Tensor:
        if self._given is None:
            return residual
        places, first = (self._token_ids < 0).nonzero().flatten(), part * residual.shape[1]
        added = self._given[-1 - self._token_ids[places], first : first + residual.shape[1]]
        return residual.index_add_(0, places, added)

    def add(self, x: Tensor, residual: Tensor, factor: float, scale: float) -> Tensor:
        return add_torch(x, residual, factor, scale)

    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        y = layer(x, self._batch.exact)
        adapted = self._batch.adapters
        if adapted is not None and layer.adapters is not None:
            assert isinstance(layer.adapters, EagerAdapters)
            layer.adapters.add(x, y, adapted, self._batch.exact)
        return y

    def attended(self, shape: Attention) -> AttentionBatch:
        """Return which tokens a layer attends to."""
        if self._batch.reach is None or not shape.causal:
            return self._batch
        if self._causal is None:
            self._causal = replace(self._batch, reach=None)
        return self._causal

    def latent_values(self, attended: Tensor, heads: LatentHeads) -> Tensor:
        assert isinstance(heads.values, Tensor)
        rows = attended.view(len(attended), heads.latent.heads, -1)
        return latent_values_torch(rows, heads.values, self._batch.exact)

    def select(
        self, q: Tensor, residual: Tensor, x: Tensor, gate: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        if self._selection is None:
            return q, residual, x, gate
        self._batch, rows, self._causal = self._selection.batch, self._selection.rows, None
        kept = residual.index_select(0, rows)
        return (
            q.index_select(0, rows),
            kept,
            kept if x is residual else x.index_select(0, rows),
            None if gate is None else gate.index_select(0, rows),
        )

    def activate(self, x: Tensor, activation: Activation, gated: bool, curve: Tensor | None = None) -> Tensor:
        if curve is not None:
            return xielu_torch(x, curve)
        return (self.gated if gated else self.plain)[activation](x)

    def mix(self, weights: ExpertsWeights, activate: Callable[[Tensor], Tensor]) -> Mix:
        """Return what computes the experts."""
        raise NotImplementedError

    def experts(
        self, x: Tensor, weights: ExpertsWeights, shared: Tensor | None, asked: Tensor | None = None
    ) -> Tensor:
        mix = self.mix(weights, (self.gated if weights.gated else self.plain)[weights.activation])
        exact = self._batch.exact
        return add_shared(_mixed(x, weights, asked, mix, exact), x, weights, shared, exact)

    def gate(self, attended: Tensor, gate: Tensor) -> Tensor:
        return (attended.float() * sigmoid_torch(gate.float())).to(attended.dtype)

    def rotate(self, q: Tensor, heads: Heads) -> Tensor:
        assert heads.cos_sin is not None
        plan = RopePlan(*rotations(heads.cos_sin, self._batch.positions), self._batch.slot_mapping, None)
        return rotate_torch(
            q.view(len(q), heads.attention.heads, -1), plan, heads.attention.heads, heads.norms
        )

    def token_inputs(self, embedded: Tensor, inputs: TokenInputs) -> Tensor:
        weights, width = inputs.weights, len(inputs.weights.norm.weight)
        own = F.embedding(self._token_ids.clamp(min=0), weights.embedding).mul_(inputs.factor)
        projected = self.linear(embedded, weights.projection).mul_(embedded.shape[1] ** -0.5)
        normed = self.norm(projected.view(-1, width), inputs.norm)
        return (normed.reshape(own.shape) + own).mul_(2.0**-0.5).view(len(own), -1, width)

    def delta(self, projected: Tensor, states: KVCache, heads: DeltaHeads) -> Tensor:
        if heads.net.state_space:
            return self._state_space(projected, states, heads)
        net, weights, batch = heads.net, heads.weights, self._batch
        ends = (net.channels, net.channels + net.values, -net.value_heads)
        qkv, gate, b, a = projected.tensor_split(ends, 1)
        inputs, matrices = states
        mixed = causal_conv(qkv, weights.conv, inputs, batch)
        decays, strengths = delta_gates(a, b, weights.rates, weights.shifts)
        found = delta_rule(mixed, decays, strengths * net.strength, matrices, batch, heads.shape)
        assert weights.norm is not None
        return gated_norm(found, gate.reshape(found.shape), weights.norm, net.eps).flatten(1)

    def short_conv(self, projected: Tensor, states: KVCache, weights: ShortConvWeights) -> Tensor:
        of_inputs, of_results, inputs = projected.chunk(3, 1)
        gated, kept = of_inputs * inputs, states[0]
        mixed = causal_conv(gated, weights.conv, kept, self._batch, weights.conv_bias, activated=False)
        return of_results * mixed

    def selective(self, projected: Tensor, states: KVCache, weights: SelectiveWeights) -> Tensor:
        inputs, gate = projected.chunk(2, 1)
        mixed = causal_conv(inputs, weights.conv, states[0], self._batch, weights.conv_bias)
        rank, size = weights.steps.shape[1], weights.rates.shape[1]
        parts = torch.split(self.linear(mixed, weights.select), [rank, size, size], 1)
        steps, writes, reads = (
            rms_norm_torch(part.contiguous(), twice(norm), weights.eps)
            for part, norm in zip(parts, weights.norms, strict=True)
        )
        found = selective_scan(
            mixed, self.linear(steps, weights.steps), writes, reads, weights.rates, weights.shifts, states[1],
            self._batch,
        )  # fmt: skip
        wide = gate.float()
        total = (found + weights.skip * mixed.float()) * wide * sigmoid_torch(wide)
        return total.to(projected.dtype)

    def _state_space(self, projected: Tensor, states: KVCache, heads: DeltaHeads) -> Tensor:
        net, weights, batch = heads.net, heads.weights, self._batch
        assert weights.skip is not None
        qkv, gate, steps = projected.tensor_split((net.channels, net.channels + net.values), 1)
        inputs, matrices = states
        mixed = causal_conv(qkv, weights.conv, inputs, batch, weights.conv_bias)
        gates = state_space_gates(steps, weights.rates, weights.shifts)
        found = delta_rule(mixed, *gates, matrices, batch, heads.shape)
        values = mixed[:, -net.values :].reshape(found.shape)
        found = (found.float() + weights.skip[:, None] * values.float()).to(found.dtype)
        if weights.norm is None:
            wide = gate.float()
            return (found.flatten(1).float() * wide * sigmoid_torch(wide)).to(found.dtype)
        return gated_group_norm(found.flatten(1), gate, weights.norm, net.key_heads, net.eps)

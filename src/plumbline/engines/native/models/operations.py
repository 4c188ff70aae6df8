"""Define the operations of a forward pass, as Triton kernels and as torch on a CPU.

The loop over layers (`transformer.py`) is written once and takes one of them, or records them (`recorded.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.engines.native.models.adapters.layers import EagerAdapters
from plumbline.engines.native.models.description import Activation, Attention, DeltaNet, Latent, Norm
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.weights import DeltaWeights, ExpertsWeights, Stack, TokenInputWeights
from plumbline_kernels._backend import use_triton
from plumbline_kernels.attention import AttentionBatch, Selection, paged_attention, paged_attention_torch
from plumbline_kernels.delta import (
    DeltaShape,
    causal_conv,
    delta_gates,
    delta_rule,
    gated_group_norm,
    gated_norm,
    state_space_gates,
)
from plumbline_kernels.experts import mix, mix_torch, route, spread
from plumbline_kernels.latent import (
    latent_attention,
    latent_queries_torch,
    latent_values_torch,
    latent_write,
    latent_write_torch,
)
from plumbline_kernels.norm import (
    add_layer_norm,
    add_rms_norm,
    add_torch,
    layer_norm,
    layer_norm_torch,
    rms_norm,
    rms_norm_torch,
    twice,
)
from plumbline_kernels.rope_kv import (
    HeadNorms,
    RopePlan,
    plan_rope,
    rope_kv_write,
    rope_kv_write_torch,
    rotate_torch,
    rotations,
)
from plumbline_kernels.swiglu import (
    gelu,
    gelu_mul,
    gelu_mul_torch,
    gelu_torch,
    oss_mul,
    oss_mul_torch,
    relu2,
    relu2_torch,
    sigmoid_torch,
    silu_mul,
    silu_mul_torch,
)

__all__ = [
    "Backend",
    "DeltaHeads",
    "Heads",
    "KVCache",
    "LatentHeads",
    "Loop",
    "Operations",
    "PreparedNorm",
    "TokenInputs",
    "eager_backend",
]

KVCache = tuple[Tensor, Tensor]
"""Keys and values of a layer, each [num_blocks, block_size, KV, head_dim]; or the states of a delta net's sequences:
their last inputs [rows, channels, taps - 1], and fp32 [rows, HV, key_dim, value_dim]."""


@dataclass(frozen=True, slots=True)
class PreparedNorm:
    """A norm, with its weights as a backend prepares them."""

    norm: Norm
    weight: Tensor
    """fp32 [D], or [2 D] in the form of `twice`."""
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Heads:
    """An attention, with what its operations need besides the projections."""

    attention: Attention
    cos_sin: Tensor | None
    """The table of `rope_table`; None without a rotation."""
    temperature: Tensor | None
    """The factors of `temperatures`."""
    norms: HeadNorms | None
    sinks: Tensor | None
    rank: int | None = None
    """Of latents, which are values and the first part of keys; None for keys and values apart."""


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """A latent attention, with what its operations need besides the projections."""

    latent: Latent
    cos_sin: Tensor
    """The table of `rope_table`, as wide as the rotated key."""
    norm: PreparedNorm
    """Of latents."""
    keys: Tensor | list[Linear]
    """See `LatentWeights`."""
    values: Tensor | list[Linear]


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """What makes the inputs of all layers from the tokens' second embeddings."""

    weights: TokenInputWeights
    norm: PreparedNorm
    factor: float
    """On the second embeddings, rounded to the model's type."""


@dataclass(frozen=True, slots=True)
class DeltaHeads:
    """A delta net, with what its operations need."""

    net: DeltaNet
    shape: DeltaShape
    weights: DeltaWeights


class Operations(Protocol):
    """The operations of one step. T are its tokens, D the width, H and KV the query and key heads."""

    def embed(self, table: Tensor, factor: float) -> Tensor:
        """Return the rows of `table` [V, D] of the step's tokens, times a factor, [T, D]."""
        ...

    def norm(self, x: Tensor, norm: PreparedNorm) -> Tensor:
        """Return the norm of x [T, D]."""
        ...

    def add(self, x: Tensor, residual: Tensor, factor: float, scale: float) -> Tensor:
        """Return scale * (residual + factor * x), both [T, D]; the residual may be overwritten."""
        ...

    def add_norm(
        self, x: Tensor, residual: Tensor, norm: PreparedNorm, factor: float, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Return the norm of scale * (residual + factor * x), and that sum; both [T, D]."""
        ...

    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        """Map x [T, in] to [T, out], and add what the adapters of the tokens add."""
        ...

    def rope_kv_write(self, qkv: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        """Rotate q and k of qkv [T, (H + 2 KV) * head_dim], write k and v to the cache, return q."""
        ...

    def select(
        self, q: Tensor, residual: Tensor, x: Tensor, gate: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Keep the tokens whose results are wanted; the operations after this one compute no others."""
        ...

    def attend(self, q: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        """Return the attention of q over the cache, [T, H * head_dim]."""
        ...

    def gate(self, attended: Tensor, gate: Tensor) -> Tensor:
        """Return attended * sigmoid(gate), both [T, H * head_dim]."""
        ...

    def delta(self, projected: Tensor, states: KVCache, heads: DeltaHeads) -> Tensor:
        """Run a delta net on [T, channels + values + 2 HV] and its states; returns [T, HV * value_dim]."""
        ...

    def latent_write(self, q: Tensor, kv: Tensor, cache: KVCache, heads: LatentHeads) -> Tensor:
        """Write latents and keys of kv [T, rank + rope] to the cache; return queries over it, [T, H, rank + rope]."""
        ...

    def latent_values(self, attended: Tensor, heads: LatentHeads) -> Tensor:
        """Map sums of what the cache has, or of its latents alone, [T, H * width], to values [T, H * value]."""
        ...

    def activate(self, x: Tensor, activation: Activation, gated: bool) -> Tensor:
        """Return activation(gate) * up of [T, 2 * width], or activation(x) of [T, width]."""
        ...

    def experts(
        self, x: Tensor, weights: ExpertsWeights, shared: Tensor | None, asked: Tensor | None = None
    ) -> Tensor:
        """Return the experts' results for x [T, D], and the result of shared experts times its gate, added up.

        The router chooses by `asked` [T, D], or by x.
        """
        ...

    def rotate(self, q: Tensor, heads: Heads) -> Tensor:
        """Normalise and rotate q [T, H * head_dim] of a layer that writes no keys; returns [T, H, head_dim]."""
        ...

    def token_inputs(self, embedded: Tensor, inputs: TokenInputs) -> Tensor:
        """Return the inputs of all layers, [T, layers, width], of tokens with these embeddings [T, D]."""
        ...

    def gated_inputs(self, gate: Tensor, given: Tensor) -> Tensor:
        """Return gelu(gate) * given, both [T, width]."""
        ...


Loop = Callable[[Operations, list[KVCache]], Tensor]
"""The loop over layers: returns the last result."""


class Backend(Protocol):
    """Prepare the weights of a model, and run its loop over the operations of each step."""

    def norm(self, norm: Norm, weight: Tensor, bias: Tensor | None) -> PreparedNorm:
        """Prepare the weights of a norm, fp32 [D], once per model."""
        ...

    def run(
        self,
        loop: Loop,
        token_ids: Tensor,
        batch: AttentionBatch,
        caches: list[KVCache],
        selection: Selection | None,
        given: Tensor | None = None,
    ) -> Tensor:
        """Run a step: int64 [T] token ids to hidden states [R, D] of the selected tokens (None: of all).

        Token -1 - i has row i of `given` [G, D] as its embedding, which is not scaled.
        """
        ...


def eager_backend(weights: Tensor) -> Backend:
    """Return the kernels for weights on a GPU, torch for those on a CPU."""
    return _KernelBackend() if use_triton(weights) else _TorchBackend()


class _Step:
    """The tokens of a step, with the operations that all eager implementations share."""

    def __init__(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        selection: Selection | None,
        given: Tensor | None = None,
    ) -> None:
        self._token_ids, self._batch, self._selection, self._given = token_ids, batch, selection, given

    def norm(self, x: Tensor, norm: PreparedNorm) -> Tensor:
        raise NotImplementedError

    def embed(self, table: Tensor, factor: float) -> Tensor:
        if self._given is None:
            rows = F.embedding(self._token_ids, table)
            return rows if factor == 1.0 else rows.mul_(factor)
        rows = F.embedding(self._token_ids.clamp(min=0), table)
        if factor != 1.0:
            rows = rows.mul_(factor)
        places = (self._token_ids < 0).nonzero().flatten()
        return rows.index_copy_(0, places, self._given[-1 - self._token_ids[places]])

    def add(self, x: Tensor, residual: Tensor, factor: float, scale: float) -> Tensor:
        return add_torch(x, residual, factor, scale)

    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        y = layer(x)
        adapted = self._batch.adapters
        if adapted is not None and layer.adapters is not None:
            assert isinstance(layer.adapters, EagerAdapters)
            layer.adapters.add(x, y, adapted)
        return y

    def latent_values(self, attended: Tensor, heads: LatentHeads) -> Tensor:
        assert isinstance(heads.values, Tensor)
        rows = attended.view(len(attended), heads.latent.heads, -1)
        return latent_values_torch(rows, heads.values, self._batch.exact)

    def select(
        self, q: Tensor, residual: Tensor, x: Tensor, gate: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        if self._selection is None:
            return q, residual, x, gate
        self._batch, rows = self._selection.batch, self._selection.rows
        kept = residual.index_select(0, rows)
        return (
            q.index_select(0, rows),
            kept,
            kept if x is residual else x.index_select(0, rows),
            None if gate is None else gate.index_select(0, rows),
        )

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
        found = delta_rule(
            mixed, *delta_gates(a, b, weights.rates, weights.shifts), matrices, batch, heads.shape
        )
        return gated_norm(found, gate.reshape(found.shape), weights.norm, net.eps).flatten(1)

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
        return gated_group_norm(found.flatten(1), gate, weights.norm, net.key_heads, net.eps)


_GATES = {"silu": silu_mul_torch, "gelu_tanh": gelu_mul_torch, "swiglu_oss": oss_mul_torch}
_PLAIN = {"gelu_tanh": gelu_torch, "relu2": relu2_torch}
_PLAIN_KERNELS = {"gelu_tanh": gelu, "relu2": relu2}
_GATE_KERNELS = {"silu": silu_mul, "gelu_tanh": gelu_mul, "swiglu_oss": oss_mul}


Mix = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Return the weighted sums of experts' results, fp32 [T, D], for rows, their weights and their experts."""


def _mixed(x: Tensor, weights: ExpertsWeights, asked: Tensor | None, mix: Mix) -> Tensor:
    """Choose the experts of each token, and return the sum of their results, fp32 [T, D]."""
    logits = weights.router((x if asked is None else asked).float())
    factors, chosen = route(logits, weights.routing, weights.correction)
    if weights.factors is not None:
        factors = factors * weights.factors[chosen]
    if weights.routing.of_inputs:
        return mix(*spread(x, factors, chosen)).view(len(x), weights.routing.top_k, -1).sum(1)
    return mix(x, factors, chosen)


def _add_shared(mixed: Tensor, x: Tensor, weights: ExpertsWeights, shared: Tensor | None) -> Tensor:
    """Add the result of shared experts, times its gate, to fp32 sums [T, D]."""
    if shared is not None:
        if weights.shared_gate is not None:
            # A product with one column would be summed in an order that depends on the number of rows.
            shared = shared * sigmoid_torch((x.float() * weights.shared_gate).sum(1, keepdim=True))
        mixed += shared
    return mixed.to(x.dtype)


class _Kernels(_Step):
    def norm(self, x: Tensor, norm: PreparedNorm) -> Tensor:
        if norm.norm.kind == "layer":
            return layer_norm(x, norm.weight, norm.bias, norm.norm.eps)
        return rms_norm(x, norm.weight, norm.norm.eps)

    def add_norm(
        self, x: Tensor, residual: Tensor, norm: PreparedNorm, factor: float, scale: float
    ) -> tuple[Tensor, Tensor]:
        if norm.norm.kind == "layer":
            return add_layer_norm(x, residual, norm.weight, norm.bias, norm.norm.eps, factor, scale)
        return add_rms_norm(x, residual, norm.weight, norm.norm.eps, factor, scale)

    def rope_kv_write(self, qkv: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        batch, shape = self._batch, heads.attention
        return rope_kv_write(
            qkv, heads.cos_sin, batch.positions, batch.slot_mapping, *cache,
            shape.heads, shape.kv_heads, heads.norms, temperature=heads.temperature,
        )  # fmt: skip

    def latent_write(self, q: Tensor, kv: Tensor, cache: KVCache, heads: LatentHeads) -> Tensor:
        batch, norm = self._batch, heads.norm
        latent_write(
            kv, norm.weight, norm.norm.eps, heads.cos_sin, batch.positions, batch.slot_mapping, cache[0]
        )
        assert isinstance(heads.keys, Tensor)
        plan = RopePlan(*rotations(heads.cos_sin, batch.positions), batch.slot_mapping, None)
        return latent_queries_torch(q, plan, heads.keys, batch.exact)

    def attend(self, q: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        shape = heads.attention
        if heads.rank is not None:
            return latent_attention(q, cache[0], self._batch, heads.rank, shape.scale).flatten(1)
        return paged_attention(
            q, *cache, self._batch, shape.scale, shape.window, shape.softcap, heads.sinks, shape.tiled
        ).flatten(1)

    def activate(self, x: Tensor, activation: Activation, gated: bool) -> Tensor:
        return (_GATE_KERNELS if gated else _PLAIN_KERNELS)[activation](x)

    def experts(
        self, x: Tensor, weights: ExpertsWeights, shared: Tensor | None, asked: Tensor | None = None
    ) -> Tensor:
        gate_up, down = weights.gate_up, weights.down
        assert isinstance(gate_up, Stack)
        assert isinstance(down, Stack)
        found = partial(
            mix, gate_up=gate_up.weight, gate_up_bias=gate_up.bias, down=down.weight, down_bias=down.bias,
            activate=_GATE_KERNELS[weights.activation],
        )  # fmt: skip
        return _add_shared(_mixed(x, weights, asked, found), x, weights, shared)

    def gated_inputs(self, gate: Tensor, given: Tensor) -> Tensor:
        return gelu_mul(torch.cat((gate, given), 1))


class _Torch(_Step):
    """Skips the checks of the kernels: on a CPU a call costs as much as its arithmetic, and descriptions fix shapes."""

    def __init__(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        selection: Selection | None,
        given: Tensor | None = None,
    ) -> None:
        super().__init__(token_ids, batch, selection, given)
        self._all = batch
        self._plans: dict[int, RopePlan] = {}

    def norm(self, x: Tensor, norm: PreparedNorm) -> Tensor:
        if norm.norm.kind == "layer":
            return layer_norm_torch(x, norm.weight, norm.bias, norm.norm.eps)
        return rms_norm_torch(x, norm.weight, norm.norm.eps)

    def add_norm(
        self, x: Tensor, residual: Tensor, norm: PreparedNorm, factor: float, scale: float
    ) -> tuple[Tensor, Tensor]:
        residual = add_torch(x, residual, factor, scale)
        return self.norm(residual, norm), residual

    def rope_kv_write(self, qkv: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        plan = self._plan(heads.cos_sin, heads.temperature)
        return rope_kv_write_torch(qkv, plan, *cache, heads.attention.heads, heads.norms)

    def _plan(self, cos_sin: Tensor | None, temperature: Tensor | None = None) -> RopePlan:
        """Return the rotations of the step, which layers with the same table share."""
        plan = self._plans.get(id(cos_sin))
        if plan is None:
            plan = plan_rope(cos_sin, self._all.positions, self._all.slot_mapping, temperature)
            self._plans[id(cos_sin)] = plan
        return plan

    def latent_write(self, q: Tensor, kv: Tensor, cache: KVCache, heads: LatentHeads) -> Tensor:
        plan = self._plan(heads.cos_sin)
        assert isinstance(heads.keys, Tensor)
        latent_write_torch(kv, plan, cache[0], heads.norm.weight, heads.norm.norm.eps)
        return latent_queries_torch(q, plan, heads.keys, self._all.exact)

    def attend(self, q: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        shape = heads.attention
        return paged_attention_torch(
            q, *cache, self._batch, shape.scale, shape.window, shape.softcap, heads.sinks, shape.tiled
        ).flatten(1)

    def activate(self, x: Tensor, activation: Activation, gated: bool) -> Tensor:
        return (_GATES if gated else _PLAIN)[activation](x)

    def experts(
        self, x: Tensor, weights: ExpertsWeights, shared: Tensor | None, asked: Tensor | None = None
    ) -> Tensor:
        assert isinstance(weights.gate_up, list)
        assert isinstance(weights.down, list)
        found = partial(
            mix_torch, gate_up=weights.gate_up, down=weights.down, activate=_GATES[weights.activation]
        )
        return _add_shared(_mixed(x, weights, asked, found), x, weights, shared)

    def gated_inputs(self, gate: Tensor, given: Tensor) -> Tensor:
        return gelu_mul_torch(torch.cat((gate, given), 1))


class _EagerBackend:
    """Run the loop over the operations of a step one by one."""

    step: type[_Kernels] | type[_Torch]

    def run(
        self,
        loop: Loop,
        token_ids: Tensor,
        batch: AttentionBatch,
        caches: list[KVCache],
        selection: Selection | None,
        given: Tensor | None = None,
    ) -> Tensor:
        return loop(self.step(token_ids, batch, selection, given), caches)


class _KernelBackend(_EagerBackend):
    step = _Kernels

    def norm(self, norm: Norm, weight: Tensor, bias: Tensor | None) -> PreparedNorm:
        return PreparedNorm(norm, weight, bias)


class _TorchBackend(_EagerBackend):
    step = _Torch

    def norm(self, norm: Norm, weight: Tensor, bias: Tensor | None) -> PreparedNorm:
        return PreparedNorm(norm, twice(weight) if norm.kind == "rms" else weight, bias)

"""Run the operations of a step as Triton kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from plumbline.engines.native.models.operations.interface import Heads, KVCache, LatentHeads, PreparedNorm
from plumbline.engines.native.models.operations.step import Mix, Step, add_shared
from plumbline.engines.native.models.weights import ExpertsWeights, Stack
from plumbline_kernels.attention import paged_attention
from plumbline_kernels.experts import mix, mix_routed
from plumbline_kernels.latent import latent_attention, latent_queries_torch, latent_write
from plumbline_kernels.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from plumbline_kernels.rope_kv import RopePlan, rope_kv_write, rotations
from plumbline_kernels.swiglu import gelu, gelu_erf, gelu_erf_mul, gelu_mul, oss_mul, relu, relu2, silu_mul

__all__ = ["KernelStep"]


class KernelStep(Step):
    """Implements `Operations` by kernels."""

    gated = MappingProxyType(
        {"silu": silu_mul, "gelu_tanh": gelu_mul, "gelu": gelu_erf_mul, "swiglu_oss": oss_mul}
    )
    plain = MappingProxyType({"gelu_tanh": gelu, "gelu": gelu_erf, "relu": relu, "relu2": relu2})

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
            q,
            *cache,
            self.attended(shape),
            shape.scale,
            shape.window,
            shape.softcap,
            heads.sinks,
            shape.tiled,
        ).flatten(1)

    def mix(self, weights: ExpertsWeights, activate: Callable[[Tensor], Tensor]) -> Mix:
        gate_up, down = weights.gate_up, weights.down
        assert isinstance(gate_up, Stack)
        assert isinstance(down, Stack)
        return partial(
            mix, gate_up=gate_up.weight, gate_up_bias=gate_up.bias, down=down.weight, down_bias=down.bias,
            activate=activate, exact=self._batch.exact,
        )  # fmt: skip

    def experts(
        self, x: Tensor, weights: ExpertsWeights, shared: Tensor | None, asked: Tensor | None = None
    ) -> Tensor:
        if weights.factors is not None or weights.routing.of_inputs:
            return super().experts(x, weights, shared, asked)
        gate_up, down = weights.gate_up, weights.down
        assert isinstance(gate_up, Stack)
        assert isinstance(down, Stack)
        total = mix_routed(
            x,
            weights.router((x if asked is None else asked).float(), self._batch.exact),
            weights.routing,
            weights.correction,
            gate_up=gate_up.weight,
            gate_up_bias=gate_up.bias,
            down=down.weight,
            down_bias=down.bias,
            activate=(self.gated if weights.gated else self.plain)[weights.activation],
            dtype=x.dtype if shared is None else torch.float32,
            exact=self._batch.exact,
        )
        return add_shared(total, x, weights, shared, self._batch.exact)

    def gated_inputs(self, gate: Tensor, given: Tensor) -> Tensor:
        return gelu_mul(torch.cat((gate, given), 1))

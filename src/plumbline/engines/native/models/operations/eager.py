"""Run the operations of a step one by one, as torch on a CPU or as kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from plumbline.engines.native.models.description import Norm
from plumbline.engines.native.models.operations.interface import (
    Backend,
    Heads,
    KVCache,
    LatentHeads,
    Loop,
    PreparedNorm,
)
from plumbline.engines.native.models.operations.kernels import KernelStep
from plumbline.engines.native.models.operations.step import Mix, Step
from plumbline.engines.native.models.weights import ExpertsWeights
from plumbline_kernels._backend import use_triton
from plumbline_kernels.attention import AttentionBatch, RowSelection, paged_attention_torch
from plumbline_kernels.experts import mix_torch
from plumbline_kernels.latent import latent_queries_torch, latent_write_torch
from plumbline_kernels.norm import add_torch, layer_norm_torch, rms_norm_torch, twice
from plumbline_kernels.rope_kv import RopePlan, plan_rope, rope_kv_write_torch
from plumbline_kernels.swiglu import (
    gelu_erf_mul_torch,
    gelu_erf_torch,
    gelu_mul_torch,
    gelu_torch,
    oss_mul_torch,
    relu2_torch,
    relu_torch,
    silu_mul_torch,
)

__all__ = ["eager_backend"]


def eager_backend(weights: Tensor) -> Backend:
    """Return the kernels for weights on a GPU, torch for those on a CPU."""
    return _KernelBackend() if use_triton(weights) else _TorchBackend()


class _TorchStep(Step):
    """Skips the checks of the kernels: on a CPU a call costs as much as its arithmetic, and descriptions fix shapes."""

    gated = MappingProxyType(
        {
            "silu": silu_mul_torch,
            "gelu_tanh": gelu_mul_torch,
            "gelu": gelu_erf_mul_torch,
            "swiglu_oss": oss_mul_torch,
        }
    )
    plain = MappingProxyType(
        {"gelu_tanh": gelu_torch, "gelu": gelu_erf_torch, "relu": relu_torch, "relu2": relu2_torch}
    )

    def __init__(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        selection: RowSelection | None,
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
        assert isinstance(weights.gate_up, list)
        assert isinstance(weights.down, list)
        return partial(mix_torch, gate_up=weights.gate_up, down=weights.down, activate=activate)

    def gated_inputs(self, gate: Tensor, given: Tensor) -> Tensor:
        return gelu_mul_torch(torch.cat((gate, given), 1))


class _EagerBackend:
    """Run the loop over the operations of a step one by one."""

    step: type[KernelStep] | type[_TorchStep]

    def run(
        self,
        loop: Loop,
        token_ids: Tensor,
        batch: AttentionBatch,
        caches: list[KVCache],
        selection: RowSelection | None,
        given: Tensor | None = None,
    ) -> Tensor:
        return loop(self.step(token_ids, batch, selection, given), caches)


class _KernelBackend(_EagerBackend):
    step = KernelStep

    def norm(self, norm: Norm, weight: Tensor, bias: Tensor | None) -> PreparedNorm:
        return PreparedNorm(norm, weight, bias)


class _TorchBackend(_EagerBackend):
    step = _TorchStep

    def norm(self, norm: Norm, weight: Tensor, bias: Tensor | None) -> PreparedNorm:
        return PreparedNorm(norm, twice(weight) if norm.kind == "rms" else weight, bias)

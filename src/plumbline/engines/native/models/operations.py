"""Define the operations of a step besides the linear layers, as Triton kernels and as torch on a CPU.

The loop over layers (`transformer.py`) is written once and takes one of them.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from plumbline.engines.native.models.config import ModelConfig
from plumbline_kernels import use_triton
from plumbline_kernels.attention import AttentionBatch, paged_attention, paged_attention_torch
from plumbline_kernels.norm import add_rms_norm, add_rms_norm_torch, rms_norm, rms_norm_torch, twice
from plumbline_kernels.rope_kv import (
    RopePlan,
    merge_head_norms,
    plan_rope,
    rope_kv_write,
    rope_kv_write_torch,
)
from plumbline_kernels.swiglu import silu_mul, silu_mul_torch

__all__ = ["HeadNorms", "KVCache", "Operations", "operations_on"]

KVCache = tuple[Tensor, Tensor]
"""Keys and values of a layer, each [num_blocks, block_size, KV, head_dim]."""
HeadNorms = tuple[Tensor, ...] | None
"""The norm weights of query and key heads, as `Operations.head_norms` prepares them."""


class Operations(Protocol):
    """The operations of a model. T are the tokens of a step, D the width, H and KV the query and key heads."""

    def norm_weight(self, weight: Tensor) -> Tensor:
        """Prepare the weight [D] of a norm, once per model."""
        ...

    def head_norms(self, weights: tuple[Tensor, Tensor] | None) -> HeadNorms:
        """Prepare the weights of q and k norms, each [head_dim], once per model."""
        ...

    def begin(self, batch: AttentionBatch) -> RopePlan | None:
        """Compute what all layers of a step share."""
        ...

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the RMS norm of x [T, D]."""
        ...

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the RMS norm of x + residual, and the sum; both [T, D]."""
        ...

    def rope_kv_write(
        self, qkv: Tensor, batch: AttentionBatch, plan: RopePlan | None, cache: KVCache, norms: HeadNorms
    ) -> Tensor:
        """Rotate q and k of qkv [T, (H + 2 KV) * head_dim], write k and v to the cache, return q [T, H, head_dim]."""
        ...

    def attend(self, q: Tensor, cache: KVCache, batch: AttentionBatch, sliding_window: int | None) -> Tensor:
        """Return the attention of q over the cache, [T, H, head_dim]."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up of [T, 2 * width]."""
        ...


def operations_on(config: ModelConfig, cos_sin: Tensor) -> Operations:
    """Return the kernels for a model on a GPU, torch for one on a CPU; `cos_sin` is the table of `rope_table`."""
    return _Kernels(config, cos_sin) if use_triton(cos_sin) else _Torch(config, cos_sin)


class _Kernels:
    def __init__(self, config: ModelConfig, cos_sin: Tensor) -> None:
        self._heads, self._kv_heads, self._eps = config.num_heads, config.num_kv_heads, config.rms_norm_eps
        self._scale = config.head_dim**-0.5
        self._cos_sin = cos_sin

    def norm_weight(self, weight: Tensor) -> Tensor:
        return weight

    def head_norms(self, weights: tuple[Tensor, Tensor] | None) -> HeadNorms:
        return weights

    def begin(self, batch: AttentionBatch) -> RopePlan | None:
        return None

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self._eps)

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, weight, self._eps)

    def rope_kv_write(
        self, qkv: Tensor, batch: AttentionBatch, plan: RopePlan | None, cache: KVCache, norms: HeadNorms
    ) -> Tensor:
        q_norm, k_norm = norms or (None, None)
        return rope_kv_write(
            qkv, self._cos_sin, batch.positions, batch.slot_mapping, *cache,
            self._heads, self._kv_heads, q_norm, k_norm, self._eps,
        )  # fmt: skip

    def attend(self, q: Tensor, cache: KVCache, batch: AttentionBatch, sliding_window: int | None) -> Tensor:
        return paged_attention(q, *cache, batch, self._scale, sliding_window)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up)


class _Torch:
    """Skips the checks of the kernels: on a CPU a call costs as much as its arithmetic, and the config fixes shapes."""

    def __init__(self, config: ModelConfig, cos_sin: Tensor) -> None:
        self._heads, self._kv_heads, self._eps = config.num_heads, config.num_kv_heads, config.rms_norm_eps
        self._scale = config.head_dim**-0.5
        self._cos_sin = cos_sin

    def norm_weight(self, weight: Tensor) -> Tensor:
        return twice(weight)

    def head_norms(self, weights: tuple[Tensor, Tensor] | None) -> HeadNorms:
        return None if weights is None else (merge_head_norms(*weights, self._heads, self._kv_heads),)

    def begin(self, batch: AttentionBatch) -> RopePlan | None:
        return plan_rope(self._cos_sin, batch.positions, batch.slot_mapping)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm_torch(x, weight, self._eps)

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm_torch(x, residual, weight, self._eps)

    def rope_kv_write(
        self, qkv: Tensor, batch: AttentionBatch, plan: RopePlan | None, cache: KVCache, norms: HeadNorms
    ) -> Tensor:
        assert plan is not None, "from `begin`"
        (head_norms,) = norms or (None,)
        return rope_kv_write_torch(qkv, plan, *cache, self._heads, head_norms, self._eps)

    def attend(self, q: Tensor, cache: KVCache, batch: AttentionBatch, sliding_window: int | None) -> Tensor:
        return paged_attention_torch(q, *cache, batch, self._scale, sliding_window)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul_torch(gate_up)

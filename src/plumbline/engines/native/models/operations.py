"""Define the operations of a forward pass, as Triton kernels and as torch on a CPU.

The loop over layers (`transformer.py`) is written once and takes one of them, or records them (`recorded.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from plumbline.engines.native.models.config import ModelConfig
from plumbline.engines.native.models.linear import Linear
from plumbline_kernels._backend import use_triton
from plumbline_kernels.attention import AttentionBatch, Selection, paged_attention, paged_attention_torch
from plumbline_kernels.norm import add_rms_norm, add_rms_norm_torch, rms_norm, rms_norm_torch, twice
from plumbline_kernels.rope_kv import merge_head_norms, plan_rope, rope_kv_write, rope_kv_write_torch
from plumbline_kernels.swiglu import silu_mul, silu_mul_torch

__all__ = ["Backend", "HeadNorms", "KVCache", "Loop", "Operations", "eager_backend"]

KVCache = tuple[Tensor, Tensor]
"""Keys and values of a layer, each [num_blocks, block_size, KV, head_dim]."""
HeadNorms = tuple[Tensor, ...] | None
"""The norm weights of query and key heads, as `Backend.head_norms` prepares them."""


class Operations(Protocol):
    """The operations of one step. T are its tokens, D the width, H and KV the query and key heads."""

    def embed(self, table: Tensor) -> Tensor:
        """Return the rows of `table` [V, D] of the step's tokens, [T, D]."""
        ...

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the RMS norm of x [T, D]."""
        ...

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the RMS norm of x + residual, and the sum; both [T, D]."""
        ...

    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        """Map x [T, in] to [T, out]."""
        ...

    def rope_kv_write(self, qkv: Tensor, cache: KVCache, norms: HeadNorms) -> Tensor:
        """Rotate q and k of qkv [T, (H + 2 KV) * head_dim], write k and v to the cache, return q."""
        ...

    def select(self, q: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the tokens whose results are wanted; the operations after this one compute no others."""
        ...

    def attend(self, q: Tensor, cache: KVCache, sliding_window: int | None) -> Tensor:
        """Return the attention of q over the cache, [T, H * head_dim]."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up of [T, 2 * width]."""
        ...


Loop = Callable[[Operations, list[KVCache]], Tensor]
"""The loop over layers: returns the last result."""


class Backend(Protocol):
    """Prepare the weights of a model, and run its loop over the operations of each step."""

    def norm_weight(self, weight: Tensor) -> Tensor:
        """Prepare the weight [D] of a norm, once per model."""
        ...

    def head_norms(self, weights: tuple[Tensor, Tensor] | None) -> HeadNorms:
        """Prepare the weights of q and k norms, each [head_dim], once per model."""
        ...

    def run(
        self,
        loop: Loop,
        token_ids: Tensor,
        batch: AttentionBatch,
        caches: list[KVCache],
        selection: Selection | None,
    ) -> Tensor:
        """Run a step: int64 [T] token ids to hidden states [R, D] of the selected tokens (None: of all)."""
        ...


def eager_backend(config: ModelConfig, cos_sin: Tensor) -> Backend:
    """Return the kernels for a model on a GPU, torch for one on a CPU; `cos_sin` is the table of `rope_table`."""
    return _KernelBackend(config, cos_sin) if use_triton(cos_sin) else _TorchBackend(config, cos_sin)


class _Constants:
    """What the operations of a model have in common."""

    def __init__(self, config: ModelConfig, cos_sin: Tensor) -> None:
        self.heads, self.kv_heads, self.eps = config.num_heads, config.num_kv_heads, config.rms_norm_eps
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        self.cos_sin = cos_sin


class _Step:
    """The tokens of a step, with the operations that all eager implementations share."""

    def __init__(
        self, model: _Constants, token_ids: Tensor, batch: AttentionBatch, selection: Selection | None
    ) -> None:
        self._model, self._token_ids, self._batch, self._selection = model, token_ids, batch, selection

    def embed(self, table: Tensor) -> Tensor:
        return F.embedding(self._token_ids, table)

    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        return layer(x)

    def select(self, q: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        if self._selection is None:
            return q, residual
        self._batch, rows = self._selection.batch, self._selection.rows
        return q.index_select(0, rows), residual.index_select(0, rows)


class _Kernels(_Step):
    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self._model.eps)

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, weight, self._model.eps)

    def rope_kv_write(self, qkv: Tensor, cache: KVCache, norms: HeadNorms) -> Tensor:
        q_norm, k_norm = norms or (None, None)
        model, batch = self._model, self._batch
        return rope_kv_write(
            qkv, model.cos_sin, batch.positions, batch.slot_mapping, *cache,
            model.heads, model.kv_heads, q_norm, k_norm, model.eps,
        )  # fmt: skip

    def attend(self, q: Tensor, cache: KVCache, sliding_window: int | None) -> Tensor:
        return paged_attention(q, *cache, self._batch, self._model.scale, sliding_window).flatten(1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up)


class _Torch(_Step):
    """Skips the checks of the kernels: on a CPU a call costs as much as its arithmetic, and the config fixes shapes."""

    def __init__(
        self, model: _Constants, token_ids: Tensor, batch: AttentionBatch, selection: Selection | None
    ) -> None:
        super().__init__(model, token_ids, batch, selection)
        self._plan = plan_rope(model.cos_sin, batch.positions, batch.slot_mapping)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm_torch(x, weight, self._model.eps)

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm_torch(x, residual, weight, self._model.eps)

    def rope_kv_write(self, qkv: Tensor, cache: KVCache, norms: HeadNorms) -> Tensor:
        (head_norms,) = norms or (None,)
        return rope_kv_write_torch(qkv, self._plan, *cache, self._model.heads, head_norms, self._model.eps)

    def attend(self, q: Tensor, cache: KVCache, sliding_window: int | None) -> Tensor:
        return paged_attention_torch(q, *cache, self._batch, self._model.scale, sliding_window).flatten(1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul_torch(gate_up)


class _EagerBackend(_Constants):
    """Run the loop over the operations of a step one by one."""

    step: type[_Kernels] | type[_Torch]

    def run(
        self,
        loop: Loop,
        token_ids: Tensor,
        batch: AttentionBatch,
        caches: list[KVCache],
        selection: Selection | None,
    ) -> Tensor:
        return loop(self.step(self, token_ids, batch, selection), caches)


class _KernelBackend(_EagerBackend):
    step = _Kernels

    def norm_weight(self, weight: Tensor) -> Tensor:
        return weight

    def head_norms(self, weights: tuple[Tensor, Tensor] | None) -> HeadNorms:
        return weights


class _TorchBackend(_EagerBackend):
    step = _Torch

    def norm_weight(self, weight: Tensor) -> Tensor:
        return twice(weight)

    def head_norms(self, weights: tuple[Tensor, Tensor] | None) -> HeadNorms:
        return None if weights is None else (merge_head_norms(*weights, self.heads, self.kv_heads),)

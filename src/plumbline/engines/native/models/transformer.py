"""Run Llama, Qwen2, Qwen3 and Mistral models; flags of the config select what differs.

The classes are plain tensors without autograd or a module tree. A step runs four linear layers per layer and few other
operations: q, k and v are one projection, gate and up are one, the residual add is fused with the norm and the rotation
with the cache write.

Reproducibility: can the logits of a sequence depend on the other sequences of a step, or on how its prompt is cut into
chunks? On CPU, in fp32 and bf16:

* A decode gives the same bits in any batch, for up to two query heads per key head: the linear layers are packed for
  that (`linear.py`), attention pads its keys for that, and all other operations treat rows separately.
* If the batch is `exact`, every token gives the same bits: any batch, any chunks, decoded or prefilled, any heads.
* Otherwise logits of prompts may differ in the last bits between chunkings.

This is tested on x86-64 with AVX-512 and depends on the summation order of oneDNN and MKL. On a GPU, and in fp16 on
CPU, the libraries choose their summation order by the number of rows, so there is no such guarantee.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.engines.native.models.config import ModelConfig
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.rope import rope_table
from plumbline_kernels import use_triton
from plumbline_kernels.attention import AttentionBatch, paged_attention, paged_attention_torch
from plumbline_kernels.norm import add_rms_norm, add_rms_norm_torch, rms_norm, rms_norm_torch, twice
from plumbline_kernels.rope_kv import merge_head_norms, plan_rope, rope_kv_write, rope_kv_write_torch
from plumbline_kernels.swiglu import silu_mul, silu_mul_torch

__all__ = ["KVCache", "Layer", "Transformer"]

KVCache = tuple[Tensor, Tensor]


@dataclass(slots=True)
class Layer:
    """The weights of one layer."""

    input_norm: Tensor
    qkv: Linear
    o: Linear
    post_attention_norm: Tensor
    gate_up: Linear
    down: Linear
    head_norms: tuple[Tensor, Tensor] | None
    """The norm weights of q and k, if each head is normalised (Qwen3)."""
    sliding_window: int | None


class _TorchNorms(NamedTuple):
    """The norm weights of a layer as the torch implementations of the kernels take them."""

    input: Tensor
    post_attention: Tensor
    heads: Tensor | None


class Transformer:
    """A decoder-only language model over a paged KV cache."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Tensor,
        layers: list[Layer],
        norm: Tensor,
        lm_head: Tensor | None,
    ) -> None:
        """Take the weights; `lm_head` is None if it is tied to the embedding."""
        self.config = config
        self.embedding = embedding
        self.layers = layers
        self.norm = norm
        self.lm_head = Linear(embedding if lm_head is None else lm_head)
        self.cos_sin = rope_table(config.rope, config.head_dim, config.max_model_len).to(embedding.device)
        self.scale = config.head_dim**-0.5
        self._torch_norm = twice(norm)
        self._torch_norms = [
            _TorchNorms(
                twice(layer.input_norm),
                twice(layer.post_attention_norm),
                layer.head_norms
                and merge_head_norms(*layer.head_norms, config.num_heads, config.num_kv_heads),
            )
            for layer in layers
        ]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, activations and (by default) the cache."""
        return self.embedding.dtype

    def allocate_kv(
        self, num_blocks: int, block_size: int, dtype: torch.dtype | None = None
    ) -> list[KVCache]:
        """Make one (keys, values) pair per layer, each [num_blocks, block_size, KV, head_dim]."""
        config = self.config
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)

        def zeros() -> Tensor:
            return torch.zeros(shape, dtype=dtype or self.dtype, device=self.device)

        return [(zeros(), zeros()) for _ in self.layers]

    def forward(self, token_ids: Tensor, batch: AttentionBatch, kv_caches: list[KVCache]) -> Tensor:
        """Run one step: int64 [T] token ids to hidden states [T, D]; writes the new keys and values to the caches."""
        run = self._forward_kernels if use_triton(token_ids) else self._forward_torch
        return run(F.embedding(token_ids, self.embedding), batch, kv_caches)

    def _forward_kernels(self, residual: Tensor, batch: AttentionBatch, kv_caches: list[KVCache]) -> Tensor:
        config, scale = self.config, self.scale
        heads, kv_heads, eps = config.num_heads, config.num_kv_heads, config.rms_norm_eps
        x: Tensor | None = None
        for layer, (k_cache, v_cache) in zip(self.layers, kv_caches, strict=True):
            if x is None:
                x = rms_norm(residual, layer.input_norm, eps)
            else:
                x, residual = add_rms_norm(x, residual, layer.input_norm, eps)
            q_norm, k_norm = layer.head_norms or (None, None)
            q = rope_kv_write(
                layer.qkv(x), self.cos_sin, batch.positions, batch.slot_mapping, k_cache, v_cache,
                heads, kv_heads, q_norm, k_norm, eps,
            )  # fmt: skip
            attended = paged_attention(q, k_cache, v_cache, batch, scale, layer.sliding_window)
            x, residual = add_rms_norm(layer.o(attended.flatten(1)), residual, layer.post_attention_norm, eps)
            x = layer.down(silu_mul(layer.gate_up(x)))
        if x is None:
            return rms_norm(residual, self.norm, eps)
        return add_rms_norm(x, residual, self.norm, eps)[0]

    def _forward_torch(self, residual: Tensor, batch: AttentionBatch, kv_caches: list[KVCache]) -> Tensor:
        """Run the layers with the torch implementations, on a CPU, where a call costs as much as its arithmetic.

        The config has fixed all shapes, so this skips the checks of the kernels. Tensors that do not depend on the
        layer are computed once per step.
        """
        heads, eps, scale = self.config.num_heads, self.config.rms_norm_eps, self.scale
        plan = plan_rope(self.cos_sin, batch.positions, batch.slot_mapping)
        x: Tensor | None = None
        for layer, norms, (k_cache, v_cache) in zip(self.layers, self._torch_norms, kv_caches, strict=True):
            if x is None:
                x = rms_norm_torch(residual, norms.input, eps)
            else:
                x, residual = add_rms_norm_torch(x, residual, norms.input, eps)
            q = rope_kv_write_torch(layer.qkv(x), plan, k_cache, v_cache, heads, norms.heads, eps)
            attended = paged_attention_torch(q, k_cache, v_cache, batch, scale, layer.sliding_window)
            x, residual = add_rms_norm_torch(
                layer.o(attended.flatten(1)), residual, norms.post_attention, eps
            )
            x = layer.down(silu_mul_torch(layer.gate_up(x)))
        if x is None:
            return rms_norm_torch(residual, self._torch_norm, eps)
        return add_rms_norm_torch(x, residual, self._torch_norm, eps)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states [R, D] to fp32 logits [R, V]."""
        return self.lm_head(hidden).float()

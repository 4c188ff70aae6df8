"""The transformer: Llama, Qwen2, Qwen3 and Mistral in one file, told apart by flags of the config.

Plain classes around tensors; no autograd, no module tree. A step is little more than its four linear layers per layer
and as few other operations as possible: projections are merged (q, k, v into one; gate and up into one), the residual
add is fused with the norm, the rotation with the cache write.

On reproducibility, that is, whether a sequence's logits can depend on what else is in the step or on how its prompt
was cut into chunks. On CPU, in fp32 and bf16:

* A decode gives the same bits in any batch, for up to two query heads per key head: the linear layers are packed so
  that they do (see `linear.py`), attention pads so that it does, and all else treats each row alone.
* If the batch is `exact`, all of it gives the same bits: any batch, any chunks, decoded or prefilled, any heads.
* Otherwise prompts may differ in the last bits with their chunks.

These hold on x86-64 with AVX-512, and the tests tell whether they hold on another CPU: they rest on how oneDNN and
MKL order their sums. fp16 on CPU and everything on a GPU run on libraries that choose by the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.models.config import ModelConfig
from plumbline.models.linear import Linear
from plumbline.models.rope import rope_table
from plumbline_kernels import use_triton
from plumbline_kernels.attention import AttentionBatch, paged_attention, paged_attention_torch
from plumbline_kernels.norm import add_rms_norm, add_rms_norm_torch, rms_norm
from plumbline_kernels.rope_kv import plan_rope, rope_kv_write, rope_kv_write_torch
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
    """Of q and k, where each head is normalised (Qwen3)."""
    sliding_window: int | None


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
        """Take the weights as they are; `lm_head` is None where it is the embedding."""
        self.config = config
        self.embedding = embedding
        self.layers = layers
        self.norm = norm
        self.lm_head = Linear(embedding if lm_head is None else lm_head)
        self.cos_sin = rope_table(config.rope, config.head_dim, config.max_model_len).to(embedding.device)
        self.scale = config.head_dim**-0.5

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
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
        config, cos_sin, scale = self.config, self.cos_sin, self.scale
        heads, kv_heads, eps = config.num_heads, config.num_kv_heads, config.rms_norm_eps
        positions, slots = batch.positions, batch.slot_mapping
        plan = None
        add_norm, attend, activate = add_rms_norm, paged_attention, silu_mul
        if not use_triton(token_ids):
            # The config has fixed all shapes: go past the checks, and share between layers what depends on none.
            plan = plan_rope(cos_sin, positions, slots)
            add_norm, attend, activate = add_rms_norm_torch, paged_attention_torch, silu_mul_torch

        residual = F.embedding(token_ids, self.embedding)
        x: Tensor | None = None
        for layer, (k_cache, v_cache) in zip(self.layers, kv_caches, strict=True):
            if x is None:
                x = rms_norm(residual, layer.input_norm, eps)
            else:
                x, residual = add_norm(x, residual, layer.input_norm, eps)
            qkv = layer.qkv(x)
            if plan is not None:
                q = rope_kv_write_torch(qkv, plan, k_cache, v_cache, heads, layer.head_norms, eps)
            else:
                q_norm, k_norm = layer.head_norms or (None, None)
                q = rope_kv_write(
                    qkv, cos_sin, positions, slots, k_cache, v_cache, heads, kv_heads, q_norm, k_norm, eps
                )
            x = layer.o(attend(q, k_cache, v_cache, batch, scale, layer.sliding_window).flatten(1))
            x, residual = add_norm(x, residual, layer.post_attention_norm, eps)
            x = layer.down(activate(layer.gate_up(x)))
        if x is None:
            return rms_norm(residual, self.norm, eps)
        return add_norm(x, residual, self.norm, eps)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states [R, D] to fp32 logits [R, V]."""
        return self.lm_head(hidden).float()

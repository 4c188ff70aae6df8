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
CPU, the libraries choose their summation order by the number of rows, so this is not guaranteed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from plumbline.engines.native.models.config import ModelConfig
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.operations import Backend, HeadNorms, KVCache, Operations, eager_backend
from plumbline.engines.native.models.recorded import RecordedBackend
from plumbline.engines.native.models.rope import rope_table
from plumbline_kernels.attention import AttentionBatch, Selection
from plumbline_kernels.cpu.library import Library

__all__ = ["KVCache", "Layer", "Transformer"]


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


class _Norms(NamedTuple):
    """The norm weights of a layer, as its operations take them."""

    heads: HeadNorms
    post_attention: Tensor
    following: Tensor
    """The input norm of the next layer; after the last one the norm of the output."""


class Transformer:
    """A decoder-only language model over a paged KV cache."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Tensor,
        layers: list[Layer],
        norm: Tensor,
        lm_head: Linear,
        library: Library | None = None,
    ) -> None:
        """Take the weights; with a library of compiled kernels, linear layers must be packed for it."""
        self.config = config
        self.library = library
        """The compiled kernels that run it, so that a token has the same bits in any batch; None if others do."""
        self.embedding = embedding
        self.layers = layers
        self.lm_head = lm_head
        cos_sin = rope_table(config.rope, config.head_dim, config.max_model_len).to(embedding.device)
        self._backend: Backend = (
            eager_backend(config, cos_sin) if library is None else RecordedBackend(config, cos_sin, library)
        )
        prepared = self._backend.norm_weight
        self._first_norm, *following = (
            prepared(weight) for weight in (*(x.input_norm for x in layers), norm)
        )
        self._norms = [
            _Norms(self._backend.head_norms(layer.head_norms), prepared(layer.post_attention_norm), after)
            for layer, after in zip(layers, following, strict=True)
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

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        kv_caches: list[KVCache],
        selection: Selection | None = None,
    ) -> Tensor:
        """Run one step and write the new keys and values to the caches.

        Args:
            token_ids: int64 [T].
            batch: where the tokens sit.
            kv_caches: keys and values of each layer.
            selection: the tokens whose results are wanted; None for all.

        Returns:
            Hidden states [R, D] of the selected tokens, which the next step may overwrite.
        """
        return self._backend.run(self._run_layers, token_ids, batch, kv_caches, selection)

    def _run_layers(self, operations: Operations, kv_caches: list[KVCache]) -> Tensor:
        residual = operations.embed(self.embedding)
        x = operations.norm(residual, self._first_norm)
        for layer, norms, cache in zip(self.layers, self._norms, kv_caches, strict=True):
            q = operations.rope_kv_write(operations.linear(x, layer.qkv), cache, norms.heads)
            if layer is self.layers[-1]:
                q, residual = operations.select(q, residual)
                if not len(q):
                    return residual  # No result is wanted, and the keys are written.
            attended = operations.attend(q, cache, layer.sliding_window)
            x, residual = operations.add_norm(
                operations.linear(attended, layer.o), residual, norms.post_attention
            )
            gated = operations.silu_mul(operations.linear(x, layer.gate_up))
            x, residual = operations.add_norm(operations.linear(gated, layer.down), residual, norms.following)
        return x

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states [R, D] to fp32 logits [R, V]."""
        return self.lm_head.logits(hidden)

"""Run the model of a description, with one loop over its layers.

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

from typing import NamedTuple

import torch
from torch import Tensor

from plumbline.engines.native.models.description import ModelDescription, Rope
from plumbline.engines.native.models.operations import (
    Backend,
    Heads,
    KVCache,
    NormWeights,
    Operations,
    eager_backend,
)
from plumbline.engines.native.models.recorded import RecordedBackend
from plumbline.engines.native.models.rope import rope_table
from plumbline.engines.native.models.weights import LayerWeights, ModelWeights
from plumbline_kernels.attention import AttentionBatch, Selection
from plumbline_kernels.cpu.library import Library

__all__ = ["KVCache", "Transformer"]


class _Layer(NamedTuple):
    """A layer, as its operations take it."""

    weights: LayerWeights
    heads: Heads
    before_feed_forward: NormWeights
    following: NormWeights
    """The first norm of the next layer; after the last one the norm of the output."""


class Transformer:
    """A decoder-only language model over a paged KV cache."""

    def __init__(
        self, description: ModelDescription, weights: ModelWeights, library: Library | None = None
    ) -> None:
        """Take the weights; with a library of compiled kernels, linear layers must be packed for it."""
        self.description = description
        self.library = library
        """The compiled kernels that run it, so that a token has the same bits in any batch; None if others do."""
        self.embedding = weights.embedding
        self.head = weights.head
        tables: dict[tuple[Rope, int], Tensor] = {}
        for layer in description.layers:
            key = layer.mixer.rope, layer.mixer.head_dim
            if key not in tables:
                tables[key] = rope_table(*key, description.context_length).to(self.device)
        first = description.layers[0].mixer
        self._backend: Backend = (
            eager_backend(self.embedding)
            if library is None
            else RecordedBackend(description, tables[first.rope, first.head_dim], library)
        )
        norm = description.norm
        self._first_norm, *following = (
            self._backend.norm(norm, weight)
            for weight in (*(layer.before_mixer for layer in weights.layers), weights.norm)
        )
        self._layers = [
            _Layer(
                found,
                self._backend.heads(
                    layer.mixer,
                    norm.eps,
                    tables[layer.mixer.rope, layer.mixer.head_dim],
                    found.mixer.head_norms,
                ),
                self._backend.norm(norm, found.before_feed_forward),
                after,
            )
            for layer, found, after in zip(description.layers, weights.layers, following, strict=True)
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
        kind = dtype or self.dtype

        def zeros(layer: _Layer) -> Tensor:
            shape = layer.heads.attention
            size = (num_blocks, block_size, shape.kv_heads, shape.head_dim)
            return torch.zeros(size, dtype=kind, device=self.device)

        return [(zeros(layer), zeros(layer)) for layer in self._layers]

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
        for layer, cache in zip(self._layers, kv_caches, strict=True):
            mixer, feed_forward = layer.weights.mixer, layer.weights.feed_forward
            q = operations.rope_kv_write(operations.linear(x, mixer.qkv), cache, layer.heads)
            if layer is self._layers[-1]:
                q, residual = operations.select(q, residual)
                if not len(q):
                    return residual  # No result is wanted, and the keys are written.
            attended = operations.attend(q, cache, layer.heads)
            x, residual = operations.add_norm(
                operations.linear(attended, mixer.o), residual, layer.before_feed_forward
            )
            gated = operations.silu_mul(operations.linear(x, feed_forward.gate_up))
            x, residual = operations.add_norm(
                operations.linear(gated, feed_forward.down), residual, layer.following
            )
        return x

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states [R, D] to fp32 logits [R, V]."""
        return self.head.logits(hidden)

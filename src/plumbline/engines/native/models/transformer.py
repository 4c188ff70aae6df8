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

This is tested on x86-64 with AVX-512 and depends on the summation order of oneDNN and MKL. In fp16 on CPU the libraries
choose their summation order by the number of rows, so this is not guaranteed.

On a GPU every token of an `exact` batch also gives the same bits: kernels of our own take the place of cuBLAS, and
keys are cut at fixed positions (`support.exact_problem` names the models for which this is not so). Other batches give
no such promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from plumbline.engines.native.models.description import (
    Attention,
    Latent,
    LayerDescription,
    Mixer,
    ModelDescription,
    Norm,
    Rope,
)
from plumbline.engines.native.models.layers import (
    ExpertNorms,
    MixerWeights,
    PreparedLayer,
    allocate,
    delta_heads,
)
from plumbline.engines.native.models.operations.eager import eager_backend
from plumbline.engines.native.models.operations.interface import (
    Backend,
    Heads,
    KVCache,
    LatentHeads,
    Operations,
    PreparedNorm,
    TokenInputs,
)
from plumbline.engines.native.models.operations.recorded import RecordedBackend
from plumbline.engines.native.models.rope import RopeTable
from plumbline.engines.native.models.vision.interface import VisionEncoder
from plumbline.engines.native.models.weights import (
    AttentionWeights,
    DeltaWeights,
    DenseWeights,
    ExpertsWeights,
    LatentWeights,
    LayerWeights,
    ModelWeights,
    NormWeights,
    SelectiveWeights,
    ShortConvWeights,
)
from plumbline_kernels.attention import AttentionBatch, RowSelection
from plumbline_kernels.cpu.library import Library
from plumbline_kernels.rope_kv import HeadNorms

__all__ = ["LARGEST_STEP", "KVCache", "Transformer"]

LARGEST_STEP = 1024
"""Tokens of images in one step at most where nothing else is said."""


class Transformer:
    """A decoder-only language model over a paged KV cache."""

    def __init__(
        self,
        description: ModelDescription,
        weights: ModelWeights,
        library: Library | None = None,
        largest_step: int = LARGEST_STEP,
    ) -> None:
        """Take the weights; with a library of compiled kernels, linear layers must be packed for it.

        Args:
            description: of the model.
            weights: of the model.
            library: compiled kernels to run it with.
            largest_step: tokens of images in one step at most, if their positions have several axes.
        """
        self.description = description
        self._largest_step = largest_step
        self.library = library
        """The compiled kernels that run it, so that a token has the same bits in any batch; None if others do."""
        self.embedding = weights.embedding
        self.dtype = weights.dtype
        """The dtype of weights, activations and (by default) the cache."""
        self.device = weights.device
        """The device of the weights."""
        self.head = weights.head
        self.places = weights.places
        self.vision: VisionEncoder | None = None
        """Reads images for the model; the loader sets it."""
        self.rounding_losses: Mapping[str, float] = {}
        """How many times the perplexity that its own weights would have, by kinds of texts, if that was measured; the
        loader sets it."""
        self.given_parts = 0
        """How many layers, from the first on, add a further part of the given rows to their results; the loader sets it
        before the first step."""
        # Models were trained with a factor of their own type.
        self._embedding_scale = float(torch.tensor(description.embedding_scale, dtype=self.dtype))
        self._tables: dict[tuple[Rope, int], RopeTable] = {}
        self._backend: Backend = (
            eager_backend(torch.empty(0, device=self.device)) if library is None else RecordedBackend(library)
        )
        self._token_inputs = None
        if (found := weights.token_inputs) is not None:
            factor = float(torch.tensor(description.token_inputs**0.5, dtype=self.dtype))
            self._token_inputs = TokenInputs(found, self._prepared(found.norm), factor)
        self._positions = weights.positions
        self._embedding_norm = self._norm(weights.embedding_norm)
        befores = [layer.before_mixer for layer in weights.layers]
        self._first_norm = self._norm(befores[0])
        self._layers = [
            self._layer(layer, found, following, after is not None and after.again)
            for layer, found, following, after in zip(
                description.layers,
                weights.layers,
                [*befores[1:], weights.norm],
                [*description.layers[1:], None],
                strict=True,
            )
        ]

    def _layer(
        self,
        layer: LayerDescription,
        found: LayerWeights,
        following: NormWeights | None,
        keeps_input: bool,
    ) -> PreparedLayer:
        return PreparedLayer(
            mixer=found.mixer,
            feed_forward=found.feed_forward,
            heads=self._heads(layer.mixer, found.mixer),
            latent=self._latent(layer.mixer, found.mixer),
            delta=delta_heads(layer.mixer, found.mixer),
            q_a_norm=self._q_a_norm(layer.mixer, found.mixer),
            after_mixer=self._norm(found.after_mixer),
            is_parallel=layer.norms in ("parallel", "parallel_two"),
            expert_norms=self._expert_norms(found.feed_forward),
            token=found.token,
            after_token=None if found.token is None else self._norm(found.token.after),
            before_feed_forward=self._norm(found.before_feed_forward),
            after_feed_forward=self._norm(found.after_feed_forward),
            scale=found.scale,
            mixer_scale=self.description.residual_scale * layer.mixer_scale,
            keeps_input=keeps_input,
            following=self._norm(following),
        )

    def _norm(self, found: NormWeights | None) -> PreparedNorm | None:
        return None if found is None else self._prepared(found)

    def _prepared(self, found: NormWeights) -> PreparedNorm:
        return self._backend.norm(self.description.norm, found.weight, found.bias)

    def _expert_norms(self, found: DenseWeights | ExpertsWeights | None) -> ExpertNorms | None:
        if not isinstance(found, ExpertsWeights) or found.norms is None:
            return None
        norms = found.norms
        each = (norms.router, norms.before, norms.after, norms.after_shared)
        return ExpertNorms(*(self._prepared(norm) for norm in each))

    def _table(self, rope: Rope, width: int) -> RopeTable:
        """Return the rotary table, which equal layers share."""
        key = rope, width
        if key not in self._tables:
            length = self.description.context_length
            self._tables[key] = RopeTable.of(rope, width, length, self._largest_step, self.device)
        return self._tables[key]

    def _latent(self, shape: Mixer, found: MixerWeights) -> LatentHeads | None:
        if not (isinstance(shape, Latent) and isinstance(found, LatentWeights)):
            return None
        table = self._table(shape.rope, shape.rope_dim).rows
        norm = self._backend.norm(Norm(eps=shape.eps), found.kv_norm.weight, None)
        return LatentHeads(shape, table, norm, found.keys, found.values)

    def _q_a_norm(self, shape: Mixer, found: MixerWeights) -> PreparedNorm | None:
        if not (isinstance(shape, Latent) and isinstance(found, LatentWeights)) or found.q_a_norm is None:
            return None
        return self._backend.norm(Norm(eps=shape.eps), found.q_a_norm.weight, None)

    def _heads(self, shape: Mixer, found: MixerWeights) -> Heads | None:
        norm = self.description.norm
        if isinstance(shape, Latent):
            return Heads(shape.over_cache, None, None, None, None, shape.rank)
        if not isinstance(shape, Attention):
            return None
        assert isinstance(found, AttentionWeights)
        table = None if shape.rope is None else self._table(shape.rope, shape.head_dim)
        norms = None
        if shape.head_norm is not None and found.head_norms is not None:
            kind = shape.head_norm
            centred = norm.kind == "layer"
            norms = HeadNorms(
                found.head_norms, norm.eps, centred, kind.whole, kind.after_rope, shape.value_norm
            )
        rows, temperature = (None, None) if table is None else (table.rows, table.temperatures)
        return Heads(shape, rows, temperature, norms, found.sinks)

    def allocate_kv(
        self, num_blocks: int, block_size: int, dtype: torch.dtype | None = None, *, num_states: int = 0
    ) -> list[KVCache]:
        """Make the cache of each layer: keys and values, or the states of so many sequences (see `KVCache`)."""
        return allocate(
            self._layers, num_blocks, block_size, dtype or self.dtype, self.device, num_states=num_states
        )

    def states(self, caches: list[KVCache]) -> list[Tensor]:
        """Return the tensors of caches that have a row for each sequence."""
        found = zip(self._layers, caches, strict=True)
        return [tensor for layer, cache in found if layer.heads is None for tensor in cache]

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        kv_caches: list[KVCache],
        selection: RowSelection | None = None,
        given: Tensor | None = None,
        axes: Tensor | None = None,
    ) -> Tensor:
        """Run one step and write the new keys and values to the caches.

        Args:
            token_ids: int64 [T]; -1 - i stands for row i of `given`.
            batch: where the tokens sit.
            kv_caches: keys and values of each layer.
            selection: the tokens whose results are wanted; None for all.
            given: rows [G, (1 + given_parts) * D] in the place of embeddings, such as those of an image.
            axes: int64 [3, M]: position -1 - i stands for these three, of an image and of a row and a column in it.

        Returns:
            Hidden states [R, D] of the selected tokens, which the next step may overwrite.
        """
        if axes is not None:
            batch = replace(batch, positions=self._turn(batch.positions, axes))
            if selection is not None:
                kept = replace(selection.batch, positions=batch.positions[selection.rows])
                selection = replace(selection, batch=kept)
        return self._backend.run(self._run_layers, token_ids, batch, kv_caches, selection, given)

    def _turn(self, positions: Tensor, axes: Tensor) -> Tensor:
        """Write the rotations of tokens with several positions behind the tables; return their rows for all tokens."""
        length = self.description.context_length
        assert axes.shape[1] <= self._largest_step
        for table in self._tables.values():
            table.turn(length, axes)
        return torch.where(positions < 0, length - 1 - positions, positions)

    def _run_layers(self, operations: Operations, kv_caches: list[KVCache]) -> Tensor:
        residual, given = self._embed(operations), None
        if self._token_inputs is not None:
            given = operations.token_inputs(residual, self._token_inputs).unbind(1)
        x = residual if self._first_norm is None else operations.norm(residual, self._first_norm)
        for index, (layer, cache) in enumerate(zip(self._layers, kv_caches, strict=True)):
            beside = residual if given is None else given[index]
            q, gate = self._queries(operations, x, layer, cache)
            if layer is self._layers[-1]:
                beside = x if layer.is_parallel and layer.before_feed_forward is None else beside
                q, residual, x, gate = operations.select(q, residual, beside, gate)
                beside = x
                if not len(q):
                    return residual  # No result is wanted, and the keys are written.
            attended = q if layer.heads is None else operations.attend(q, cache, layer.heads)
            if layer.latent is not None:
                attended = operations.latent_values(attended, layer.latent)
            if gate is not None:
                attended = operations.gate(attended, gate)
            mixed = operations.linear(attended, layer.mixer.o)
            if layer.after_mixer is not None:
                mixed = operations.norm(mixed, layer.after_mixer)
            if layer.feed_forward is None:
                x, residual = self._after_mixer(operations, x, mixed, residual, layer)
                continue
            if not layer.is_parallel:
                x, residual = self._add(
                    operations, mixed, residual, layer.before_feed_forward, factor=layer.mixer_scale
                )
            else:
                if layer.before_feed_forward is not None:
                    x = operations.norm(residual, layer.before_feed_forward)
                residual = operations.add(mixed, residual, layer.mixer_scale, 1.0)
            fed = self._feed_forward(operations, x, residual, layer.feed_forward, layer.expert_norms)
            if layer.after_feed_forward is not None:
                fed = operations.norm(fed, layer.after_feed_forward)
            if layer.token is not None and layer.after_token is not None:
                residual = operations.add(fed, residual, self.description.residual_scale, 1.0)
                gated = operations.gated_inputs(operations.linear(residual, layer.token.gate), beside)
                fed = operations.norm(operations.linear(gated, layer.token.up), layer.after_token)
            if index < self.given_parts:
                residual = operations.give(residual, index + 1)
            x, residual = self._add(operations, fed, residual, layer.following, layer.scale)
        return x

    def _embed(self, operations: Operations) -> Tensor:
        embedded = operations.embed(self.embedding, self._embedding_scale)
        if self._positions is not None:
            embedded = operations.place(embedded, self._positions)
        return (
            embedded
            if self._embedding_norm is None
            else operations.norm_embedded(embedded, self._embedding_norm)
        )

    def _after_mixer(
        self, operations: Operations, x: Tensor, mixed: Tensor, residual: Tensor, layer: PreparedLayer
    ) -> tuple[Tensor, Tensor]:
        """Add the result of a layer that only mixes; returns the input of the next layer, and the sum."""
        if layer.keeps_input:
            return x, operations.add(mixed, residual, layer.mixer_scale, layer.scale)
        return self._add(operations, mixed, residual, layer.following, layer.scale, layer.mixer_scale)

    def _queries(
        self, operations: Operations, x: Tensor, layer: PreparedLayer, cache: KVCache
    ) -> tuple[Tensor, Tensor | None]:
        """Write what x leaves to the cache; return the queries over it and their gates, or a delta net's results."""
        mixer = layer.mixer
        if isinstance(mixer, DeltaWeights):
            assert layer.delta is not None
            return operations.delta(operations.linear(x, mixer.project), cache, layer.delta), None
        if isinstance(mixer, ShortConvWeights):
            return operations.short_conv(operations.linear(x, mixer.project), cache, mixer), None
        if isinstance(mixer, SelectiveWeights):
            return operations.selective(operations.linear(x, mixer.project), cache, mixer), None
        if isinstance(mixer, AttentionWeights):
            assert layer.heads is not None
            qkv, gate, shape = operations.linear(x, mixer.qkv), None, layer.heads.attention
            if shape.clip is not None:
                qkv = operations.clip(qkv, shape.clip)
            if shape.keys_of is not None:
                return operations.rotate(qkv, layer.heads), None
            if shape.gated:
                qkv, gate = qkv.tensor_split((-shape.heads * shape.head_dim,), 1)
            return operations.rope_kv_write(qkv, cache, layer.heads), gate
        assert layer.latent is not None
        kv = operations.linear(x, mixer.kv)
        if mixer.q_a is not None and layer.q_a_norm is not None:
            x = operations.norm(operations.linear(x, mixer.q_a), layer.q_a_norm)
        return operations.latent_write(operations.linear(x, mixer.q), kv, cache, layer.latent), None

    def _feed_forward(
        self,
        operations: Operations,
        x: Tensor,
        residual: Tensor,
        weights: DenseWeights | ExpertsWeights,
        norms: ExpertNorms | None,
    ) -> Tensor:
        if isinstance(weights, DenseWeights):
            return self._dense(operations, x, weights)
        shared = None if weights.shared is None else self._dense(operations, x, weights.shared)
        if norms is None or shared is None:
            return operations.experts(x, weights, shared)
        asked, given = operations.norm(residual, norms.router), operations.norm(residual, norms.before)
        mixed = operations.norm(operations.experts(given, weights, None, asked), norms.after)
        return operations.add(mixed, operations.norm(shared, norms.after_shared), 1.0, 1.0)

    def _dense(self, operations: Operations, x: Tensor, weights: DenseWeights) -> Tensor:
        up = operations.linear(x, weights.gate_up)
        gated = operations.activate(up, weights.activation, weights.gated, weights.curve)
        return operations.linear(gated, weights.down)

    def _add(
        self,
        operations: Operations,
        x: Tensor,
        residual: Tensor,
        norm: PreparedNorm | None,
        scale: float = 1.0,
        factor: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Add to the residual stream and scale it; returns the input of the next block, and the sum."""
        factor = self.description.residual_scale if factor is None else factor
        if norm is not None:
            return operations.add_norm(x, residual, norm, factor, scale)
        residual = operations.add(x, residual, factor, scale)
        return residual, residual

    def compute_logits(self, hidden: Tensor, exact: bool = False) -> Tensor:
        """Map hidden states [R, D] to fp32 logits [R, V]; `exact` as in `AttentionBatch`."""
        logits = self.head.logits(hidden, exact)
        if self.description.logits_scale != 1.0:
            logits = logits.mul_(self.description.logits_scale)
        cap = self.description.logits_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

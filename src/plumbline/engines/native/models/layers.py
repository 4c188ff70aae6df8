"""Define a layer as the transformer loop runs it, and allocate its cache."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from plumbline.engines.native.models.description import DeltaNet, Mixer
from plumbline.engines.native.models.operations.interface import (
    DeltaHeads,
    Heads,
    KVCache,
    LatentHeads,
    PreparedNorm,
)
from plumbline.engines.native.models.weights import (
    AttentionWeights,
    DeltaWeights,
    DenseWeights,
    ExpertsWeights,
    LatentWeights,
    SelectiveWeights,
    ShortConvWeights,
    TokenGateWeights,
)
from plumbline_kernels.delta import DeltaShape

__all__ = ["ExpertNorms", "MixerWeights", "PreparedLayer", "allocate", "delta_heads"]

MixerWeights = AttentionWeights | LatentWeights | DeltaWeights | ShortConvWeights | SelectiveWeights


class ExpertNorms(NamedTuple):
    """The norms of experts that read the residual stream directly, next to a dense block (Gemma 4)."""

    router: PreparedNorm
    before: PreparedNorm
    after: PreparedNorm
    after_shared: PreparedNorm


class PreparedLayer(NamedTuple):
    """The weights and norms of a layer, prepared for the operations of one device."""

    mixer: MixerWeights
    feed_forward: DenseWeights | ExpertsWeights | None
    heads: Heads | None
    """Attention over the KV cache; None for mixers with a state of fixed size."""
    latent: LatentHeads | None
    delta: DeltaHeads | None
    q_a_norm: PreparedNorm | None
    after_mixer: PreparedNorm | None
    is_parallel: bool
    expert_norms: ExpertNorms | None
    token: TokenGateWeights | None
    """Adds the per-layer embedding of each token (Gemma 4)."""
    after_token: PreparedNorm | None
    before_feed_forward: PreparedNorm | None
    after_feed_forward: PreparedNorm | None
    scale: float
    mixer_scale: float
    """The factor on the mixer's result in the residual stream."""
    keeps_input: bool
    """Whether the next layer reads the input of this one again."""
    following: PreparedNorm | None
    """The first norm of the next layer, if it has one; for the last layer the norm of the output."""


def allocate(
    layers: Iterable[PreparedLayer],
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    num_states: int,
) -> list[KVCache]:
    """Allocate the cache of each layer; see `Transformer.allocate_kv`."""

    def zeros(*size: int, kind: torch.dtype = dtype) -> Tensor:
        return _zeros(size, kind, device)

    def cache_of(layer: PreparedLayer, before: list[KVCache]) -> KVCache:
        """Return keys and values, or the two states of a mixer that has no KV cache."""
        if layer.delta is not None:
            net = layer.delta.net
            return (
                zeros(num_states, net.channels, net.taps - 1),
                zeros(num_states, net.value_heads, net.key_dim, net.value_dim, kind=torch.float32),
            )
        if isinstance(mixer := layer.mixer, SelectiveWeights):
            width, taps = mixer.conv.shape
            state = zeros(num_states, width, mixer.rates.shape[1], kind=torch.float32)
            return zeros(num_states, width, taps - 1), state
        if isinstance(mixer, ShortConvWeights):
            width, taps = mixer.conv.shape
            # It has no second state.
            return zeros(num_states, width, taps - 1), zeros(num_states, 0)
        assert layer.heads is not None
        shape = layer.heads.attention
        if shape.keys_of is not None:
            return before[shape.keys_of]
        size = (num_blocks, block_size, shape.kv_heads, shape.head_dim)
        keys = zeros(*size)
        # Latent attention uses its keys as values.
        return keys, zeros(*size) if layer.latent is None else keys

    caches: list[KVCache] = []
    for layer in layers:
        caches.append(cache_of(layer, caches))
    return caches


def delta_heads(shape: Mixer, weights: MixerWeights) -> DeltaHeads | None:
    """Return the shape and weights of a delta net for its operations; None for other mixers."""
    if not (isinstance(shape, DeltaNet) and isinstance(weights, DeltaWeights)):
        return None
    return DeltaHeads(
        shape,
        DeltaShape(
            shape.key_heads,
            shape.value_heads,
            shape.key_dim,
            shape.value_dim,
            corrects=not shape.state_space,
            tiled=shape.tiled,
        ),
        weights,
    )


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor of zeros; on a CPU, memory pages that the system provides when they are first used.

    So a large cache does not delay the start. `torch.zeros` would delay it: `calloc` reuses up to 32 MB at a time of
    memory that the loader has freed, and clears it.
    """
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    needed = math.prod(size) * dtype.itemsize
    pages = mmap.mmap(-1, max(needed, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(pages, dtype=np.uint8)
    return torch.from_numpy(memory[:needed]).view(dtype).view(size)

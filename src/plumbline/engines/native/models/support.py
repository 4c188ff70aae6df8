"""Decide from a description which implementation of the operations runs a model."""

from __future__ import annotations

import torch

from plumbline.engines.native.models.description import (
    DeltaNet,
    Experts,
    Latent,
    ModelDescription,
    Selective,
    ShortConv,
)
from plumbline_kernels.cpu.library import Library

__all__ = ["compiled_problem", "exact_problem", "kernels_problem"]

_WIDEST_HEAD, _WIDEST_LATENT = 512, 512
"""What the registers of an H200 hold in the attention kernels (tests/kernels/test_compile.py)."""


def compiled_problem(description: ModelDescription, dtype: torch.dtype, library: Library) -> str | None:
    """Return why compiled CPU kernels do not run a model, or None if they do."""
    if not library.supports_rows(dtype, (description.token_inputs,)):
        return _unsupported(dtype)
    for layer in description.layers:
        shape, block = layer.mixer, layer.feed_forward
        widths: tuple[int, ...] = (
            (description.hidden_size,) if block is None else (description.hidden_size, block.width)
        )
        if isinstance(block, Experts) and block.shared is not None:
            widths += (block.shared.width,)
        if isinstance(shape, DeltaNet):
            if not library.supports_rows(dtype, (*widths, shape.key_dim, shape.value_dim)):
                return _unsupported(dtype)
            continue
        if isinstance(shape, Selective):
            return "they do not have state spaces of Mamba 1"
        if isinstance(shape, ShortConv):
            if not library.supports_rows(dtype, widths):
                return _unsupported(dtype)
            continue
        shared = shape.heads
        if isinstance(shape, Latent):
            if shape.query_rank == shape.head_dim:
                # A program has one buffer for all results of linear layers of one width.
                return f"they do not have latent attention with a q_lora_rank of {shape.query_rank}"
            # The rotated half of a key must also be whole vectors.
            widths += (shape.rank, shape.key_dim, shape.value_dim, shape.rope_dim // 2)
        else:
            shared //= shape.kv_heads
        if not library.supports(dtype, shape.head_dim, shared, widths):
            return _unsupported(dtype)
    return None


def _unsupported(dtype: torch.dtype) -> str:
    return f"they do not support {dtype} with the shapes of this model on this processor"


def kernels_problem(description: ModelDescription) -> str | None:
    """Return which part of a model the Triton kernels do not have, or None if a GPU runs it."""
    for mixer in dict.fromkeys(layer.mixer for layer in description.layers):
        if isinstance(mixer, Selective):
            return "the Triton kernels have no state spaces of Mamba 1"
        if isinstance(mixer, Latent):
            if mixer.rank > _WIDEST_LATENT:
                return f"the Triton kernels have no latents of {mixer.rank} ({_WIDEST_LATENT} at most)"
        elif mixer.head_dim > _WIDEST_HEAD:
            return f"the Triton kernels have no heads of {mixer.head_dim} ({_WIDEST_HEAD} at most)"
    return None


def exact_problem(description: ModelDescription) -> str | None:
    """Return which part of a model depends on the batch on a GPU in its last bits, or None if none does."""
    for layer in description.layers:
        if isinstance(layer.mixer, (DeltaNet, Selective, ShortConv)):
            return "layers with states compute prompts in other sums than single tokens"
        if isinstance(layer.feed_forward, Experts):
            router = layer.feed_forward.router
            if router.groups > 1 or router.scores == "sparse_mixer" or router.of_inputs or router.by_expert:
                return "its experts are chosen by torch, whose sums depend on the number of tokens"
    return None

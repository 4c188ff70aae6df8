"""Decide from a description which implementation of the operations runs a model."""

from __future__ import annotations

import torch

from plumbline.engines.native.models.description import Experts, ModelDescription
from plumbline_kernels.cpu.library import Library

__all__ = ["compiled_problem", "kernels_problem"]


def compiled_problem(description: ModelDescription, dtype: torch.dtype, library: Library) -> str | None:
    """Return why compiled CPU kernels do not run a model, or None if they do."""
    for layer in description.layers:
        shape = layer.mixer
        block = layer.feed_forward
        widths: tuple[int, ...] = (description.hidden_size, block.width)
        if isinstance(block, Experts) and block.shared is not None:
            widths += (block.shared.width,)
        if not library.supports(dtype, shape.head_dim, shape.heads // shape.kv_heads, widths):
            return f"they do not support {dtype} with the shapes of this model on this processor"
    return None


def kernels_problem(description: ModelDescription) -> str | None:
    """Return which part of a model has no Triton kernel, or None if a GPU runs it."""
    if any(isinstance(layer.feed_forward, Experts) for layer in description.layers):
        return "experts have no Triton kernels yet"
    return None

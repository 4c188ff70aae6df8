"""Decide from a description which implementation of the operations runs a model."""

from __future__ import annotations

import torch

from plumbline.engines.native.models.description import ModelDescription
from plumbline_kernels.cpu.library import Library

__all__ = ["compiled_problem"]


def compiled_problem(description: ModelDescription, dtype: torch.dtype, library: Library) -> str | None:
    """Return why compiled CPU kernels do not run a model, or None if they do."""
    for layer in description.layers:
        shape = layer.mixer
        widths = (description.hidden_size, layer.feed_forward.width)
        if not library.supports(dtype, shape.head_dim, shape.heads // shape.kv_heads, widths):
            return f"they do not support {dtype} with the shapes of this model on this processor"
    return None

"""Load the model of a GGUF file into a Transformer."""

from __future__ import annotations

import torch

from plumbline.engines.native.models.gguf.description import GgufModel
from plumbline.engines.native.models.gguf.rows import turned
from plumbline.engines.native.models.gguf.tensors import GgufTensors
from plumbline.engines.native.models.loading.model_folder import build, for_length
from plumbline.engines.native.models.loading.rounding_loss import NO_TEXTS, Texts
from plumbline.engines.native.models.transformer import Transformer
from plumbline_kernels.cpu.library import Library

__all__ = ["load_gguf"]


def load_gguf(
    model: GgufModel,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    max_model_len: int | None = None,
    library: Library | None = None,
    bits: int | None = None,
    texts: Texts = NO_TEXTS,
) -> Transformer:
    """Load the weights of a GGUF file; the arguments are those of `load_model`.

    With compiled kernels and `bits` None, weights of the types in `BLOCKS` keep their levels; their scales become bf16.
    All others are dequantised to `dtype`.

    Raises:
        UnsupportedModelError: the engine does not support the model.
        WeightsError: the tensors do not match the metadata.
    """
    description = for_length(model.description, max_model_len)
    dtype, device = dtype or description.dtype, torch.device(device)
    tensors = GgufTensors(model, dtype, device, library)
    loaded = build(description, tensors.fetch_weight, dtype, device, library, bits, texts=texts)
    tensors.finish()
    if model.order == "turned":
        loaded.places[:] = turned(loaded.places, description)
    return loaded

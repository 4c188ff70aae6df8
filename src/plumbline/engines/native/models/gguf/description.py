"""Describe the model of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from plumbline.base.end_tokens import file_ends
from plumbline.base.gguf_file import GgufError, Tensor, read_index
from plumbline.engines.native.models.description import (
    Attention,
    LayerDescription,
    ModelDescription,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families import describe
from plumbline.engines.native.models.gguf.architectures import Architecture, architecture_of, config_of
from plumbline.engines.native.models.gguf.blocks import BLOCKS

__all__ = ["FACTORS", "GgufModel", "read_model"]

FACTORS = "rope_freqs.weight"
"""The tensor of divisors of the rotary frequencies, in which a file has the scaling of Llama 3."""
_F32, _F16, _BF16 = 0, 1, 30
_TYPES = {_F32: "float32", _F16: "float16"}
"""The types that files keep whole; others run in bf16."""
_UNUSED = ("tokenizer.ggml.merges", "tokenizer.ggml.scores")


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A GGUF file of a model that our engine runs."""

    file: Path
    architecture: str
    """`general.architecture`."""
    description: ModelDescription
    tensors: Mapping[str, Tensor]

    @property
    def kinds(self) -> frozenset[int]:
        """The types of its matrices, by their number."""
        return frozenset(tensor.kind for tensor in self.tensors.values() if len(tensor.shape) > 1)

    @property
    def widened(self) -> frozenset[int]:
        """The types that no kernel reads: such matrices are widened to 16 bits as they are loaded."""
        return self.kinds - BLOCKS.keys() - {_F32, _F16, _BF16}

    @property
    def is_quantised(self) -> bool:
        """Whether some of them have less than 16 bits."""
        return bool(self.kinds - {_F32, _F16, _BF16})


def read_model(file: Path) -> GgufModel:
    """Describe the model of a GGUF file.

    Raises:
        UnsupportedModelError: the engine does not run it; the message names the key or the part.
    """
    found = file.stat()
    return _model(file, (found.st_mtime_ns, found.st_size))


@lru_cache(maxsize=1)
def _model(file: Path, stamp: tuple[int, int]) -> GgufModel:
    """See `read_model`: a model is described when its engine is chosen, and again when it is loaded."""
    try:
        metadata, tensors = read_index(file, lambda key: key not in _UNUSED)
    except GgufError as error:
        raise UnsupportedModelError(f"{file.name} cannot be read: {error}") from error
    config = config_of(metadata, tensors.keys())
    name, architecture = metadata["general.architecture"], architecture_of(metadata)
    assert architecture is not None
    config["dtype"] = _dtype(tensors)
    description = _stored_as(architecture, describe(config))
    description = replace(description, eos_token_ids=file_ends(metadata))
    if FACTORS in tensors:
        description = _with_factors(description, tensors[FACTORS])
    return GgufModel(file, name, description, tensors)


def _dtype(tensors: Mapping[str, Tensor]) -> str:
    """Return the type of the largest matrix, or bf16 if that is quantised."""
    matrices = [tensor for tensor in tensors.values() if len(tensor.shape) > 1]
    largest = max(matrices, key=lambda tensor: tensor.shape[0] * tensor.shape[1], default=None)
    return "bfloat16" if largest is None else _TYPES.get(largest.kind, "bfloat16")


def _stored_as(architecture: Architecture, description: ModelDescription) -> ModelDescription:
    """Describe the weights as files of an architecture have them."""
    if architecture.norms_with_offset:
        description = replace(description, norm=replace(description.norm, offset=0.0))
    if architecture.interleaved:
        description = _with_ropes(description, interleaved=True)
    # llama.cpp's converter brings merged projections into one order, and turns those of GPT-2.
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, layout="apart"))
        if isinstance(layer.mixer, Attention)
        else layer
        for layer in description.layers
    )
    return replace(description, layers=layers, names=replace(description.names, transposed=False))


def _with_factors(description: ModelDescription, tensor: Tensor) -> ModelDescription:
    """Divide the rotary frequencies by the numbers of a tensor."""
    if tensor.kind != _F32 or len(tensor.shape) != 1:
        raise UnsupportedModelError(f"{FACTORS} must be fp32 numbers")
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.offset)
        data = stream.read(4 * tensor.shape[0]) if tensor.shape[0] < 4096 else b""
    if len(data) != 4 * tensor.shape[0]:
        raise UnsupportedModelError(f"{tensor.file.name} ends inside {FACTORS}")
    factors = tuple(torch.frombuffer(bytearray(data), dtype=torch.float32).tolist())
    # The one scaling that takes its divisors as they are.
    return _with_ropes(
        description, kind="longrope", short_factors=factors, long_factors=factors, attention_factor=1.0
    )


def _with_ropes(description: ModelDescription, **changes: Any) -> ModelDescription:
    layers = tuple(map(partial(_with_rope, **changes), description.layers))
    return replace(description, layers=layers)


def _with_rope(layer: LayerDescription, **changes: Any) -> LayerDescription:
    mixer = layer.mixer
    if not isinstance(mixer, Attention) or mixer.rope is None:
        return layer
    return replace(layer, mixer=replace(mixer, rope=replace(mixer.rope, **changes)))

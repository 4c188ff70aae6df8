"""Describe the model of a GGUF file."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from plumbline.base.end_tokens import file_ends
from plumbline.base.gguf_file import GgufError, Tensor, read_index
from plumbline.engines.native.models.description import (
    Attention,
    DeltaNet,
    LayerDescription,
    Mixer,
    ModelDescription,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families import describe
from plumbline.engines.native.models.families.parts import FULL
from plumbline.engines.native.models.gguf.architectures import Architecture, architecture_of, config_of
from plumbline.engines.native.models.gguf.blocks import BLOCKS
from plumbline.engines.native.models.gguf.rows import Order, order_of
from plumbline.engines.native.models.names import Names

__all__ = ["ROPE_NUMBERS", "GgufModel", "read_model"]

FACTORS = "rope_freqs.weight"
"""The tensor of divisors of the rotary frequencies, in which a file has the scaling of Llama 3."""
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_NUMBERS = (FACTORS, _LONG, _SHORT)
"""The tensors that say how positions are rotated."""
_NEVER = 1e29
"""A divisor that stands for a number that is not rotated."""
_F32, _F16, _BF16 = 0, 1, 30
_TYPES = {_F32: "float32", _F16: "float16"}
"""The types that files keep whole; others run in bf16."""
_EMBEDDING = "token_embd.weight"
"""It is widened, as a table; if it is also the output layer, that keeps its levels."""
_LAYER = re.compile(r"blk\.(\d{1,6})\.")
_MATRIX, _EXPERTS = 2, 3
"""Dimensions."""
_MOST_PAIRS = 4096
_HALF_BYTE = 4
_FACTOR = 4
"""Bytes of a scale and of a shift, at most."""
_UNUSED = ("tokenizer.ggml.merges", "tokenizer.ggml.scores")


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A GGUF file of a model that our engine runs."""

    file: Path
    architecture: str
    """`general.architecture`."""
    description: ModelDescription
    tensors: Mapping[str, Tensor]
    """All but those of layers behind the last that predict further tokens, which are not run."""
    blocks: int
    """The layers by the numbers of tensors; some families count a layer's two parts apart."""
    order: Order
    """Of the rows of its linear layers."""
    numbers: Mapping[str, float]
    """Numbers of the metadata that checkpoints have as tensors, by the names of these."""

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

    def device_bytes(self, itemsize: int) -> int:
        """Return about how many bytes its weights take on a GPU: all but its matrices of levels are whole numbers.

        Args:
            itemsize: of a whole number.
        """
        whole = narrow = 0
        for name, tensor in self.tensors.items():
            count, kind = math.prod(tensor.shape), BLOCKS.get(tensor.kind)
            # Experts are also kept as they are stored.
            is_matrix = kind is not None and len(tensor.shape) in (_MATRIX, _EXPERTS)
            if kind is not None and is_matrix and (name != _EMBEDDING or self.description.tied):
                # Levels of 5 and 6 bits have 8, and groups a scale and mostly a shift.
                narrow += count // (2 if kind.bits == _HALF_BYTE else 1) + 2 * _FACTOR * count // kind.group
            if not is_matrix or name == _EMBEDDING:
                whole += count * itemsize
        return whole + narrow


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
    blocks = config["num_hidden_layers"]
    name, architecture = metadata["general.architecture"], architecture_of(metadata, tensors.keys())
    assert architecture is not None
    further = range(blocks, blocks + metadata.get(f"{name}.nextn_predict_layers", 0))
    tensors = {each: tensor for each, tensor in tensors.items() if _layer_of(each) not in further}
    config["dtype"] = _dtype(tensors)
    factors = {name: _numbers(tensors[name]) for name in ROPE_NUMBERS if name in tensors}
    _with_numbers(config, metadata, factors)
    family = describe(config)
    description = _stored_as(architecture, family, tensors.keys())
    description = replace(description, eos_token_ids=file_ends(metadata))
    if FACTORS in factors and max(factors[FACTORS]) < _NEVER:
        # The one scaling that takes its divisors as they are.
        description = _with_ropes(
            description,
            kind="longrope",
            short_factors=factors[FACTORS],
            long_factors=factors[FACTORS],
            attention_factor=1.0,
        )
    numbers = _of_layers(architecture, metadata, description.names, blocks)
    return GgufModel(file, name, description, tensors, blocks, order_of(architecture, family), numbers)


def _of_layers(
    architecture: Architecture, metadata: Mapping[str, Any], names: Names, blocks: int
) -> dict[str, float]:
    """Return the numbers of `Architecture.numbers` by the names of a checkpoint's tensors.

    Raises:
        UnsupportedModelError: the metadata lack one of a layer.
    """
    found: dict[str, float] = {}
    for name, key in architecture.numbers.items():
        values = metadata.get(key)
        if not isinstance(values, list) or len(values) != blocks:
            raise UnsupportedModelError(f"the metadata must have {blocks} numbers {key}, one for each layer")
        if not all(isinstance(value, float) and math.isfinite(value) for value in values):
            raise UnsupportedModelError(f"the metadata have numbers {key} that are not finite")
        found |= {names.layer.format(layer) + name: value for layer, value in enumerate(values)}
    return found


def _layer_of(name: str) -> int:
    """Return the number of a tensor's layer, -1 outside of layers."""
    found = _LAYER.match(name)
    return int(found[1]) if found else -1


def _dtype(tensors: Mapping[str, Tensor]) -> str:
    """Return the type of the largest matrix, or bf16 if that is quantised."""
    matrices = [tensor for tensor in tensors.values() if len(tensor.shape) > 1]
    largest = max(matrices, key=lambda tensor: tensor.shape[0] * tensor.shape[1], default=None)
    return "bfloat16" if largest is None else _TYPES.get(largest.kind, "bfloat16")


def _stored_as(
    architecture: Architecture, description: ModelDescription, tensors: Collection[str]
) -> ModelDescription:
    """Describe the weights as files of an architecture have them."""
    if architecture.norms_with_offset:
        description = replace(description, norm=replace(description.norm, offset=0.0))
    if architecture.interleaved is not None:
        description = _with_ropes(description, interleaved=architecture.interleaved)
    # llama.cpp's converter brings merged projections into one order, and turns those of GPT-2.
    layers = tuple(
        replace(layer, mixer=_stored_mixer(architecture, layer.mixer)) for layer in description.layers
    )
    return replace(description, layers=layers, names=_stored_names(architecture, description.names, tensors))


def _stored_mixer(architecture: Architecture, mixer: Mixer) -> Mixer:
    if isinstance(mixer, Attention):
        return replace(mixer, layout="apart")
    return replace(mixer, tiled=architecture.tiled) if isinstance(mixer, DeltaNet) else mixer


def _stored_names(architecture: Architecture, names: Names, tensors: Collection[str]) -> Names:
    """Return the names by which the gguf package finds what files have, whatever a family's checkpoints have.

    Gates, ups and downs of all experts are one tensor each; newer converters can merge projections of one input.
    """
    plain = Names()
    ends = {name.rpartition(".")[0].rpartition(".")[2] for name in tensors if name.endswith(".weight")}
    if len(names.gate_up) == 1 and "ffn_gate" in ends:
        names = replace(names, gate_up=plain.gate_up, down=plain.down)
    if len(names.shared_gate_up) == 1:
        names = replace(names, shared_gate_up=plain.shared_gate_up, shared_down=plain.shared_down)
    if "attn_qkv" in ends and "attn_q" not in ends and len(names.qkv) == 3:
        names = replace(names, qkv=("self_attn.qkv_proj",))
    stored: dict[str, Any] = {
        "transposed": False,
        "sinks": f"{plain.sinks}.weight",
        "correction": "mlp.gate.e_score_correction.bias",
        "expert_gate_up": ("mlp.experts.{}.gate_up_proj",)
        if "ffn_gate_up_exps" in ends
        else plain.expert_gate_up,
        "expert_down": plain.expert_down,
        "experts_transposed": False,
        "experts_alternate": False,
    }
    changes = dict(architecture.names)
    if (
        "ssm_in" in ends
    ):  # One projection, as in the checkpoint: earlier files of Qwen3-Next, and state spaces.
        changes.pop("delta", None)
    return replace(names, **stored | changes)


def _with_numbers(
    config: dict[str, Any], metadata: Mapping[str, Any], numbers: Mapping[str, tuple[float, ...]]
) -> None:
    """Add what tensors say of rotations: factors by length (Phi-3), and which part of a head is rotated (Gemma 4)."""
    rotations = config.get("rope_parameters", {})
    if _LONG in numbers and _SHORT in numbers:
        attention = metadata.get(f"{metadata['general.architecture']}.rope.scaling.attn_factor", 1.0)
        rotations |= {
            "rope_type": "longrope",
            "short_factor": [*numbers[_SHORT]],
            "long_factor": [*numbers[_LONG]],
        }
        rotations["attention_factor"] = attention
    if max(divisors := numbers.get(FACTORS, (1.0,))) >= _NEVER:
        if FULL not in rotations:
            raise UnsupportedModelError(f"{FACTORS} must turn every pair of a head for this architecture")
        rotations[FULL]["partial_rotary_factor"] = divisors.count(1.0) / len(divisors)


def _numbers(tensor: Tensor) -> tuple[float, ...]:
    """Read a tensor that says how positions are rotated."""
    if tensor.kind != _F32 or len(tensor.shape) != 1:
        raise UnsupportedModelError("tensors of rotations must be fp32 numbers")
    (count,) = tensor.shape
    if not 0 < count <= _MOST_PAIRS:
        raise UnsupportedModelError(f"tensors of rotations must have 1 to {_MOST_PAIRS} numbers, not {count}")
    with tensor.file.open("rb") as stream:
        stream.seek(min(tensor.offset, tensor.file.stat().st_size))
        data = stream.read(4 * count)
    if len(data) != 4 * count:
        raise UnsupportedModelError(f"{tensor.file.name} ends inside the tensors of rotations")
    found = torch.frombuffer(bytearray(data), dtype=torch.float32).tolist()
    if not all(0 < number < math.inf for number in found):
        raise UnsupportedModelError("tensors of rotations must have positive numbers")
    return tuple(found)


def _with_ropes(description: ModelDescription, **changes: Any) -> ModelDescription:
    layers = tuple(map(partial(_with_rope, **changes), description.layers))
    return replace(description, layers=layers)


def _with_rope(layer: LayerDescription, **changes: Any) -> LayerDescription:
    mixer = layer.mixer
    # A rotation of no part of a head has temperatures alone.
    if not isinstance(mixer, Attention) or mixer.rope is None or mixer.rope.part == 0:
        return layer
    return replace(layer, mixer=replace(mixer, rope=replace(mixer.rope, **changes)))

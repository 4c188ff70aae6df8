"""Read `compressed-tensors` checkpoints (llm-compressor): fp8, int8, or int4 and int8 packed into int32.

Activations that other engines would round by the scales of each token keep their type here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.engines.native.models.checkpoint import WeightsError
from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import Json
from plumbline.engines.native.models.quantised.bits import places_of, unpacked, with_zeros
from plumbline.engines.native.models.quantised.fields import check, positive
from plumbline.engines.native.models.quantised.fp8 import SCALE_TYPES, Fp8, block_size, expanded
from plumbline.engines.native.models.stored import StoredFormat, StoredWeight, Tensors

__all__ = ["Integers", "read"]

_WHERE = "quantization_config"
_FORMATS = ("float-quantized", "int-quantized", "pack-quantized")


@dataclass(frozen=True, slots=True)
class Integers(StoredFormat):
    """Signed integers: a tensor of int8, or packed into int32 with the lowest bits first and an offset."""

    bits: int
    group: int | None
    """Inputs that share a scale; None for one scale for a tensor or an output."""
    packed: bool
    symmetric: bool = True
    """Whether zero points are in the middle. Others are packed along the outputs."""

    def read(self, tensors: Tensors, name: str, shape: tuple[int, int]) -> StoredWeight | None:
        """Read a weight; see `StoredFormat`."""
        module = name.removesuffix("weight")
        if module == name or not tensors.has(f"{module}weight_scale"):
            return None
        outputs, inputs = shape
        if self.packed:
            words = -(-inputs * self.bits // 32)
            packed = tensors.take(f"{module}weight_packed", (outputs, words), types=(torch.int32,))
            levels = unpacked(packed, self.bits)[:, :inputs]
            stated = tensors.take(f"{module}weight_shape", (2,), types=(torch.int64, torch.int32)).tolist()
            if stated != [outputs, inputs]:
                raise WeightsError(
                    f"{module}weight_shape is {stated}, the config asks for {[outputs, inputs]}"
                )
        else:
            levels = tensors.take(name, shape, types=(torch.int8,))
        group = self.group or inputs
        shapes: list[tuple[int, ...]] = [(outputs, -(-inputs // group))]
        if self.group is None:
            shapes += [(), (1,), (1, 1), (outputs,)]
        scales = tensors.take(f"{module}weight_scale", *shapes, types=SCALE_TYPES)
        if self.group is None:
            scales = expanded(scales, outputs)
        places = None
        if tensors.has(f"{module}weight_g_idx"):
            places = places_of(tensors, f"{module}weight_g_idx", inputs, -(-inputs // group))
        zeros: Tensor | int = 1 << self.bits - 1 if self.packed else 0
        if not self.symmetric:
            size = -(-outputs * self.bits // 32), scales.shape[1]
            zeros = tensors.take(f"{module}weight_zero_point", size, types=(torch.int32,))
            zeros = unpacked(zeros.t(), self.bits)[:, :outputs].t()
        return with_zeros(levels, zeros, scales, places, group, self.bits)


def read(config: Json) -> StoredFormat:
    """Read the fields.

    Raises:
        UnsupportedModelError: see `read_format`.
    """
    check(
        config,
        _WHERE,
        "config_groups global_compression_ratio ignore version dequantize run_compressed",
        format=_FORMATS,
        quantization_status=("compressed", "frozen"),
        sparsity_config=({}, {"format": "dense"}),
        transform_config=({},),
        kv_cache_scheme=(),
    )
    form = config.get("format")
    if form not in _FORMATS:
        raise UnsupportedModelError(f"{_WHERE}.format is missing ({', '.join(_FORMATS)} are supported)")
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        raise UnsupportedModelError(f"{_WHERE}.config_groups must be one group, not {groups!r}")
    ((name, group),) = groups.items()
    where = f"{_WHERE}.config_groups.{name}"
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        raise UnsupportedModelError(f"{where}.weights must be an object")
    check(
        group,
        where,
        "weights input_activations",
        targets=(["Linear"],),
        output_activations=(),
        format=(form,),
    )
    _check_activations(group.get("input_activations") or {}, f"{where}.input_activations")
    return _weights(group["weights"], f"{where}.weights", form)


def _check_activations(fields: Json, where: str) -> None:
    """Refuse scales of activations that the checkpoint has."""
    check(
        fields,
        where,
        "actorder block_structure group_size observer observer_kwargs scale_dtype strategy symmetric zp_dtype",
        dynamic=(True,),
        num_bits=(8,),
        type=("float", "int"),
    )


def _weights(fields: Json, where: str, form: str) -> StoredFormat:
    of_floats = form == "float-quantized"
    check(
        fields,
        where,
        "group_size block_structure observer observer_kwargs scale_dtype zp_dtype",
        num_bits=(4, 8) if form == "pack-quantized" else (8,),
        type=("float",) if of_floats else ("int",),
        strategy=("tensor", "channel", "block") if of_floats else ("tensor", "channel", "group"),
        symmetric=(True, False) if form == "pack-quantized" else (True,),
        dynamic=(False,),
        actorder=("group", "weight", "static", "dynamic"),
    )
    strategy = fields.get("strategy")
    if of_floats:
        block = (
            block_size(fields.get("block_structure"), f"{where}.block_structure")
            if strategy == "block"
            else None
        )
        return Fp8(block, ("weight_scale",))
    group = positive(fields.get("group_size"), f"{where}.group_size") if strategy == "group" else None
    bits = positive(fields.get("num_bits"), f"{where}.num_bits")
    return Integers(bits, group, form == "pack-quantized", fields.get("symmetric") is not False)

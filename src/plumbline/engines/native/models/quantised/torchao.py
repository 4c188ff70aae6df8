"""Read torchao checkpoints: int8, int4 and float8 weights with a scale for each tensor, output or group of inputs.

A weight `linear.weight` is stored as `linear._weight_qdata`, `_weight_scale` and sometimes `_weight_zero_point`; the
config says in which layout. Activations that torchao would round by the scales of each token keep their type here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plumbline.engines.native.models.checkpoint import WeightsError
from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import Json
from plumbline.engines.native.models.quantised.bits import with_zeros
from plumbline.engines.native.models.quantised.fields import check, positive
from plumbline.engines.native.models.quantised.fp8 import SCALE_TYPES, expanded
from plumbline.engines.native.models.stored import StoredFormat, StoredWeight, Tensors

__all__ = ["Torchao", "read"]

_WHERE = "quantization_config"
_OF_ACTIVATIONS = ("act_pre_scale", "act_quant_scale", "act_quant_zero_point")
_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True, slots=True)
class Torchao(StoredFormat):
    """Integers of so many bits, one a byte or two, or floats of 8 bits."""

    bits: int
    """0 for floats."""
    group: int | None
    """Inputs that share a scale; None for one scale for a tensor or an output."""
    packed: bool = False
    """Two numbers a byte, the first one in the lower half; scales are [groups, out], and zero points are shifts."""
    has_zeros: bool = False
    """Whether every weight has zero points; others may have them."""

    def read(self, tensors: Tensors, name: str, shape: tuple[int, int]) -> StoredWeight | None:
        """Read a weight; see `StoredFormat`."""
        module, _, last = name.rpartition(".")
        prefix = f"{module}._{last}_"
        if not tensors.has(f"{prefix}qdata"):
            return None
        if found := [part for part in _OF_ACTIVATIONS if tensors.has(f"{prefix}{part}")]:
            raise WeightsError(f"{prefix}{found[0]}: scales of activations are not supported")
        outputs, inputs = shape
        group = self.group or inputs
        groups = -(-inputs // group)
        if self.packed:
            return self._read_packed(tensors, prefix, outputs, inputs, groups)
        levels = tensors.take(f"{prefix}qdata", shape, types=(torch.int8,) if self.bits else _FLOATS)
        shapes: list[tuple[int, ...]] = [(outputs, groups)]
        if self.group is None:
            shapes += [(), (1,), (1, 1), (outputs,)]
        scales = tensors.take(f"{prefix}scale", *shapes, types=SCALE_TYPES)
        if self.group is None:
            scales = expanded(scales, outputs)
        if not self.bits:
            # Kernels keep e4m3, and not e5m2.
            bits = 8 if levels.dtype == torch.float8_e4m3fn else 0
            return StoredWeight(levels, scales, group, bits, floats=True)
        zeros: Tensor | int = 0
        if self.has_zeros or tensors.has(f"{prefix}zero_point"):
            kinds = (torch.int8, torch.int32, *SCALE_TYPES)
            stored = tensors.take(f"{prefix}zero_point", (outputs, groups), types=kinds).float()
            if (stored != stored.round()).any():
                raise WeightsError(f"{prefix}zero_point has numbers that are not whole")
            zeros = stored.to(torch.int16)
        return with_zeros(levels.to(torch.int16), zeros, scales, None, group, self.bits)

    def _read_packed(
        self, tensors: Tensors, prefix: str, outputs: int, inputs: int, groups: int
    ) -> StoredWeight:
        packed = tensors.take(f"{prefix}qdata", (outputs, -(-inputs // 2)), types=(torch.int8,))
        # Shifts of signed numbers keep the sign.
        levels = torch.stack((packed << 4 >> 4, packed >> 4), 2).flatten(1)[:, :inputs]
        parts = [
            tensors.take(f"{prefix}{part}", (groups, outputs), types=SCALE_TYPES).t()
            for part in ("scale", "zero_point")
        ]
        assert self.group is not None
        return StoredWeight(levels, parts[0], self.group, self.bits, parts[1].float())


def read(config: Json) -> StoredFormat:
    """Read the fields.

    Raises:
        UnsupportedModelError: see `read_format`.
    """
    check(
        config,
        _WHERE,
        "quant_type modules_to_not_convert include_input_output_embeddings untie_embedding_weights",
        quant_type_kwargs=({},),
    )
    kinds = config.get("quant_type")
    if not isinstance(kinds, dict) or list(kinds) != ["default"] or not isinstance(kinds["default"], dict):
        raise UnsupportedModelError(
            f"{_WHERE}.quant_type {kinds!r:.80} is not supported (an object for all layers, `default`, is)"
        )
    kind, fields = kinds["default"].get("_type"), kinds["default"].get("_data")
    where = f"{_WHERE}.quant_type.{kind}"
    if kind not in _READERS or not isinstance(fields, dict):
        raise UnsupportedModelError(f"{where} is not supported ({', '.join(_READERS)} are)")
    return _READERS[kind](fields, where)


def _int8(fields: Json, where: str) -> Torchao:
    check(
        fields,
        where,
        "act_mapping_type granularity reduce_range set_inductor_config weight_only_decode",
        group_size=(),
    )
    return Torchao(8, _group(fields, where, "granularity"))


def _int4(fields: Json, where: str) -> Torchao:
    check(
        fields,
        where,
        "group_size int4_choose_qparams_algorithm int4_tile_packed_ntile set_inductor_config",
        int4_packing_format=("plain", {"_type": "Int4PackingFormat", "_data": "PLAIN"}),
    )
    return Torchao(4, positive(fields.get("group_size", 128), f"{where}.group_size"), packed=True)


def _intx(fields: Json, where: str) -> Torchao:
    check(
        fields,
        where,
        "act_mapping_type granularity intx_choose_qparams_algorithm mapping_type scale_dtype weight_dtype "
        "weight_granularity weight_mapping_type weight_scale_dtype",
        intx_packing_format=(
            "unpacked_to_int8",
            {"_type": "IntxPackingFormat", "_data": "UNPACKED_TO_INT8"},
        ),
    )
    kind: Any = fields.get("weight_dtype")
    name = kind.get("_data") if isinstance(kind, dict) else kind
    known = {f"int{bits}": bits for bits in range(1, 9)}
    if name not in known:
        raise UnsupportedModelError(
            f"{where}.weight_dtype {name!r} is not supported ({', '.join(known)} are)"
        )
    granularity = "weight_granularity" if "weight_granularity" in fields else "granularity"
    return Torchao(known[name], _group(fields, where, granularity), has_zeros=True)


def _float8(fields: Json, where: str) -> Torchao:
    check(
        fields,
        where,
        "activation_dtype activation_value_lb activation_value_ub granularity kernel_preference mm_config "
        "packing_format set_inductor_config weight_dtype",
    )
    return Torchao(0, None)


def _group(fields: Json, where: str, name: str) -> int | None:
    """Return the inputs that share a scale, None for all; of two granularities the second one is of weights."""
    found: Any = fields.get(name)
    found = found[-1] if isinstance(found, list) and found else found
    kind = found.get("_type") if isinstance(found, dict) else found
    if kind in (None, "PerRow", "PerTensor", "PerAxis"):
        return None
    if kind != "PerGroup":
        raise UnsupportedModelError(f"{where}.{name} {kind!r} is not supported (PerGroup and PerRow are)")
    return positive((found.get("_data") or {}).get("group_size"), f"{where}.{name}.group_size")


_READERS = {
    "Int8WeightOnlyConfig": _int8,
    "Int8DynamicActivationInt8WeightConfig": _int8,
    "Int4WeightOnlyConfig": _int4,
    "IntxWeightOnlyConfig": _intx,
    "Int8DynamicActivationIntxWeightConfig": _intx,
    "Float8WeightOnlyConfig": _float8,
    "Float8DynamicActivationFloat8WeightConfig": _float8,
}

"""Read `fp8` checkpoints of transformers, such as DeepSeek V3: fp8 weights with a scale for each block or tensor.

Activations, which other engines round to fp8 by the scales of each token or layer, keep their type here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import Json
from plumbline.engines.native.models.quantised.fields import check, positive
from plumbline.engines.native.models.stored import StoredFormat, StoredWeight, Tensors

__all__ = ["SCALE_TYPES", "Fp8", "block_size", "expanded", "read"]

SCALE_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e8m0fnu)


@dataclass(frozen=True, slots=True)
class Fp8(StoredFormat):
    """Weights in e4m3, with scales beside them."""

    block: tuple[int, int] | None
    """Outputs and inputs that share a scale; None for one scale for a tensor or an output."""
    scale_names: tuple[str, ...] = ("weight_scale_inv", "weight_scale")
    static: bool = False
    """Whether inputs have a scale in the checkpoint, which is without effect like those of dynamic ones."""

    def read(self, tensors: Tensors, name: str, shape: tuple[int, int]) -> StoredWeight | None:
        """Read a weight; see `StoredFormat`."""
        module = name.removesuffix("weight")
        found = [module + scale for scale in self.scale_names if tensors.has(module + scale)]
        if module == name or not found:
            return None
        if self.static:
            tensors.take(f"{module}activation_scale", (), (1,), (1, 1), types=SCALE_TYPES)
        levels = tensors.take(name, shape, types=(torch.float8_e4m3fn,))
        outputs, inputs = shape
        if self.block is not None:
            blocks = -(-outputs // self.block[0]), -(-inputs // self.block[1])
            scales = tensors.take(found[0], blocks, types=SCALE_TYPES)
            rows = scales.float().repeat_interleave(self.block[0], 0)[:outputs]
            return StoredWeight(levels, rows, self.block[1], 8, floats=True)
        scales = tensors.take(found[0], (), (1,), (1, 1), (outputs,), (outputs, 1), types=SCALE_TYPES)
        return StoredWeight(levels, expanded(scales, outputs), inputs, 8, floats=True)

    def read_stack(
        self, tensors: Tensors, name: str, shape: tuple[int, int, int], turned: bool
    ) -> Iterator[StoredWeight] | None:
        """Read the weights of all experts; see `StoredFormat`. Blocks are of the tensor as it is stored."""
        found = [f"{name}_{scale.removeprefix('weight_')}" for scale in self.scale_names]
        found = [scale for scale in found if tensors.has(scale)]
        if not found:
            return None
        number, outputs, inputs = shape
        rows, columns = (inputs, outputs) if turned else (outputs, inputs)
        levels = tensors.take(name, (number, rows, columns), types=(torch.float8_e4m3fn,))
        height, width = self.block or (rows, columns)
        blocks = number, -(-rows // height), -(-columns // width)
        shapes = [blocks] if self.block else [blocks, (number,)]
        scales = tensors.take(found[0], *shapes, types=SCALE_TYPES).view(blocks)
        if self.static:
            tensors.take(f"{name}_activation_scale", (), (number,), (number, 1, 1), types=SCALE_TYPES)
        if turned:
            levels, scales, height, width = levels.transpose(1, 2), scales.transpose(1, 2), width, height
        return (
            StoredWeight(level, scale.float().repeat_interleave(height, 0)[:outputs], width, 8, floats=True)
            for level, scale in zip(levels, scales, strict=True)
        )


def expanded(scales: Tensor, outputs: int) -> Tensor:
    """Return scales of a tensor or of outputs as fp32 [out, 1]."""
    return scales.float().reshape(-1, 1).expand(outputs, 1)


def block_size(value: object, name: str) -> tuple[int, int]:
    """Return the size of a block.

    Raises:
        UnsupportedModelError: it is not two positive integers.
    """
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise UnsupportedModelError(f"{name} must be two positive integers, not {value!r}")
    return positive(value[0], name), positive(value[1], name)


def read(config: Json) -> StoredFormat:
    """Read the fields.

    Raises:
        UnsupportedModelError: see `read_format`.
    """
    check(
        config,
        "quantization_config",
        "modules_to_not_convert ignored_layers dequantize weight_block_size",
        activation_scheme=("dynamic", "static"),
        fmt=("e4m3", "float8_e4m3fn"),
        scale_fmt=("float", "ue8m0"),
        expert_dtype=("fp8",),
    )
    size = config.get("weight_block_size")
    block = None if size is None else block_size(size, "quantization_config.weight_block_size")
    return Fp8(block, static=config.get("activation_scheme") == "static")

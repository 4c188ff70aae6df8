"""Read MXFP4 checkpoints of gpt-oss: experts in 4-bit floats, with a power of two for each 32 inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.engines.native.models.fields import Json
from plumbline.engines.native.models.quantised.fields import check
from plumbline.engines.native.models.stored import StoredFormat, StoredWeight, Tensors

__all__ = ["Mxfp4", "read"]

_GROUP = 32
_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The numbers of the lower three bits; the fourth is the sign."""
_BIAS = 127
"""Of the exponents."""


@dataclass(frozen=True, slots=True)
class Mxfp4(StoredFormat):
    """For a weight of all experts, `NAME_blocks` uint8 [E, out, in / 32, 16] and `NAME_scales`."""

    def read_stack(
        self, tensors: Tensors, name: str, shape: tuple[int, int, int], turned: bool
    ) -> Iterator[StoredWeight] | None:
        """Read the weights of all experts; see `StoredFormat`."""
        if not tensors.has(f"{name}_blocks") and not tensors.has(f"{name}_scales"):
            return None
        experts, outputs, inputs = shape
        size = experts, outputs, -(-inputs // _GROUP)
        blocks = tensors.take(f"{name}_blocks", (*size, _GROUP // 2), types=(torch.uint8,))
        exponents = tensors.take(f"{name}_scales", size, types=(torch.uint8,))
        return (_matrix(*expert, inputs) for expert in zip(blocks, exponents, strict=True))


def _matrix(blocks: Tensor, exponents: Tensor, inputs: int) -> StoredWeight:
    """Unpack the blocks [out, groups, 16] of an expert with so many inputs."""
    # Floats of 8 bits contain those of 4.
    table = torch.tensor([sign * x for sign in (1, -1) for x in _NUMBERS]).to(torch.float8_e4m3fn)
    levels = torch.stack((table[(blocks & 15).int()], table[(blocks >> 4).int()]), -1)
    scales = torch.ldexp(torch.ones(exponents.shape), exponents.int() - _BIAS)
    return StoredWeight(levels.flatten(1)[:, :inputs], scales, _GROUP, 4, floats=True)


def read(config: Json) -> StoredFormat:
    """Read the fields.

    Raises:
        UnsupportedModelError: see `read_format`.
    """
    check(config, "quantization_config", "modules_to_not_convert dequantize")
    return Mxfp4()

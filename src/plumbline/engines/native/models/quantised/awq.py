"""Read AWQ checkpoints: 4 bits, packed along the outputs in the order of its kernels, with zero points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import Json
from plumbline.engines.native.models.quantised.bits import unpacked, with_zeros
from plumbline.engines.native.models.quantised.fields import check, positive
from plumbline.engines.native.models.quantised.fp8 import SCALE_TYPES
from plumbline.engines.native.models.stored import StoredFormat, StoredWeight, Tensors

__all__ = ["Awq", "read"]

_WHERE = "quantization_config"
_BITS, _WORD = 4, 8
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word, in numbers from the lowest bits, its eight outputs are."""


@dataclass(frozen=True, slots=True)
class Awq(StoredFormat):
    """`qweight` int32 [in, out / 8], `qzeros` [groups, out / 8], `scales` [groups, out]."""

    group: int | None
    """Inputs that share a scale; None for all."""

    def read(self, tensors: Tensors, name: str, shape: tuple[int, int]) -> StoredWeight | None:
        """Read a weight; see `StoredFormat`."""
        module = name.removesuffix("weight")
        if module == name or not tensors.has(f"{module}qweight"):
            return None
        outputs, inputs = shape
        group, words = self.group or inputs, -(-outputs // _WORD)
        groups = -(-inputs // group)
        levels = tensors.take(f"{module}qweight", (inputs, words), types=(torch.int32,))
        zeros = tensors.take(f"{module}qzeros", (groups, words), types=(torch.int32,))
        scales = tensors.take(f"{module}scales", (groups, outputs), types=SCALE_TYPES).t()
        return with_zeros(
            _by_output(levels)[:outputs], _by_output(zeros)[:outputs], scales, None, group, _BITS
        )


def _by_output(words: Tensor) -> Tensor:
    """Unpack int32 [N, words] to int16 [words * 8, N]."""
    return unpacked(words, _BITS).view(len(words), -1, _WORD)[:, :, _PLACES].flatten(1).t()


def read(config: Json) -> StoredFormat:
    """Read the fields.

    Raises:
        UnsupportedModelError: see `read_format`.
    """
    check(
        config,
        _WHERE,
        "backend do_fuse fuse_max_seq_len group_size modules_to_fuse modules_to_not_convert q_group_size",
        zero_point=(True,),
        bits=(_BITS,),
        w_bit=(_BITS,),
        version=("gemm", "GEMM"),
        format=("gemm", "GEMM"),
    )
    size = config.get("group_size", config.get("q_group_size"))
    if size is None:
        raise UnsupportedModelError(f"{_WHERE}.group_size is missing")
    return Awq(None if size == -1 else positive(size, f"{_WHERE}.group_size"))

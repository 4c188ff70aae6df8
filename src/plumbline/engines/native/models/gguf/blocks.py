"""Unpack the blocks of a quantised tensor of a GGUF file to levels and scales, as the compiled kernels keep them.

A block is a fixed number of inputs of one row, with one scale, or with a scale for each of its groups; some types have
a minimum for each group as well. The gguf package dequantises the types that are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from plumbline.engines.native.models.stored import StoredWeight

__all__ = ["BLOCKS", "BlockType"]

_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The levels of IQ4_NL and IQ4_XS by their number."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """A type of blocks."""

    inputs: int
    """Of a block."""
    size: int
    """Bytes of a block."""
    group: int
    """Inputs that share a scale."""
    bits: int
    """8 or 4, of a level."""
    unpack: Callable[[Tensor], tuple[Tensor, ...]]
    """Map blocks uint8 [N, size] to int8 levels [N, inputs] and fp32 scales [N, groups]; types with minimums also to
    shifts like the scales.
    """

    def read(self, data: Tensor, shape: tuple[int, int]) -> StoredWeight:
        """Unpack the bytes of a weight [out, in]."""
        outputs, inputs = shape
        levels, scales, *shifts = self.unpack(data.view(-1, self.size))
        groups = outputs, inputs // self.group
        return StoredWeight(
            levels.reshape(outputs, inputs),
            scales.reshape(groups),
            self.group,
            self.bits,
            shifts=shifts[0].reshape(groups) if shifts else None,
        )


def _half(data: Tensor, at: int) -> Tensor:
    """Read the fp16 number at a byte of each block as fp32 [N, 1]."""
    return data[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(data: Tensor) -> Tensor:
    """Return the low halves of bytes [N, bytes] and then the high ones, uint8 [N, 2 * bytes]."""
    return torch.cat((data & 15, data >> 4), 1)


def _bit_of_each(words: Tensor) -> Tensor:
    """Return the bits of 4 bytes [N, 4], lowest first, uint8 [N, 32]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (words.unsqueeze(2) >> shifts & 1).flatten(1)


def _q8_0(data: Tensor) -> tuple[Tensor, Tensor]:
    return data[:, 2:].contiguous().view(torch.int8), _half(data, 0)


def _q4_0(data: Tensor) -> tuple[Tensor, Tensor]:
    return _nibbles(data[:, 2:]).view(torch.int8) - 8, _half(data, 0)


def _q5_0(data: Tensor) -> tuple[Tensor, Tensor]:
    levels = _nibbles(data[:, 6:]) | _bit_of_each(data[:, 2:6]) << 4
    return levels.view(torch.int8) - 16, _half(data, 0)


def _q6_k(data: Tensor) -> tuple[Tensor, Tensor]:
    count = len(data)
    low = data[:, :128].reshape(count, 2, 1, 64)
    low = torch.cat((low & 15, low >> 4), 2).view(count, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    high = data[:, 128:192].reshape(count, 2, 1, 32) >> shifts & 3
    levels = (low | high << 4).view(torch.int8) - 32
    scales = data[:, 192:208].contiguous().view(torch.int8).float()
    return levels.flatten(1), _half(data, 208) * scales


def _iq4_nl(data: Tensor) -> tuple[Tensor, Tensor]:
    return _from_table(_nibbles(data[:, 2:])), _half(data, 0)


def _iq4_xs(data: Tensor) -> tuple[Tensor, Tensor]:
    count = len(data)
    high = data[:, 2:4].contiguous().view(torch.int16).int() >> torch.arange(0, 16, 2) & 3
    pairs = data[:, 4:8].unsqueeze(2)
    low = torch.cat((pairs & 15, pairs >> 4), 2).flatten(1).int()
    levels = _from_table(_nibbles(data[:, 8:].reshape(-1, 16)))
    return levels.view(count, 256), _half(data, 0) * ((low | high << 4) - 32)


def _q4_1(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scales = _half(data, 0)
    return _nibbles(data[:, 4:]).view(torch.int8) - 8, scales, _half(data, 2) + 8 * scales


def _q5_1(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    levels = _nibbles(data[:, 8:]) | _bit_of_each(data[:, 4:8]) << 4
    return levels.view(torch.int8), _half(data, 0), _half(data, 2)


def _q4_k(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scales, minimums = _scales_and_minimums(data)
    levels = _pairs_of_groups(data[:, 16:144])
    return levels.view(torch.int8) - 8, scales, 8 * scales - minimums


def _q5_k(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scales, minimums = _scales_and_minimums(data)
    shifts = torch.arange(8, dtype=torch.uint8).view(8, 1)
    high = (data[:, 16:48].unsqueeze(1) >> shifts & 1).flatten(1)
    levels = _pairs_of_groups(data[:, 48:176]) | high << 4
    return levels.view(torch.int8), scales, -minimums


def _pairs_of_groups(data: Tensor) -> Tensor:
    """Return the low halves of each 32 bytes and then the high ones, uint8 [N, 256]."""
    parts = data.reshape(len(data), 4, 1, 32)
    return torch.cat((parts & 15, parts >> 4), 2).flatten(1)


def _scales_and_minimums(data: Tensor) -> tuple[Tensor, Tensor]:
    """Unpack eight scales and eight minimums of 6 bits each, which two fp16 numbers are factors of; fp32 [N, 8]."""
    first, second, rest = data[:, 4:8], data[:, 8:12], data[:, 12:16]
    scales = torch.cat((first & 63, rest & 15 | (first >> 6) << 4), 1)
    minimums = torch.cat((second & 63, rest >> 4 | (second >> 6) << 4), 1)
    return _half(data, 0) * scales, _half(data, 2) * minimums


def _from_table(numbers: Tensor) -> Tensor:
    return torch.tensor(_LEVELS, dtype=torch.int8)[numbers.int()]


BLOCKS: Mapping[int, BlockType] = MappingProxyType(
    {
        2: BlockType(32, 18, 32, 4, _q4_0),
        3: BlockType(32, 20, 32, 4, _q4_1),
        6: BlockType(32, 22, 32, 8, _q5_0),
        7: BlockType(32, 24, 32, 8, _q5_1),
        8: BlockType(32, 34, 32, 8, _q8_0),
        12: BlockType(256, 144, 32, 4, _q4_k),
        13: BlockType(256, 176, 32, 8, _q5_k),
        14: BlockType(256, 210, 16, 8, _q6_k),
        20: BlockType(32, 18, 32, 8, _iq4_nl),
        23: BlockType(256, 136, 32, 8, _iq4_xs),
    }
)
"""The types that fit the kernels, by their number in the format."""

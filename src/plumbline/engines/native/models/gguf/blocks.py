"""Unpack the blocks of a quantised tensor of a GGUF file to levels and scales, as the compiled kernels keep them.

A block is a fixed number of inputs of one row, with one scale, or with a scale for each of its groups; some types have
a minimum for each group as well. The gguf package dequantises the types that are not here, and those whose levels are
numbers of a codebook: divided by their scales, these are whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.engines.native.models.stored import StoredWeight
from plumbline_kernels.cpu.library import UNPACKED, Library, usable_cores

__all__ = ["BLOCKS", "BlockType"]

_READ_AT_ONCE = 1 << 19
"""Inputs of all rows that are unpacked at once: what is computed between stays in the caches."""
_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The levels of IQ4_NL and IQ4_XS by their number."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """A type of blocks."""

    number: int
    """Of the type in the format."""
    inputs: int
    """Of a block."""
    size: int
    """Bytes of a block."""
    group: int
    """Inputs that share a scale."""
    bits: int
    """Of a level, 4 to 8."""
    unpack: Callable[[Tensor], tuple[Tensor, ...]]
    """Map blocks uint8 [N, size] to int8 levels [N, inputs] and fp32 scales [N, groups]; types with minimums also to
    shifts like the scales.
    """

    def read(self, data: Tensor, shape: tuple[int, int], library: Library | None = None) -> StoredWeight:
        """Unpack the bytes of a weight [out, in], by compiled kernels if they have the type."""
        outputs, inputs = shape
        groups = inputs // self.group
        levels, scales = torch.empty(shape, dtype=torch.int8), torch.empty(outputs, groups)
        if library is not None and (has_shifts := UNPACKED.get(self.number)) is not None:
            added = torch.empty(outputs, groups) if has_shifts else None
            library.unpack(data.view(-1, self.size), self.number, levels, scales, added)
            return StoredWeight(levels, scales, self.group, self.bits, shifts=added)
        shifts = torch.empty(outputs, groups)

        def unpack(first: int) -> bool:
            part = slice(first, first + rows)
            blocks = data.view(outputs, -1)[part].reshape(-1, self.size)
            found, factors, *added = self.unpack(blocks)
            levels[part], scales[part] = found.view(-1, inputs), factors.reshape(-1, groups)
            if added:
                shifts[part] = added[0].reshape(-1, groups)
            return bool(added)

        rows = max(_READ_AT_ONCE // inputs, 1)
        starts = range(0, outputs, rows)
        # Threads of our own: those of torch meet after each of these short operations.
        threads = min(usable_cores(), len(starts))
        if threads < 2:
            shifted = any([*map(unpack, starts)])
        else:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                shifted = any([*pool.map(unpack, starts)])
        return StoredWeight(levels, scales, self.group, self.bits, shifts=shifts if shifted else None)


def _half(data: Tensor, at: int) -> Tensor:
    """Read the fp16 number at a byte of each block as fp32 [N, 1]."""
    return data[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(data: Tensor) -> Tensor:
    """Return the low halves of bytes [N, bytes] and then the high ones, uint8 [N, 2 * bytes]."""
    return torch.cat((data & 15, data >> 4), 1)


def _bit_of_each(words: Tensor) -> Tensor:
    """Return the bits of bytes [N, bytes], lowest first, uint8 [N, 8 * bytes]."""
    return _BITS[words.int()].view(torch.uint8).flatten(1)


_BITS = (torch.arange(256, dtype=torch.uint8).unsqueeze(1) >> torch.arange(8, dtype=torch.uint8) & 1).view(
    torch.int64
)
"""The bits of each byte, lowest first, eight bytes as one number."""


def _pairs(data: Tensor) -> Tensor:
    """Return the low half of each byte and then its high one, uint8 [N, 2 * bytes]."""
    return torch.stack((data & 15, data >> 4), 2).flatten(1)


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
    low = _pairs(data[:, 4:8]).int()
    levels = _from_table(_nibbles(data[:, 8:].reshape(-1, 16)))
    return levels.view(count, 256), _half(data, 0) * ((low | high << 4) - 32)


def _q4_1(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scales = _half(data, 0)
    return _nibbles(data[:, 4:]).view(torch.int8) - 8, scales, _half(data, 2) + 8 * scales


def _q5_1(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    levels, scales = _nibbles(data[:, 8:]) | _bit_of_each(data[:, 4:8]) << 4, _half(data, 0)
    return levels.view(torch.int8) - 16, scales, _half(data, 2) + 16 * scales


def _q4_k(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scales, minimums = _scales_and_minimums(data)
    levels = _pairs_of_groups(data[:, 16:144])
    return levels.view(torch.int8) - 8, scales, 8 * scales - minimums


def _q5_k(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scales, minimums = _scales_and_minimums(data)
    shifts = torch.arange(8, dtype=torch.uint8).view(8, 1)
    high = (data[:, 16:48].unsqueeze(1) >> shifts & 1).flatten(1)
    levels = _pairs_of_groups(data[:, 48:176]) | high << 4
    return levels.view(torch.int8) - 16, scales, 16 * scales - minimums


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


def _q2_k(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    levels = _crumbs(data[:, 16:80])
    scales = _half(data, 80) * (data[:, :16] & 15)
    return levels.view(torch.int8) - 2, scales, 2 * scales - _half(data, 82) * (data[:, :16] >> 4)


def _q3_k(data: Tensor) -> tuple[Tensor, Tensor]:
    shifts = torch.arange(8, dtype=torch.uint8).view(8, 1)
    high = (data[:, :32].unsqueeze(1) >> shifts & 1).flatten(1)
    low = torch.cat((data[:, 96:104] & 15, data[:, 96:104] >> 4), 1)
    pairs = (
        data[:, 104:108].unsqueeze(1) >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(4, 1) & 3
    ).flatten(1)
    scales = _half(data, 108) * ((low | pairs << 4).view(torch.int8) - 32)
    return (_crumbs(data[:, 32:96]) | high << 2).view(torch.int8) - 4, scales


def _crumbs(data: Tensor) -> Tensor:
    """Return the lowest two bits of each 32 bytes, then the next ones, and so on, uint8 [N, 4 * bytes]."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(4, 1)
    return (data.reshape(len(data), -1, 1, 32) >> shifts & 3).flatten(1)


def _mxfp4(data: Tensor) -> tuple[Tensor, Tensor]:
    # Twice the numbers of e2m1, with half the scale.
    halves = torch.tensor((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), dtype=torch.int8)
    scales = torch.exp2(data[:, :1].double() - 128).float()
    return halves[_nibbles(data[:, 1:]).int()], scales


def _of_codebook(
    kind: int, scales_of: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return `BlockType.unpack` of a type that the gguf package dequantises; its numbers are whole scales."""

    def unpack(data: Tensor) -> tuple[Tensor, Tensor]:
        import gguf

        scales = scales_of(data)
        numbers = torch.from_numpy(gguf.quants.dequantize(data.numpy(), gguf.GGMLQuantizationType(kind)))
        levels = numbers.view(*scales.shape, -1) / scales.unsqueeze(2)
        return levels.nan_to_num_(0.0, 0.0, 0.0).round_().to(torch.int8).flatten(1), scales

    return unpack


def _of_iq1_m(data: Tensor) -> Tensor:
    words = data[:, 48:56].contiguous().view(torch.int16).int() & 0xFFFF
    parts = (words & 0xF000) >> torch.tensor([12, 8, 4, 0])
    factor = parts.sum(1, keepdim=True).to(torch.int16).view(torch.float16).float()
    scales = (words.unsqueeze(2) >> torch.tensor([0, 3, 6, 9]) & 7).flatten(1)
    return factor * (2 * scales + 1) / 8


def _of_iq1_s(data: Tensor) -> Tensor:
    words = data[:, 34:50].contiguous().view(torch.int16).int()
    return _half(data, 0) * (2 * (words >> 12 & 7) + 1) / 8


BLOCKS: Mapping[int, BlockType] = {
    block.number: block
    for block in (
        BlockType(2, 32, 18, 32, 4, _q4_0),
        BlockType(3, 32, 20, 32, 4, _q4_1),
        BlockType(6, 32, 22, 32, 5, _q5_0),
        BlockType(7, 32, 24, 32, 5, _q5_1),
        BlockType(8, 32, 34, 32, 8, _q8_0),
        BlockType(10, 256, 84, 16, 4, _q2_k),
        BlockType(11, 256, 110, 16, 4, _q3_k),
        BlockType(12, 256, 144, 32, 4, _q4_k),
        BlockType(13, 256, 176, 32, 5, _q5_k),
        BlockType(14, 256, 210, 16, 6, _q6_k),
        # IQ2_XXS, IQ2_XS, IQ3_XXS
        BlockType(
            16,
            256,
            66,
            32,
            8,
            _of_codebook(16, lambda data: _half(data, 0) * ((data[:, 9::8] >> 4) + 0.5) / 4),
        ),
        BlockType(
            17,
            256,
            74,
            16,
            8,
            _of_codebook(17, lambda data: _half(data, 0) * (_pairs(data[:, 66:]) + 0.5) / 4),
        ),
        BlockType(
            18,
            256,
            98,
            32,
            8,
            _of_codebook(18, lambda data: _half(data, 0) * ((data[:, 69::4] >> 4) + 0.5) / 2),
        ),
        BlockType(19, 256, 50, 32, 5, _of_codebook(19, _of_iq1_s)),
        BlockType(20, 32, 18, 32, 8, _iq4_nl),
        # IQ3_S, IQ2_S
        BlockType(
            21,
            256,
            110,
            32,
            5,
            _of_codebook(21, lambda data: _half(data, 0) * (_pairs(data[:, 106:]) * 2 + 1)),
        ),
        BlockType(
            22,
            256,
            82,
            16,
            8,
            _of_codebook(22, lambda data: _half(data, 0) * (_pairs(data[:, 74:]) + 0.5) / 4),
        ),
        BlockType(23, 256, 136, 32, 8, _iq4_xs),
        BlockType(29, 256, 56, 16, 5, _of_codebook(29, _of_iq1_m)),
        # TQ1_0, TQ2_0
        BlockType(34, 256, 54, 256, 4, _of_codebook(34, lambda data: _half(data, 52))),
        BlockType(35, 256, 66, 256, 4, _of_codebook(35, lambda data: _half(data, 64))),
        BlockType(39, 32, 17, 32, 5, _mxfp4),
    )
}
"""The types that fit the kernels, by their number in the format."""

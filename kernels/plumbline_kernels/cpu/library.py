"""Load the compiled kernels, and call the ones that take a tensor alone."""

from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels.cpu.build import CompileError, build
from plumbline_kernels.cpu.layout import CONSTANTS, PLACES, DrawsStruct, MatrixStruct
from plumbline_kernels.cpu.structs import difference

__all__ = ["UNPACKED", "Library", "PackedWeight", "load"]

_DTYPES = (torch.bfloat16, torch.float32)
UNPACKED = {2: False, 3: True, 6: False, 7: True, 8: False, 12: True, 13: True, 14: False}
"""Types of blocks that blocks.h unpacks, by their number in GGUF files, and whether they have shifts.

They are Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K.
"""
_ROUNDED_AT_ONCE = 4096
"""Rows of a weight."""
_GROUPS = (128, 64, 32, 16)
"""Inputs that may share a scale; the first number that divides the inputs does."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [out, in] in the layout of product.h, or of quantized.h if it has scales."""

    data: Tensor
    outputs: int
    inputs: int
    bits: int = 0
    """8, 6, 5 or 4; 0 for the type of the model."""
    group: int = 0
    """Inputs that share a scale."""
    scales: Tensor | None = None
    shifts: Tensor | None = None
    """What is added to the numbers of a group."""

    def matrix(self, bias: Tensor | None) -> MatrixStruct:
        """Describe the weight with a bias to the kernels."""
        return MatrixStruct(
            weight=self.data,
            bias=bias,
            scales=self.scales,
            shifts=self.shifts,
            outputs=self.outputs,
            inputs=self.inputs,
            group=self.group,
            bits=self.bits,
        )


class Library:
    """The kernels of one compiled file."""

    def __init__(self, path: str, threads: int) -> None:
        """Load the file; `threads` share the work of an operation that is worth it.

        Raises:
            OSError: it is not a library of this machine.
            CompileError: its structures are laid out differently than those of layout.py, or it is not one of these.
        """
        self.path = path
        self.threads = threads
        """May change between calls; results do not depend on it."""
        self._functions = ctypes.CDLL(path)
        functions = self._functions
        if (problem := difference(_places(functions), PLACES)) is not None:
            raise CompileError(
                f"{path} has another layout: {problem}; delete the file to have it compiled again"
            )
        functions.plumbline_run.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
        functions.plumbline_logits.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int64, *[ctypes.c_int32] * 2]
        functions.plumbline_draw.argtypes = [ctypes.c_void_p]
        functions.plumbline_pack.argtypes = [
            ctypes.c_void_p,
            *[ctypes.c_int64] * 2,
            ctypes.c_int32,
            ctypes.c_void_p,
            ctypes.c_int32,
        ]
        functions.plumbline_fit.argtypes = [
            ctypes.c_void_p,
            *[ctypes.c_int64] * 3,
            ctypes.c_int32,
            *[ctypes.c_void_p] * 3,
            ctypes.c_int32,
        ]
        functions.plumbline_unpack.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int32,
            *[ctypes.c_void_p] * 3,
            ctypes.c_int32,
        ]
        for name in ("run", "logits", "draw", "pack", "fit", "unpack"):
            function = getattr(functions, f"plumbline_{name}")
            function.restype = _raise_without_memory
        self.run = functions.plumbline_run
        self._logits = functions.plumbline_logits
        self._per_word = {
            dtype: int(self._functions.plumbline_per_word(int(dtype == torch.bfloat16))) for dtype in _DTYPES
        }
        self._fast = bool(self._functions.plumbline_is_fast())
        self._panel = int(self._functions.plumbline_panel())

    def supports(self, dtype: torch.dtype, head_dim: int, shared: int, widths: tuple[int, ...]) -> bool:
        """Return whether models of a shape run, and faster than with torch.

        Args:
            dtype: of weights, activations and cache.
            head_dim: the width of a head.
            shared: query heads of a key head.
            widths: of rows.
        """
        heads = head_dim % 32 == 0 and head_dim <= CONSTANTS["WIDE_DIM"] and shared <= CONSTANTS["FEW_ROWS"]
        return heads and self.supports_rows(dtype, widths)

    def supports_rows(self, dtype: torch.dtype, widths: tuple[int, ...]) -> bool:
        """Return whether operations on rows of these widths run, and faster than with torch."""
        return self._fast and dtype in self._per_word and all(width % 16 == 0 for width in widths)

    def pack(
        self,
        weight: Tensor,
        bits: int = 0,
        scales: Tensor | None = None,
        shifts: Tensor | None = None,
        *,
        shifted: bool = True,
    ) -> PackedWeight:
        """Pack a weight [out, in] for `Program.linear`; outputs are padded to whole panels with zeros.

        Args:
            weight: bf16 or fp32; or int8 levels of a grid.
            bits: 8, 6, 5 or 4 that levels have, or to round the weight to; 0 keeps its type.
            scales: fp32 [out, groups] of a weight that is on such a grid already, to be kept; they become bf16. None
                takes scales by the largest numbers.
            shifts: fp32 [out, groups] that such a grid has added to its numbers.
            shifted: whether groups get shifts if the weight is rounded to less than 8 bits.

        Raises:
            ValueError: the inputs of a rounded weight, or of its groups, are not a multiple of 16.
        """
        outputs, inputs = weight.shape
        if bits == 0:
            per_word = self._per_word[weight.dtype]
            data = self._packed(weight, inputs // per_word, 8 * per_word * weight.itemsize)
            return PackedWeight(data.view(weight.dtype), outputs, inputs)
        # Groups of a given grid may be cut into smaller ones, which share a scale.
        shared = inputs if scales is None else inputs // scales.shape[1]
        group = next((size for size in _group_sizes(bits, scales is None) if shared % size == 0), None)
        if group is None:
            raise ValueError(
                f"a weight of {shared} inputs cannot have {bits} bits: they are no multiple of 16"
            )
        levels = weight
        if scales is not None:
            scales, shifts = (
                None if part is None else part.repeat_interleave(shared // group, 1)
                for part in (scales, shifts)
            )
        if weight.dtype != torch.int8:
            levels, scales, shifts = self._rounded(weight, bits, group, scales, shifts, shifted)
        assert scales is not None
        bits = _stored_bits(bits, group)
        data = self._packed(levels, inputs, bits)
        laid = None if shifts is None else self._by_panel(shifts.bfloat16())
        return PackedWeight(data, outputs, inputs, bits, group, self._by_panel(scales.bfloat16()), laid)

    def unpack(
        self, data: Tensor, kind: int, levels: Tensor, scales: Tensor, shifts: Tensor | None = None
    ) -> None:
        """Unpack the blocks of a weight of a GGUF file.

        Args:
            data: uint8 [out * in / inputs of a block, bytes of a block].
            kind: the number of its type in the format, one of `UNPACKED`.
            levels: takes int8 [out, in].
            scales: takes fp32 [out, groups].
            shifts: takes fp32 [out, groups] of a type that has them.
        """
        data = data.contiguous()
        places = (levels.data_ptr(), scales.data_ptr(), None if shifts is None else shifts.data_ptr())
        self._functions.plumbline_unpack(data.data_ptr(), len(data), kind, *places, self.threads)

    def _rounded(
        self,
        weight: Tensor,
        bits: int,
        group: int,
        scales: Tensor | None,
        shifts: Tensor | None,
        shifted: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Round a weight [out, in]; returns int8 levels [out, in], and fp32 scales and shifts [out, groups]."""
        outputs, groups = weight.shape[0], weight.shape[1] // group
        levels = torch.empty(weight.shape, dtype=torch.int8)
        found = torch.empty(outputs, groups)
        fits = scales is None and bits < 8
        fitted = torch.empty(outputs, groups) if fits and shifted else shifts
        # In parts, because rounding takes several times the memory of what it rounds.
        for start in range(0, outputs, _ROUNDED_AT_ONCE):
            part = slice(start, start + _ROUNDED_AT_ONCE)
            values = weight[part].float().contiguous()
            if fits:
                places = [
                    None if tensor is None else tensor[part].data_ptr() for tensor in (levels, found, fitted)
                ]
                self._functions.plumbline_fit(
                    values.data_ptr(), *values.shape, group, bits, *places, self.threads
                )
                continue
            values = values.view(-1, groups, group)
            if shifts is not None:
                values = values - shifts[part].unsqueeze(2)
            rounded, found[part] = _rounded(values, bits, None if scales is None else scales[part])
            levels[part] = rounded.flatten(1)
        return levels, found, fitted

    def _packed(self, rows: Tensor, words: int, bits: int) -> Tensor:
        """Lay rows of words of so many bits out in panels, uint8."""
        rows, outputs = rows.contiguous(), rows.shape[0]
        data = torch.empty((outputs + -outputs % self._panel) * words * bits // 8, dtype=torch.uint8)
        self._functions.plumbline_pack(rows.data_ptr(), outputs, words, bits, data.data_ptr(), self.threads)
        return data

    def _by_panel(self, scales: Tensor) -> Tensor:
        """Lay numbers of groups out as [panels, groups, PANEL]."""
        padded = F.pad(scales, (0, 0, 0, -len(scales) % self._panel))
        return padded.view(-1, self._panel, scales.shape[1]).transpose(1, 2).contiguous()

    def logits(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """Map x [R, in] to fp32 x @ weight.T + bias, [R, out]."""
        x = x.contiguous()
        out = torch.empty(x.shape[0], weight.outputs, dtype=torch.float32)
        matrix, is_bf16 = ctypes.byref(weight.matrix(bias)), int(x.dtype == torch.bfloat16)
        self._logits(x.data_ptr(), matrix, out.data_ptr(), x.shape[0], is_bf16, self.threads)
        return out

    def sample(
        self,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        seeds: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """Compute `plumbline_kernels.sampling.sample`.

        Tokens that are e^-30 times as likely as the most likely one are never drawn with top_k or top_p.
        """
        logits = logits.contiguous()
        out = torch.empty(logits.shape[0], dtype=torch.int64)
        draws = DrawsStruct(
            logits=logits,
            rows=logits.shape[0],
            vocab=logits.shape[1],
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seeds=seeds,
            positions=positions,
            out=out,
            threads=self.threads,
        )
        self._functions.plumbline_draw(ctypes.byref(draws))
        return out


def _places(functions: ctypes.CDLL) -> dict[str, int]:
    """Return the places that a library exports, none if it is not of these kernels; see structs.py."""
    found: dict[str, int] = {}
    place, at = getattr(functions, "plumbline_place", None), ctypes.c_int64()
    if place is None:
        return found
    place.argtypes, place.restype = [ctypes.c_int64, ctypes.c_void_p], ctypes.c_char_p
    while (name := place(len(found), ctypes.byref(at))) is not None:
        found[name.decode()] = at.value
    return found


def _raise_without_memory(status: int) -> None:
    """Raise MemoryError for the status of a kernel that got no memory; ctypes calls it with each result."""
    if status:
        raise MemoryError("a kernel got no memory for what it computes")


def _group_sizes(bits: int, is_free: bool) -> tuple[int, ...]:
    """Return the sizes that groups may have: of few bits small ones, where scales are free to be chosen."""
    return _GROUPS[{8: 0, 6: 1}.get(bits, 2) :] if is_free else _GROUPS


def _stored_bits(bits: int, group: int) -> int:
    """Return the bits that levels are stored in: chunks of 5 bits need groups of 32."""
    return 6 if bits == 5 and group % 32 else bits


def _rounded(weight: Tensor, bits: int, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Round fp32 weights [N, groups, group] to int8 levels, with fp32 scales [N, groups] that bf16 has.

    Weights on a grid with `known` scales, fp32 [N, groups], get the levels of that grid.
    """
    zero = 1 << (bits - 1)
    if known is None:
        scales = (weight.abs().amax(2, keepdim=True) / (zero - 1)).bfloat16().float()
        divisor = scales
    else:
        # Weights in bf16 and scales in bf16 would err by half a level together at 8 bits.
        divisor = scales = known.unsqueeze(2)
    values = torch.where(divisor == 0, 0.0, weight / divisor).round_().clamp_(-zero, zero - 1)
    return values.to(torch.int8), scales.squeeze(2)


@cache
def load(*flags: str) -> Library:
    """Return the kernels of this machine, compiled if need be; `flags` as of `build`.

    Raises:
        CompileError: they could not be compiled, or have another layout.
        OSError: they cannot be written, or cannot be loaded, such as from a disk that is mounted without execution.
    """
    path = build(*flags)
    try:
        return Library(str(path), usable_cores())
    except OSError:
        # A damaged file would keep the kernels away from all later starts.
        path.unlink()
        return Library(str(build(*flags)), usable_cores())


def usable_cores() -> int:
    """Return how many cores this process may compute on: two threads of one core count once, and quotas of CPU time."""
    try:
        processors = os.sched_getaffinity(0)
    except AttributeError:  # Only Linux has it.
        return max((os.cpu_count() or 2) // 2, 1)
    siblings = {
        _read(f"/sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list") or str(n) for n in processors
    }
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    allowed = math.ceil(int(quota) / int(period)) if quota.isdigit() else len(siblings)
    return max(min(len(siblings), allowed), 1)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""

"""Load the compiled kernels, and call the ones that take a tensor alone."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels.cpu.build import CompileError, build
from plumbline_kernels.cpu.layout import CONSTANTS, PLACES, DrawsStruct, MatrixStruct
from plumbline_kernels.cpu.structs import difference

__all__ = ["Library", "PackedWeight", "load"]

_DTYPES = (torch.bfloat16, torch.float32)
_ROUNDED_AT_ONCE = 4096
"""Rows of a weight; a multiple of a panel."""
_GROUPS = {8: (128, 64, 32, 16), 4: (32, 16)}
"""Inputs that share a scale, by the bits of a weight: the first number that divides the inputs."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [out, in] in the layout of product.h, or of quantized.h if it has scales."""

    data: Tensor
    outputs: int
    inputs: int
    bits: int = 0
    """8 or 4; 0 for the type of the model."""
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
        for function in (functions.plumbline_run, functions.plumbline_logits, functions.plumbline_draw):
            function.restype = _raise_without_memory
        self.run = functions.plumbline_run
        self._logits = functions.plumbline_logits
        self._per_word = {
            dtype: int(self._functions.plumbline_per_word(int(dtype == torch.bfloat16))) for dtype in _DTYPES
        }
        self._fast = bool(self._functions.plumbline_is_fast())
        self._panel = int(self._functions.plumbline_panel())

    @property
    def multiplies_pairs(self) -> bool:
        """Whether the processor multiplies pairs of bf16 numbers (AVX512-BF16), and does not widen them first."""
        return self._per_word[torch.bfloat16] == 2

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
        self, weight: Tensor, bits: int = 0, scales: Tensor | None = None, shifts: Tensor | None = None
    ) -> PackedWeight:
        """Pack a weight [out, in] for `Program.linear`; outputs are padded to whole panels with zeros.

        Args:
            weight: bf16 or fp32.
            bits: 8 or 4 to round it to so many; 0 keeps its type.
            scales: fp32 [out, groups] of a weight that is on such a grid already, to be kept; they become bf16. None
                takes scales by the largest numbers.
            shifts: fp32 [out, groups] that such a grid has added to its numbers.

        Raises:
            ValueError: the inputs of a rounded weight, or of its groups, are not a multiple of 16.
        """
        outputs, inputs = weight.shape
        more = (0, 0, 0, -outputs % self._panel)
        padded = F.pad(weight, more)
        if bits == 0:
            return PackedWeight(self._panels(padded, self._per_word[weight.dtype]), outputs, inputs)
        # Groups of a given grid may be cut into smaller ones, which share a scale.
        shared = inputs if scales is None else inputs // scales.shape[1]
        sizes = _GROUPS[bits] if scales is None else _GROUPS[8]
        group = next((size for size in sizes if shared % size == 0), None)
        if group is None:
            raise ValueError(
                f"a weight of {shared} inputs cannot have {bits} bits: they are no multiple of 16"
            )
        rows = torch.split(padded, _ROUNDED_AT_ONCE)
        given: Iterable[Tensor | None] = [None] * len(rows)
        if scales is not None:
            repeated = F.pad(scales, more, value=1.0).repeat_interleave(shared // group, 1)
            given = torch.split(repeated, _ROUNDED_AT_ONCE)
        added = None
        if shifts is not None:
            added = F.pad(shifts, more).repeat_interleave(shared // group, 1)
            padded = padded - added.repeat_interleave(group, 1)
            rows = torch.split(padded, _ROUNDED_AT_ONCE)
        # In parts, because rounding takes several times the memory of what it rounds.
        parts = [self._round(part, bits, group, known) for part, known in zip(rows, given, strict=True)]
        panels, kept = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        laid = None if added is None else self._by_panel(added.bfloat16())
        return PackedWeight(panels, outputs, inputs, bits, group, kept, laid)

    def _round(self, rows: Tensor, bits: int, group: int, known: Tensor | None) -> tuple[Tensor, Tensor]:
        """Round rows [N, in] and lay them out; returns the panels and their scales."""
        inputs = rows.shape[1]
        values, scales = _rounded(rows.float().reshape(-1, inputs // group, group), bits, known)
        panels = self._panels(values.view(-1, inputs), CONSTANTS["WORD"])
        if bits == 4:
            pairs = panels.view(panels.shape[0], -1, 2, self._panel, CONSTANTS["WORD"])
            panels = pairs[:, :, 0] | pairs[:, :, 1] << 4
        return panels, self._by_panel(scales)

    def _by_panel(self, scales: Tensor) -> Tensor:
        """Lay numbers of groups out as [panels, groups, PANEL]."""
        return scales.view(len(scales) // self._panel, self._panel, -1).transpose(1, 2).contiguous()

    def _panels(self, rows: Tensor, word: int) -> Tensor:
        """Lay rows [N, in] out as [panels, words, PANEL, word]."""
        return rows.view(-1, self._panel, rows.shape[1] // word, word).permute(0, 2, 1, 3).contiguous()

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


def _rounded(weight: Tensor, bits: int, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Round fp32 weights [N, groups, group] to unsigned bytes, with bf16 scales [N, groups].

    The value of a byte b is (b - 2**(bits - 1)) * scale. With 4 bits the weight of the largest magnitude becomes the
    lowest value, -8, which has no positive counterpart; its sign is the scale's. Weights on a grid with `known` scales,
    fp32 [N, groups], get the bytes of that grid.
    """
    zero = 1 << (bits - 1)
    if known is None:
        most = weight.gather(2, weight.abs().argmax(2, keepdim=True))
        scales = (most.abs() / (zero - 1) if bits == 8 else most / -zero).bfloat16()
        divisor = scales.float()
    else:
        # Weights in bf16 and scales in bf16 would err by half a level together at 8 bits.
        divisor = known.unsqueeze(2)
        scales = divisor.bfloat16()
    values = torch.where(divisor == 0, 0.0, weight / divisor).round_().clamp_(-zero, zero - 1).add_(zero)
    return values.to(torch.uint8), scales.squeeze(2)


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

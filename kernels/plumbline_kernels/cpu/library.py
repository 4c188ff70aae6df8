"""Load the compiled kernels, and call the ones that take a tensor alone."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels.cpu.build import build

__all__ = ["Library", "PackedWeight", "load"]

_PANEL = 64
"""Columns of a packed panel; `PANEL` in product.h."""
_MAX_DIM = 256
"""The widest head; `MAX_DIM` in attention.h."""
_DTYPES = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [out, in] in the layout of product.h."""

    data: Tensor
    outputs: int
    inputs: int


class Library:
    """The kernels of one compiled file."""

    def __init__(self, path: str, threads: int) -> None:
        """Load the file; `threads` share the work of an operation that is worth it.

        Raises:
            OSError: it is not a library of this machine.
        """
        self.path, self.threads = path, threads
        self._functions = ctypes.CDLL(path)
        self._functions.plumbline_run.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_void_p,
        ]
        self._functions.plumbline_run.restype = None
        self.run = self._functions.plumbline_run
        self._logits = self._functions.plumbline_logits
        self._logits.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3 + [ctypes.c_int32] * 2
        self._logits.restype = None
        self._per_word = {
            dtype: int(self._functions.plumbline_per_word(int(dtype == torch.bfloat16))) for dtype in _DTYPES
        }
        self._wide = {
            dtype: bool(self._functions.plumbline_is_wide(int(dtype == torch.bfloat16))) for dtype in _DTYPES
        }

    def supports(self, dtype: torch.dtype, head_dim: int, widths: tuple[int, ...]) -> bool:
        """Return whether models of this dtype, head size and these widths of rows run, and faster than with torch.

        On processors without AVX-512, and in bf16 without its products of bf16, oneDNN is faster.
        """
        return (
            self._wide.get(dtype, False)
            and head_dim % 32 == 0
            and head_dim <= _MAX_DIM
            and all(width % 16 == 0 for width in widths)
        )

    def pack(self, weight: Tensor) -> PackedWeight:
        """Pack a weight [out, in] for `Program.linear`; outputs are padded to whole panels with zeros."""
        outputs, inputs = weight.shape
        word = self._per_word[weight.dtype]
        padded = F.pad(weight, (0, 0, 0, -outputs % _PANEL))
        panels = padded.view(-1, _PANEL, inputs // word, word).permute(0, 2, 1, 3).contiguous()
        return PackedWeight(panels, outputs, inputs)

    def logits(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """Map x [R, in] to fp32 x @ weight.T + bias, [R, out]."""
        x = x.contiguous()
        out = torch.empty(x.shape[0], weight.outputs, dtype=torch.float32)
        self._logits(
            x.data_ptr(), weight.data.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr(),
            x.shape[0], weight.outputs, weight.inputs, int(x.dtype == torch.bfloat16), self.threads,
        )  # fmt: skip
        return out


@cache
def load(*flags: str) -> Library:
    """Return the kernels of this machine, compiled if need be; `flags` as of `build`.

    Raises:
        CompileError: they could not be compiled.
    """
    return Library(str(build(*flags)), len(os.sched_getaffinity(0)))

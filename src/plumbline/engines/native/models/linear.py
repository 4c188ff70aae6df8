"""Compute linear layers, with prepacked weights on CPU.

On CPU the weights go to oneDNN in its own blocked layout, for two reasons. It is two to three times as fast as
`F.linear` for the few rows of a decode step. And it is batch invariant: packed for several rows, oneDNN sums every
output element in an order that does not depend on how many rows there are, so a row's result has the same bits in
any batch, where BLAS changes its order between one row (a matrix-vector product) and many.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels._backend import use_triton
from plumbline_kernels.cpu.library import Library, PackedWeight
from plumbline_kernels.narrow import NarrowWeight, narrow_linear, pack_narrow
from plumbline_kernels.product import product

__all__ = ["LayerAdapters", "Linear", "can_pack"]

_ROWS = 16
"""The number of rows to pack for. Packing for one row selects a kernel that breaks batch invariance."""


class Linear:
    """y = x @ weight.T + bias."""

    __slots__ = ("_library", "_narrow", "_packed", "_weight", "adapters", "bias", "packed", "shape")

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        library: Library | None = None,
        bits: int = 0,
        scales: Tensor | None = None,
        shifts: Tensor | None = None,
        floats: bool = False,
        shifted: bool = True,
    ) -> None:
        """Take `weight` [out, in] and `bias` [out]; the weight may be kept in another layout.

        With a library of compiled kernels it is packed for them, rounded to `bits` if these are not 0, by
        `scales` and `shifts` or `shifted` (`Library.pack`), and only `logits` can be called. On a GPU it keeps the
        integers that `bits`, `scales` and `shifts` describe, or with `floats` the floats (`pack_narrow`).
        """
        self.shape = tuple(weight.shape)
        self.bias = bias
        self.packed: PackedWeight | None = None
        self.adapters: LayerAdapters | None = None
        """What adapters add to the results; the operations do that, not this class."""
        self._library = library
        self._packed: Any = None
        self._weight: Tensor | None = None
        self._narrow: NarrowWeight | None = None
        if library is not None:
            self.packed = library.pack(weight, bits, scales, shifts, shifted=shifted)
        elif scales is not None and use_triton(weight):
            self._narrow = pack_narrow(weight, bits, scales, shifts, floats)
        elif can_pack(weight.dtype, weight.device):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
        else:
            self._weight = weight.contiguous()

    def __call__(self, x: Tensor, exact: bool = False) -> Tensor:
        """Map [T, in] to [T, out]; on a GPU with `exact`, a row has the same bits in any batch."""
        if self._narrow is not None:
            return narrow_linear(x, self._narrow, self.bias, exact)
        if self._packed is None:
            assert self._weight is not None
            if exact and use_triton(x):
                return product(x, self._weight, self.bias)
            return F.linear(x, self._weight, self.bias)
        y: Tensor = _linear(x, self._packed, self.bias, "none", [], "")
        return y

    def logits(self, x: Tensor, exact: bool = False) -> Tensor:
        """Map [R, in] to fp32 [R, out]; see `__call__`."""
        if self._library is not None and self.packed is not None:
            return self._library.logits(x, self.packed, self.bias)
        return self(x, exact).float()


class LayerAdapters(Protocol):
    """The low-rank projections that adapters have at one linear layer, by their slots."""

    def prepare(self, down: Tensor, up: Tensor) -> Any:
        """Lay projections [rank, in] and [out, rank] out for `put`, on any thread."""

    def put(self, slot: int, prepared: Any) -> None:
        """Give a slot its projections; no step may be running."""

    def clear(self, slot: int) -> None:
        """Take the projections of a slot away, if it has any; no step may be running."""


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether weights of a type are packed on a device: others are several times as slow on a CPU."""
    mkldnn: Any = torch.backends.mkldnn
    if device.type != "cpu" or _linear is None or not mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


# Private to torch, but its own compiler emits it for linear layers on CPU; without it the plain path is used.
_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)

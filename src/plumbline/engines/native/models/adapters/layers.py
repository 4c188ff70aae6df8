"""Keep the projections of adapters at one linear layer, as each backend takes them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from plumbline.engines.native.models.linear import LayerAdapters, Linear
from plumbline_kernels._backend import use_triton
from plumbline_kernels.cpu.library import Library, PackedWeight
from plumbline_kernels.cpu.program import Adapters
from plumbline_kernels.lora import AdapterRows, lora_add, lora_add_torch

__all__ = ["CompiledAdapters", "EagerAdapters", "KernelAdapters", "TorchAdapters", "layer_adapters"]


@runtime_checkable
class EagerAdapters(LayerAdapters, Protocol):
    """Projections that are added in a call of their own."""

    def add(self, x: Tensor, y: Tensor, adapted: AdapterRows, exact: bool) -> None:
        """Add to y [T, out] what the adapters of the rows of x [T, in] add; see `Linear` for `exact`."""


class TorchAdapters:
    """Projections for torch on a CPU, prepacked as all linear layers are."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[Linear, Linear]] = {}

    def prepare(self, down: Tensor, up: Tensor) -> tuple[Linear, Linear]:
        """Pack the projections."""
        return Linear(down), Linear(up)

    def put(self, slot: int, prepared: tuple[Linear, Linear]) -> None:
        """See `LayerAdapters`."""
        self._pairs[slot] = prepared

    def clear(self, slot: int) -> None:
        """See `LayerAdapters`."""
        self._pairs.pop(slot, None)

    def add(self, x: Tensor, y: Tensor, adapted: AdapterRows, exact: bool) -> None:
        """See `EagerAdapters`; packed projections are exact."""
        lora_add_torch(x, y, self._pairs, adapted)


class KernelAdapters:
    """Projections for the Triton kernels: a stack of all slots, as wide as the largest rank so far."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._used: set[int] = set()
        self._down: Tensor | None = None
        self._up: Tensor | None = None

    def prepare(self, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """Take them as they are."""
        return down, up

    def put(self, slot: int, prepared: tuple[Tensor, Tensor]) -> None:
        """See `LayerAdapters`."""
        down, up = prepared
        rank = len(down)
        old_down, old_up = self._down, self._up
        if old_down is None or old_up is None or rank > old_down.shape[1]:
            self._down = down.new_zeros(self._capacity, *down.shape)
            self._up = up.new_zeros(self._capacity, *up.shape)
            if old_down is not None and old_up is not None:
                self._down[:, : old_down.shape[1]] = old_down
                self._up[:, :, : old_down.shape[1]] = old_up
        assert self._down is not None
        assert self._up is not None
        self._down[slot, :rank] = down
        self._up[slot, :, :rank] = up
        self._used.add(slot)

    def clear(self, slot: int) -> None:
        """See `LayerAdapters`; the last one frees the stacks."""
        if slot not in self._used:
            return
        self._used.discard(slot)
        if not self._used:
            self._down = self._up = None
        else:
            assert self._down is not None
            assert self._up is not None
            self._down[slot].zero_()
            self._up[slot].zero_()

    def add(self, x: Tensor, y: Tensor, adapted: AdapterRows, exact: bool) -> None:
        """See `EagerAdapters`."""
        if self._down is not None and self._up is not None:
            lora_add(x, y, self._down, self._up, adapted, exact)


class CompiledAdapters:
    """Projections for the compiled kernels of a CPU, in a table that their programs point to."""

    def __init__(self, library: Library, capacity: int) -> None:
        self._library = library
        self.table = Adapters(capacity)

    def prepare(self, down: Tensor, up: Tensor) -> tuple[PackedWeight, PackedWeight]:
        """Pack the projections, in the type of the model also where its weights are rounded."""
        return self._library.pack(down), self._library.pack(up)

    def put(self, slot: int, prepared: tuple[PackedWeight, PackedWeight]) -> None:
        """See `LayerAdapters`."""
        self.table.put(slot, *prepared)

    def clear(self, slot: int) -> None:
        """See `LayerAdapters`."""
        self.table.clear(slot)


def layer_adapters(library: Library | None, like: Tensor, capacity: int) -> LayerAdapters:
    """Return an empty table for what runs a model.

    Args:
        library: the compiled kernels, if they do.
        like: a weight of the model.
        capacity: slots.
    """
    if library is not None:
        return CompiledAdapters(library, capacity)
    return KernelAdapters(capacity) if use_triton(like) else TorchAdapters()

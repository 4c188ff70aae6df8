"""Keep the adapters of a model in memory, each in a slot that its linear layers know."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from plumbline.engines.native.models.adapters.adapter_tensors import read_adapter
from plumbline.engines.native.models.adapters.layers import layer_adapters
from plumbline.engines.native.models.linear import LayerAdapters
from plumbline.engines.native.models.transformer import Transformer
from plumbline.engines.request import PlacedAdapter

__all__ = ["AdapterTable", "PreparedAdapter"]

_log = logging.getLogger("plumbline.engines")


@dataclass(frozen=True, slots=True)
class PreparedAdapter:
    """An adapter as the layers of a model take it."""

    parts: list[tuple[LayerAdapters, Any]]
    num_bytes: int


class AdapterTable:
    """The adapters of a model.

    Args:
        model: no step of it may have run; with places for adapters its steps look for them.
        capacity: adapters that may be in memory at a time.
        max_rank: the largest rank of a module.
    """

    def __init__(self, model: Transformer, *, capacity: int, max_rank: int) -> None:
        self._model, self.capacity, self.max_rank = model, capacity, max_rank
        self._numbers = count(1)
        self._free = list(range(capacity))[::-1]
        self._placed: dict[PlacedAdapter, PreparedAdapter] = {}
        for place in model.places:
            place.layer.adapters = layer_adapters(
                model.library, torch.empty(0, device=model.device), capacity
            )

    @property
    def num_free(self) -> int:
        """Slots without an adapter."""
        return len(self._free)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights of all adapters."""
        return sum(prepared.num_bytes for prepared in self._placed.values())

    def prepare(self, folder: Path) -> PreparedAdapter:
        """Read an adapter; any thread may do that while steps run.

        Raises:
            AdapterError: it cannot be used, or does not fit the model.
            RefusedRequestError: its configuration cannot be read.
        """
        model = self._model
        found = read_adapter(
            folder,
            model.places,
            model.description.names,
            max_rank=self.max_rank,
            dtype=model.dtype,
            device=model.device,
        )
        parts: list[tuple[LayerAdapters, Any]] = []
        num_bytes = 0
        for part in found:
            layer = part.place.layer.adapters
            assert layer is not None, "set by __init__"
            parts.append((layer, layer.prepare(part.down, part.up)))
            num_bytes += part.down.nbytes + part.up.nbytes
        _log.info("read an adapter of %d layers, %.1f MB: %s", len(parts), num_bytes / 1e6, folder)
        return PreparedAdapter(parts, num_bytes)

    def put(self, prepared: PreparedAdapter) -> PlacedAdapter:
        """Give an adapter a slot, of which one must be free; no step may be running."""
        placed = PlacedAdapter(self._free.pop(), next(self._numbers))
        for layer, projections in prepared.parts:
            layer.put(placed.slot, projections)
        self._placed[placed] = prepared
        return placed

    def remove(self, placed: PlacedAdapter) -> None:
        """Free the slot of an adapter that no request uses any more; no step may be running."""
        for layer, _ in self._placed.pop(placed).parts:
            layer.clear(placed.slot)
        self._free.append(placed.slot)

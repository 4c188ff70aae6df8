"""Keep the sampling numbers of running requests by slot, so that a step gathers them and builds nothing."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plumbline.engines.request import RequestState

__all__ = ["SamplingRows", "upload"]


def upload(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """Return a tensor on the device; to a GPU it is copied behind what that computes, without waiting for it."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


class SamplingRows:
    """The slots of an engine, and the arrays [slots] of what their requests want. Only the engine thread may use it."""

    def __init__(self, num: int) -> None:
        self._free = list(range(num - 1, -1, -1))
        self.temperature = np.zeros(num, dtype=np.float32)
        self.top_k = np.zeros(num, dtype=np.int32)
        self.top_p = np.ones(num, dtype=np.float32)
        self.min_p = np.zeros(num, dtype=np.float32)
        self.seed = np.zeros(num, dtype=np.int64)

    def assign(self, state: RequestState) -> None:
        """Give a request a slot and write the values that do not change while it runs."""
        slot = state.slot = self._free.pop()
        sampling = state.sampling
        # A row with a chain is drawn apart from the others; greedy is the cheapest that this one can be.
        self.temperature[slot] = sampling.temperature if sampling.chain is None else 0.0
        # A top_k above the vocabulary means all tokens; clamp it, because the array is int32.
        self.top_k[slot] = min(sampling.top_k, np.iinfo(np.int32).max)
        self.top_p[slot] = sampling.top_p
        self.min_p[slot] = sampling.min_p
        self.seed[slot] = state.seed

    def release(self, state: RequestState) -> None:
        """Free the slot of a request, if it has one."""
        if state.slot >= 0:
            self._free.append(state.slot)
            state.slot = -1

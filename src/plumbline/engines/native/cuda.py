"""Use CUDA beside kernels: a stream of its own for images, priorities, and whether the device still works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["GRAPH_PRIORITY", "SideStream", "device_works"]

GRAPH_PRIORITY = -1
"""Of the kernels in the graphs of decodes: where a GPU has both, theirs start before those of a side stream."""


class SideStream:
    """A stream beside that of the steps, which is the default one; threads may use it at the same time.

    Args:
        device: a GPU.
        cuda: `torch.cuda`, or what stands for it in tests.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._steps = cuda.default_stream(device)
        self._stream = cuda.Stream(device)
        # The weights were loaded there.
        self._stream.wait_stream(self._steps)

    def run(self, call: Callable[[], Tensor]) -> Tensor:
        """Return the result of a call when the GPU has computed it; the thread waits for that, and no step does.

        Args:
            call: allocates its result, as a step may read a tensor until the GPU has come to it.
        """
        with self._cuda.stream(self._stream):
            result = call()
            # A thread that waits for a blocking event sleeps.
            computed = self._cuda.Event(blocking=True)
            computed.record()
        computed.synchronize()
        # The memory belongs to this stream. When the result is dropped, steps may still be in the queue that read it:
        # the allocator gives the memory to another image after them.
        result.record_stream(self._steps)
        return result


def device_works(device: torch.device) -> bool:
    """Return whether a device still computes for this process, after a step that raised.

    After an illegal access or a failed assertion of a kernel, every call of CUDA fails until the process ends.
    """
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True

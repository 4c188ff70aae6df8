"""State the facts of the GPUs, with their sources, and what is assumed of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

__all__ = ["DEVICES", "Device"]


@dataclass(frozen=True)
class Device:
    """A GPU.

    Sources: multiprocessors, clock, bandwidth and products from NVIDIA's data sheets (A100 80 GB SXM; H100 and H200
    SXM; HGX B200, an eighth of it) and architecture papers; registers, shared memory, warps and programs of a
    multiprocessor, and 16 results of special functions in a clock, from the CUDA C++ Programming Guide (technical
    specifications and arithmetic throughput by compute capability).
    """

    name: str
    capability: int
    multiprocessors: int
    shared_kb: int
    """Of a multiprocessor; a program may have 1 KB less, and each takes 1 KB more than it asks for."""
    bandwidth: float
    """Bytes a second."""
    clock: float
    """Of the multiprocessors, boosted, in Hz."""
    products: float
    """Dense bf16 operations of matrix instructions a second."""
    instructions: Mapping[str, float]
    """Assumed: the share of `products` that each matrix instruction reaches at best. The older one, `mma.sync`, cannot
    feed the units of later GPUs; 0.62 of H100's is what published microbenchmarks of it measured, B200's is a guess."""
    lanes: int
    """Operations of the ordinary units of a multiprocessor in a clock."""
    registers: int = 65536
    warps: int = 64
    programs: int = 32
    """That fit a multiprocessor."""
    exponentials: int = 16
    """Of a multiprocessor in a clock."""
    attainable: float = 0.9
    """Assumed: the share of the bandwidth that a copy of large tensors reaches."""
    memory_latency: float = 700e-9
    """Assumed, in seconds; published microbenchmarks of these three lie between 500 and 900 ns under load."""
    cache_latency: float = 250e-9
    """Assumed, of the L2 cache."""


_HOPPER = Device(
    name="H100",
    capability=90,
    multiprocessors=132,
    shared_kb=228,
    bandwidth=3.35e12,
    clock=1.755e9,
    products=989e12,
    instructions=MappingProxyType({"mma.sync": 0.62, "wgmma": 1.0}),
    lanes=128,
)
DEVICES = (
    Device(
        name="A100",
        capability=80,
        multiprocessors=108,
        shared_kb=164,
        bandwidth=2.039e12,
        clock=1.41e9,
        products=312e12,
        instructions=MappingProxyType({"mma.sync": 1.0}),
        lanes=64,
    ),
    _HOPPER,
    replace(_HOPPER, name="H200", bandwidth=4.8e12),
    Device(
        name="B200",
        capability=100,
        multiprocessors=148,
        shared_kb=228,
        bandwidth=8.0e12,
        clock=1.85e9,
        products=2250e12,
        instructions=MappingProxyType({"mma.sync": 0.3, "tcgen05.mma": 1.0}),
        lanes=128,
    ),
)

"""Predict the time of a launch; the package's docstring has the model."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.roofline.compiled import Resources
from benchmarks.roofline.devices import Device
from benchmarks.roofline.launches import Launch

__all__ = ["Prediction", "predict", "resident"]

_REGISTER_STEP, _SHARED_OVERHEAD = 256, 1024
"""Registers are given to warps in steps of 256; a program takes 1 KB more of shared memory than it asks for."""


@dataclass(frozen=True)
class Prediction:
    """What is predicted of one launch."""

    resident: int
    """Programs on a multiprocessor at a time."""
    waves: float
    seconds: float
    roofline: float
    """The least seconds that bytes and products allow."""
    attainable: float
    """The same with the attainable bandwidth."""
    bound: str
    """What most of the time goes to: `latency` of the first load, `chain`, `memory` or `compute`."""

    @property
    def share(self) -> float:
        """The share of the roofline, 0 to 1."""
        return self.roofline / self.seconds


def resident(device: Device, found: Resources, num_warps: int) -> int:
    """Return how many programs a multiprocessor holds; at least one, which the compiler makes sure of."""
    registers = -(-found.registers * 32 // _REGISTER_STEP) * _REGISTER_STEP * num_warps
    shared = found.shared + _SHARED_OVERHEAD
    fits = (device.registers // registers, device.shared_kb * 1024 // shared, device.warps // num_warps)
    return max(min(*fits, device.programs), 1)


def predict(device: Device, launch: Launch, found: Resources) -> Prediction:
    """Predict a launch from what its kernel takes."""
    options = launch.case.options
    held = resident(device, found, options.get("num_warps", 4))
    room = device.multiprocessors * held
    ahead = max(options.get("num_stages", 3) - 1, 1) if found.is_pipelined else 1
    latency = device.cache_latency if launch.cached else device.memory_latency
    chain = latency * launch.iterations / ahead
    peak = device.products / device.multiprocessors * device.instructions.get(found.instruction, 1.0)
    tile = launch.tile_flops / peak
    tile += launch.tile_exponentials / (device.exponentials * device.clock)
    tile += launch.tile_operations / (device.lanes * device.clock)
    times = {"latency": device.memory_latency, "chain": 0.0, "memory": 0.0, "compute": 0.0}
    left = launch.programs
    while left > 0:
        # All full waves take the same time.
        full = left // room
        programs, count = (room, full) if full else (left, 1)
        parts = {
            "chain": chain,
            "memory": launch.least_bytes
            * programs
            / launch.programs
            / (device.bandwidth * device.attainable),
            "compute": -(-programs // device.multiprocessors) * tile * launch.iterations,
        }
        bound = max(parts, key=lambda name: parts[name])
        times[bound] += count * parts[bound]
        left -= count * programs
    products = launch.flops / device.products
    least = launch.least_bytes / device.bandwidth
    return Prediction(
        resident=held,
        waves=launch.programs / room,
        seconds=sum(times.values()),
        roofline=max(least, products),
        attainable=max(least / device.attainable, products),
        bound=max(times, key=lambda name: times[name]),
    )

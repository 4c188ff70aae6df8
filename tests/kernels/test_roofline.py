"""Laws of the predictions: what fits a multiprocessor, and that no launch is better than the roofline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.roofline.compiled import Resources
from benchmarks.roofline.devices import DEVICES, Device
from benchmarks.roofline.launches import Launch, launches, narrow_launches
from benchmarks.roofline.prediction import predict, resident
from benchmarks.roofline.shapes import LOADS, SHAPES, ModelShape, StepLoad
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

pytest.importorskip("triton")
A100, H100, *_ = DEVICES
PLAIN = Resources(registers=64, stack=0, shared=0, instruction="mma.sync", is_pipelined=True)
RESOURCES = st.builds(
    Resources,
    registers=st.integers(16, 255),
    stack=st.just(0),
    shared=st.integers(0, 160 * 1024),
    instruction=st.sampled_from(["", "mma.sync"]),
    is_pipelined=st.booleans(),
)
STEPS = [(shape, load) for shape in SHAPES for load in LOADS]


@pytest.mark.parametrize(
    ("device", "registers", "shared", "warps", "expected"),
    [
        (H100, 32, 0, 4, 16),  # 64 warps
        (H100, 128, 0, 4, 4),  # 65,536 registers
        (H100, 129, 0, 4, 3),  # given in steps of 256 for a warp
        (H100, 32, 100 * 1024, 4, 2),  # 228 KB
        (A100, 32, 100 * 1024, 4, 1),  # 164 KB
        (H100, 16, 0, 1, 32),  # 32 programs
    ],
)
def test_what_a_multiprocessor_holds(
    device: Device, registers: int, shared: int, warps: int, expected: int
) -> None:
    assert resident(device, replace(PLAIN, registers=registers, shared=shared), warps) == expected


@settings(max_examples=EXPLORED or 25, deadline=None)
@given(device=st.sampled_from(DEVICES), step=st.sampled_from(STEPS), found=RESOURCES)
def test_no_launch_is_better_than_the_roofline(
    device: Device, step: tuple[ModelShape, StepLoad], found: Resources
) -> None:
    for launch in (*launches(*step), *narrow_launches(*step)):
        # Products of tiles are at least the useful ones, so the grid covers the work.
        assert launch.programs >= 1
        if launch.flops:
            computed = launch.programs * launch.iterations * launch.tile_flops
            assert computed >= 0.97 * launch.flops, launch.kernel
        assert 0 < predict(device, launch, found).share <= 1, launch.kernel


@settings(max_examples=EXPLORED or 25, deadline=None)
@given(step=st.sampled_from(STEPS), found=RESOURCES)
def test_a_faster_memory_never_slows_a_launch_down(
    step: tuple[ModelShape, StepLoad], found: Resources
) -> None:
    faster = replace(H100, bandwidth=2 * H100.bandwidth, memory_latency=H100.memory_latency / 2)
    for launch in (*launches(*step), *narrow_launches(*step)):
        assert predict(faster, launch, found).seconds <= predict(H100, launch, found).seconds


def test_a_wave_that_is_partly_filled_counts_as_one() -> None:
    (launch,) = (found for found in launches(SHAPES[0], LOADS[0]) if found.kernel == "sample threshold")
    one = replace(launch, programs=1, least_bytes=0.0)
    room = H100.multiprocessors * resident(H100, PLAIN, launch.case.options["num_warps"])

    def waves(launch: Launch) -> float:
        return predict(H100, launch, PLAIN).seconds - H100.memory_latency

    single = waves(replace(one, tile_exponentials=0.0, tile_operations=0.0))
    for programs, expected in ((room, 1), (room + 1, 2), (3 * room, 3)):
        many = replace(one, programs=programs, tile_exponentials=0.0, tile_operations=0.0)
        assert waves(many) == pytest.approx(expected * single)

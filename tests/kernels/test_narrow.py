"""Laws of weights of 8 or 4 bits: what comes from integers gives them back, and rounding errs by half a step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline_kernels.narrow import narrow_linear, pack_narrow, stack_narrow
from plumbline_kernels.narrow import weight as narrow_weight

SETTINGS = settings(max_examples=EXPLORED or 20, deadline=None)
cases = {
    "bits": st.sampled_from([4, 8]),
    "groups": st.integers(1, 3),
    "shifted": st.booleans(),
    "seed": st.integers(0, 999),
}


def grid(
    bits: int, groups: int, shifted: bool, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Levels [5, 16 groups], with scales and shifts of groups."""
    generator = torch.Generator().manual_seed(seed)
    half = 1 << bits - 1
    levels = torch.randint(-half, half, (5, 16 * groups), generator=generator).float()
    scales = torch.rand(5, groups, generator=generator) + 0.01
    return levels, scales, torch.randn(5, groups, generator=generator) if shifted else None


@SETTINGS
@given(**cases)
def test_integers_come_back(bits: int, groups: int, shifted: bool, seed: int) -> None:
    levels, scales, shifts = grid(bits, groups, shifted, seed)
    weight = levels * scales.repeat_interleave(16, 1)
    if shifts is not None:
        weight += shifts.repeat_interleave(16, 1)
    packed = pack_narrow(weight, bits, scales, shifts)
    torch.testing.assert_close(packed.dequantised(torch.float32), weight)
    assert packed.levels.numel() * packed.levels.itemsize == weight.numel() * bits // 8
    x = torch.randn(3, weight.shape[1], generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(narrow_linear(x, packed), x @ weight.t(), atol=1e-4, rtol=1e-4)


@SETTINGS
@given(**cases)
def test_any_weight_errs_by_half_a_step_within_the_range(
    bits: int, groups: int, shifted: bool, seed: int
) -> None:
    _, scales, shifts = grid(bits, groups, shifted, seed)
    steps = scales.repeat_interleave(16, 1)
    weight = (
        (torch.rand(5, 16 * groups, generator=torch.Generator().manual_seed(seed)) - 0.5)
        * (1 << bits - 1)
        * steps
    )
    if shifts is not None:
        weight += shifts.repeat_interleave(16, 1)
    error = (pack_narrow(weight, bits, scales, shifts).dequantised(torch.float32) - weight).abs()
    assert (error <= 0.5001 * steps + 1e-5).all()


def test_a_group_without_a_scale_is_zero() -> None:
    packed = pack_narrow(torch.ones(2, 32), 8, torch.zeros(2, 2))
    assert (packed.dequantised(torch.float32) == 0).all()


def test_scales_follow_the_weight_to_its_device() -> None:
    """A checkpoint gives the weight on the GPU and its scales on the CPU; `meta` stands for the GPU."""
    packed = pack_narrow(torch.ones(2, 32, device="meta"), 4, torch.ones(2, 2), torch.ones(2, 2))
    assert packed.shifts is not None
    assert {part.device.type for part in (packed.levels, packed.scales, packed.shifts)} == {"meta"}


def test_a_stack_has_the_matrices_that_it_was_made_of() -> None:
    """One has no shifts, and one has scales that 16 bits cannot hold."""
    weights = [torch.randn(4, 32), torch.randn(4, 32)]
    matrices = [
        pack_narrow(weights[0], 4, torch.ones(4, 2), torch.ones(4, 2)),
        pack_narrow(weights[1], 4, torch.full((4, 2), 1 / 3)),
    ]
    assert [each.scales.dtype for each in matrices] == [torch.bfloat16, torch.float32]
    stack = stack_narrow(matrices)
    for index, each in enumerate(matrices):
        assert torch.equal(stack.matrix(index).dequantised(torch.float32), each.dequantised(torch.float32))


@pytest.mark.parametrize(("bits", "levels"), [(8, 254), (4, 16)])
def test_floats_come_back(bits: int, levels: int) -> None:
    """Every number of e4m3 and e2m1, in bf16 and fp16, with scales that are no powers of two."""
    codes = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = codes[~codes.isnan()] if bits == 8 else torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = numbers if bits == 8 else torch.cat((numbers, -numbers))
    assert len(numbers) == levels
    scales = torch.tensor([[0.75], [1.25]])
    for dtype in (torch.bfloat16, torch.float16):
        weight = (numbers * scales).to(dtype)
        packed = pack_narrow(weight, bits, scales, None, True)
        assert torch.equal(packed.dequantised(torch.float32), numbers * scales)
        assert packed.levels.numel() * packed.levels.itemsize == weight.numel() * bits // 8


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shifted", [False, True])
def test_rows_are_packed_alike_in_any_blocks(
    bits: int, shifted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels, scales, shifts = grid(bits, 2, shifted, seed=1)
    whole = pack_narrow(levels, bits, scales, shifts)
    monkeypatch.setattr(narrow_weight, "_PACKED", 64)
    assert torch.equal(pack_narrow(levels, bits, scales, shifts).levels, whole.levels)
    floats = [pack_narrow(levels, bits, scales, None, True) for _ in range(2)]
    stack = stack_narrow(floats)
    assert torch.equal(stack.dequantised(torch.float32)[1], floats[0].dequantised(torch.float32))

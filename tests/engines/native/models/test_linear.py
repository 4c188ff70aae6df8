"""Laws of the linear layer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from plumbline.engines.native.models.linear import Linear

torch.set_num_threads(1)
SHAPES = [(96, 48), (300, 260), (512, 256), (7, 33)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("out", "width"), SHAPES)
def test_it_multiplies_and_adds(out: int, width: int, bias: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(out)
    weight = torch.randn(out, width, generator=generator).to(dtype)
    shift = torch.randn(out, generator=generator).to(dtype) if bias else None
    x = torch.randn(5, width, generator=generator).to(dtype)
    expected = F.linear(x.double(), weight.double(), None if shift is None else shift.double())
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.03}[dtype]
    torch.testing.assert_close(Linear(weight, shift)(x).double(), expected, atol=tolerance, rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("out", "width"), SHAPES)
def test_a_row_has_the_same_bits_in_any_batch(out: int, width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    linear = Linear(torch.randn(out, width, generator=generator).to(dtype))
    x = torch.randn(130, width, generator=generator).to(dtype)
    alone = torch.cat([linear(row.unsqueeze(0)) for row in x])
    for rows in (2, 3, 8, 31, 64, 130):
        assert torch.equal(linear(x[:rows]), alone[:rows])


def test_without_rows_there_is_no_output() -> None:
    assert Linear(torch.ones(4, 3))(torch.ones(0, 3)).shape == (0, 4)

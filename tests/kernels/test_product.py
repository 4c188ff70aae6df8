"""Laws of products that have the same bits in any batch; tests/kernels/interpreted_exact.py has those of the bits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.native.warm import _powers
from plumbline_kernels import product
from plumbline_kernels.attention import _exact
from plumbline_kernels.devices import CAPABILITIES


@given(st.integers(1, 1024), st.integers(1, 300_000), st.sampled_from(CAPABILITIES))
def test_steps_before_the_start_meet_all_tiles(tokens: int, outputs: int, capability: int) -> None:
    """Else a step would compile a kernel."""
    kind = torch.bfloat16
    met = [product.tiles_for(count, outputs, kind, capability) for count in _powers(1024)]
    assert product.tiles_for(tokens, outputs, kind, capability) in met


@given(st.integers(1, 16), st.integers(16, 512), st.sampled_from(CAPABILITIES))
def test_decodes_and_prompts_take_the_same_keys_at_a_time(group: int, head_dim: int, capability: int) -> None:
    decode, prompt = (_exact.config_of(kind, group, head_dim, capability) for kind in (True, False))
    assert decode["tile"] == prompt["tile"]
    assert _exact._LENGTH % decode["tile"] == 0
    assert prompt["block_m"] >= group


@pytest.mark.parametrize("biased", [False, True])
def test_cublas_computes_where_it_gives_the_same_bits(biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it cuts the inputs in two for up to 99 rows and for 130."""
    weight, bias = torch.randn(8, 512), torch.randn(8) if biased else None

    def chain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        cut = len(x) < 100 or len(x) == 130
        parts = x.split(256, 1), weight.split(256, 1)
        if not cut:
            return row_by_row(x, weight, bias)
        total = sum(row_by_row(a, b, None) for a, b in zip(*parts, strict=True))
        assert isinstance(total, torch.Tensor)
        return total if bias is None else total + bias

    def row_by_row(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        total = (x.unsqueeze(1) * weight).cumsum(2)[:, :, -1]
        return total if bias is None else total + bias

    monkeypatch.setattr(product, "_launch", lambda x, weight, bias, out: row_by_row(x, weight, bias))
    monkeypatch.setattr(F, "linear", chain)
    found = product.agreeing_rows(weight, bias, 140)
    assert [tokens for tokens, agrees in enumerate(found) if agrees] == [*range(100, 130), *range(131, 141)]
    assert product.agreeing_rows(torch.zeros(8, 512), bias, 140) == [], "zeros agree in any order"

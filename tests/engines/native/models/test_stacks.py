"""Experts for the kernels of a GPU are one stack, which keeps the integers of quantised weights.

The laws:

* A stack of a GGUF file computes what its experts compute one by one, and has the bits of its type.
* Experts of several bits, or of which one is whole, are a stack of whole weights with the same values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from support.weights.gguf_files import random_reference, write_gguf
from support.weights.model_families import SMALL, SPARSE
from torch import Tensor

from plumbline.engines.native.models import describe
from plumbline.engines.native.models.description import Experts
from plumbline.engines.native.models.gguf import load_gguf, read_model
from plumbline.engines.native.models.loading.feed_forward import fetch_feed_forward
from plumbline.engines.native.models.loading.rounding import Rounding
from plumbline.engines.native.models.loading.source import WeightSource
from plumbline.engines.native.models.stored import StoredWeight
from plumbline.engines.native.models.weights import ExpertsWeights, Stack
from plumbline_kernels.experts import mix, mix_torch
from plumbline_kernels.narrow import NarrowWeight
from plumbline_kernels.swiglu import silu_mul_torch

BITS = {Kind.Q4_0: 4, Kind.Q5_1: 8, Kind.BF16: 0}


@pytest.mark.parametrize("kind", BITS, ids=lambda kind: kind.name)
def test_a_stack_computes_what_its_experts_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    write_gguf(tmp_path / "a.gguf", random_reference("qwen3moe", num_hidden_layers=1), "qwen3moe", kind)
    apart = feed_forward(tmp_path / "a.gguf")
    monkeypatch.setattr("plumbline.engines.native.models.loading.model_folder.use_triton", lambda _: True)
    stacked = feed_forward(tmp_path / "a.gguf")
    assert isinstance(stacked.gate_up, Stack)
    assert isinstance(stacked.down, Stack)
    assert isinstance(apart.gate_up, list)
    assert isinstance(apart.down, list)
    generator = torch.Generator().manual_seed(1)
    given = (
        torch.randn(7, 256, generator=generator),
        torch.rand(7, 2, generator=generator),
        torch.stack([torch.randperm(3, generator=generator)[:2] for _ in range(7)]),
    )
    found = mix(*given, stacked.gate_up.weight, None, stacked.down.weight, None, silu_mul_torch)
    expected = mix_torch(*given, apart.gate_up, apart.down, silu_mul_torch)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    for stack in (stacked.gate_up, stacked.down):
        assert (stack.weight.bits if isinstance(stack.weight, NarrowWeight) else 0) == BITS[kind]


def feed_forward(path: Path) -> ExpertsWeights:
    found: Any = load_gguf(read_model(path), torch.float32)._layers[0].feed_forward
    assert isinstance(found, ExpertsWeights)
    return found


@pytest.mark.parametrize(
    ("bits", "is_narrow"), [([4, 4, 4], True), ([8, 8, 8], True), ([4, 4, 8], False), ([4, 0, 4], False)]
)
def test_experts_that_are_not_alike_are_whole(bits: list[int], is_narrow: bool) -> None:
    description = describe(SMALL | SPARSE | {"model_type": "qwen3_moe", "num_experts": 3, "head_dim": 16})
    block = description.layers[0].feed_forward
    assert isinstance(block, Experts)
    weights: list[Tensor] = []

    def fetch(name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor | StoredWeight:
        width = bits[int(name.split(".")[2])] if ".experts." in name else 0
        levels = torch.randint(-7, 8, shape, generator=torch.Generator().manual_seed(len(weights)))
        if "down_proj" in name:
            weights.append(levels / 4)
        if not width:
            return levels / 4
        return StoredWeight(levels, torch.full((shape[0], 2), 0.25), shape[1] // 2, width)

    source = WeightSource(
        description, fetch, None, None, stacked=True, device=torch.device("cpu"), dtype=torch.float32
    )
    found = fetch_feed_forward(source, "", block, Rounding(None))
    assert isinstance(found, ExpertsWeights)
    assert isinstance(found.down, Stack)
    stack = found.down.weight
    assert isinstance(stack, NarrowWeight) == is_narrow
    whole = stack.dequantised(torch.float32) if isinstance(stack, NarrowWeight) else stack
    assert torch.equal(whole, torch.stack(weights))

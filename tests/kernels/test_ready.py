"""Laws of a start on a GPU: ready means ready.

* After the start no step compiles a kernel, whatever requests ask for.
* So the first token comes soon.
* A variant that a step does compile is counted, and teaches the pace of prompts nothing.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from plumbline.engines.native.models import Transformer, describe, random_model
from plumbline.engines.native.models.loading.model_folder import build
from plumbline.engines.native.models.stored import StoredWeight

pytest.importorskip("triton")
from support.simulated_day import simulate

SHAPE = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
NARROW = "weights of 4 bits"
STATES = "qwen3_next"
"""Without proposals: a state cannot go back to where one was wrong."""
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3_text": {"sliding_window": 1024, "layer_types": ["sliding_attention", "full_attention"]},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "gpt_oss": {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    STATES: {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "deepseek_v3": {
        "head_dim": None,
        "num_key_value_heads": 8,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
}


def model_of(family: str) -> Transformer:
    given = SHAPE | FAMILIES.get(family, {})
    if given["head_dim"] is None:
        del given["head_dim"]
    kind = "qwen3" if family == NARROW else family
    description = describe(json.loads(AutoConfig.for_model(kind, **given).to_json_string()))
    if family != NARROW:
        return random_model(description, seed=1, dtype=torch.bfloat16)

    def fetch(name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor | StoredWeight:
        if name.endswith("_proj.weight"):
            levels = torch.ones(shape, dtype=torch.int8)
            return StoredWeight(levels, torch.ones(shape[0], shape[1] // 32), 32, 4)
        return torch.ones(shape, dtype=dtype or torch.bfloat16)

    return build(description, fetch, torch.bfloat16, torch.device("cpu"), bits=None)


@pytest.mark.parametrize(
    "family", ["qwen3", *(pytest.param(name, marks=pytest.mark.long) for name in (*FAMILIES, NARROW))]
)
def test_no_kernel_is_compiled_after_the_start(family: str) -> None:
    day = simulate(partial(model_of, family), seconds=3 if family == "qwen3" else 12)

    assert family != NARROW or "_linear_kernel" in day.before
    assert day.late == {}
    assert day.late_variants == 0
    assert day.before.total() >= 15
    assert family == STATES or day.proposed > 50
    assert day.first_token(0.95) < 0.2


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", NARROW])
def test_exact_kernels_are_compiled_before_the_start(family: str) -> None:
    day = simulate(partial(model_of, family), seconds=8, exact=True)

    assert day.late == {}
    assert {"exact_kernel", "join_kernel"} <= set(day.before)


def test_variants_that_steps_compile_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    day = simulate(partial(model_of, "qwen3"), seconds=1, warms=False)

    assert day.late_variants == day.late.total() > 5
    assert "a step compiled kernels, and its requests waited" in caplog.text
    assert day.first_token(0.95) > 1
    # Else the steps after such a one would have a few tokens each.
    assert day.prompt_seconds < 1e-3

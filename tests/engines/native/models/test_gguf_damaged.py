"""Wrong metadata of any architecture of GGUF files are refused by name, without much time or memory.

The laws:

* Any key of an architecture may be missing or have any value of any type: a model is described, or refused in one line.
* A file with no tensors is never loaded, and what its metadata promise is not allocated.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGUFValueType as Type
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline.engines.native.models import UnsupportedModelError, WeightsError
from plumbline.engines.native.models.gguf import ARCHITECTURES, load_gguf, read_model

LAYERS = 4
FITTING: dict[str, Any] = {
    "block_count": LAYERS,
    "context_length": 128,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "vocab_size": 32,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.key_length_swa": 16,
    "attention.kv_lora_rank": 32,
    "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 16,
    "attention.sliding_window_pattern": 2,
    "attention.value_length": 16,
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 32,
    "leading_dense_block_count": 1,
    "logit_scale": 0.5,
    "rope.dimension_count": 16,
    "rope.freq_base": 10000.0,
    "shortconv.l_cache": 3,
    "ssm.conv_kernel": 4,
    "ssm.group_count": 2,
    "ssm.inner_size": 128,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
}
OTHERS: dict[str, dict[str, Any]] = {
    "apertus": {f"xielu.{name}": [0.8] * LAYERS for name in ("alpha_p", "alpha_n", "beta", "eps")},
    "deepseek2": {"attention.key_length": 48, "attention.value_length": 32},
    "gemma4": {
        "attention.head_count_kv": [2] * LAYERS,
        "attention.sliding_window_pattern": [True, True, True, False],
    },
    "hunyuan-dense": {"expert_count": 1},
    "hunyuan-moe": {"expert_feed_forward_length": 96, "expert_shared_feed_forward_length": 96},
    "jamba": {"attention.head_count_kv": [0, 2, 0, 2]},
    "minicpm3": {"attention.q_lora_rank": 32, "attention.key_length": 24, "rope.dimension_count": 8},
    "llama4": {"interleave_moe_layer_step": 1},
    "starcoder": {"attention.head_count_kv": 1},
}
BY_LAYER = {"attention.head_count_kv": [0, 0, 2, 2], "feed_forward_length": [0, 96, 0, 0]}
"""Values of architectures whose layers differ."""
FURTHER = [
    *("attention.q_lora_rank", "expert_gating_func", "nextn_predict_layers", "rope.scaling.type"),
    *("rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor"),
    "rope.scaling.yarn_beta_fast",
]
ODD = st.one_of(
    st.sampled_from([0, -1, 1, 3, 1000, 2**20, 2**31 - 1, 2**31, 2**40, 2**63 - 1]),
    st.sampled_from([0.0, -0.5, 1e-30, 1e38, float("inf"), float("nan"), True, False, "", "a\nb", "yarn"]),
    st.lists(st.sampled_from([0, -1, 1, 2, 96, 2**31 - 1]), min_size=1, max_size=6),
    st.sampled_from([["a"] * LAYERS, [0.5] * LAYERS, [True] * LAYERS, [1] * 500]),
)
MOST_BYTES = 64 << 20


def write(path: Path, architecture: str, values: dict[str, Any]) -> None:
    """Write a file without tensors."""
    out = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        name = key if key.startswith("xielu.") else f"{architecture}.{key}"
        if isinstance(value, list):
            out.add_array(name, value)
        elif isinstance(value, bool | str | float):
            out.add_key_value(name, value, Type.get_type(value))
        else:
            out.add_key_value(name, value, Type.INT64)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def fitting(architecture: str) -> dict[str, Any]:
    """Return metadata that most readers of an architecture take."""
    found = ARCHITECTURES[architecture]
    shared = ("block_count", "context_length", "feed_forward_length", "vocab_size", "attention.head_count")
    named = {*found.keys, *found.needed.split(), *shared, "embedding_length", "attention.head_count_kv"}
    values = {key: value for key, value in FITTING.items() if key in named}
    by_layer = architecture in ("lfm2", "lfm2moe", "granitehybrid", "nemotron_h", "nemotron_h_moe")
    if by_layer:
        values |= (
            BY_LAYER if architecture.startswith("nemotron") else {"attention.head_count_kv": [0, 0, 2, 2]}
        )
    if architecture.startswith("nemotron"):
        values.pop("leading_dense_block_count", None)
    return values | OTHERS.get(architecture, {})


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    architecture = draw(st.sampled_from(sorted(ARCHITECTURES)))
    values = fitting(architecture)
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from([*sorted({*values, *ARCHITECTURES[architecture].keys}), *FURTHER]))
        if draw(st.integers(0, 5)):
            values[key] = draw(ODD)
        else:
            values.pop(key, None)
    return architecture, values


@settings(max_examples=150, deadline=None)
@given(damaged())
def test_wrong_metadata_are_refused_by_name(tmp_path_factory: pytest.TempPathFactory, file: Any) -> None:
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    write(path, *file)
    tracemalloc.start()
    try:
        with pytest.raises((UnsupportedModelError, WeightsError)) as caught:
            load_gguf(read_model(path), dtype=torch.float32)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_the_undamaged_metadata_describe_a_model(tmp_path: Path, architecture: str) -> None:
    write(tmp_path / "a.gguf", architecture, fitting(architecture))
    with pytest.raises(WeightsError, match="missing: "):
        load_gguf(read_model(tmp_path / "a.gguf"), dtype=torch.float32)

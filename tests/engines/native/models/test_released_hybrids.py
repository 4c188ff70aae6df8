"""Configs of releases with delta nets or state spaces are read."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.weights.released import SHARED, shape

from plumbline.engines.native.models import UnsupportedModelError, describe
from plumbline.engines.native.models.description import Attention, Experts

HYBRIDS: dict[str, dict[str, Any]] = {
    "Qwen3-Next 80B-A3B": shape(48, 16, 2, 2048, 5120, 151936, 262144)
    | {
        "model_type": "qwen3_next",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "full_attention_interval": 4,
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "mlp_only_layers": [],
        "moe_intermediate_size": 512,
        "norm_topk_prob": True,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "output_router_logits": False,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000000,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 512,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    },
    "Qwen 3.5 27B (text)": shape(64, 24, 4, 5120, 17408, 248320, 262144)
    | {
        "model_type": "qwen3_5_text",
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
    },
}


@pytest.mark.parametrize("release", HYBRIDS)
def test_the_config_of_a_hybrid_release_is_read(release: str) -> None:
    """Every fourth layer has gated attention that rotates 64 of 256; a sequence keeps 2 to 3 MB in each other one."""
    fields = SHARED | HYBRIDS[release]
    model = describe(fields)
    mixers = [layer.mixer for layer in model.layers]
    full = [mixer for mixer in mixers if isinstance(mixer, Attention)]
    assert mixers[3::4] == full
    assert all(mixer.gated and mixer.rope is not None and mixer.rope.part == 0.25 for mixer in full)
    nets = len(mixers) - len(full)
    assert 2e6 * nets < model.state_bytes(2) < 4e6 * nets
    assert model.cache_width == len(full) * 2 * fields["num_key_value_heads"] * 256


STATE_SPACES: dict[str, dict[str, Any]] = {
    "Nemotron 3 Nano 30B-A3B": shape(52, 32, 2, 2688, 1856, 131072, 262144)
    | {
        "model_type": "nemotron_h",
        "attention_bias": False,
        "chunk_size": 128,
        "conv_kernel": 4,
        "expand": 2,
        "head_dim": 128,
        "hidden_act": None,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "layer_norm_epsilon": 1e-05,
        "mamba_head_dim": 64,
        "mamba_hidden_act": "silu",
        "mamba_num_heads": 64,
        "mamba_proj_bias": False,
        "mlp_bias": False,
        "mlp_hidden_act": "relu2",
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
        "n_group": 1,
        "n_groups": 8,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_eps": 1e-05,
        "norm_topk_prob": True,
        "num_experts_per_tok": 6,
        "num_logits_to_keep": 1,
        "partial_rotary_factor": 1.0,
        "rescale_prenorm_residual": True,
        "residual_in_fp32": False,
        "rope_theta": 10000,
        "routed_scaling_factor": 2.5,
        "ssm_state_size": 128,
        "tie_word_embeddings": False,
        "time_step_floor": 0.0001,
        "time_step_limit": [0.0, math.inf],
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "topk_group": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "use_mamba_kernels": True,
    },
    "Bamba 9B": shape(32, 32, 8, 4096, 14336, 128256, 4096)
    | {
        "model_type": "bamba",
        "attention_bias": False,
        "attn_layer_indices": [9, 18, 27],
        "attn_rotary_emb": 64,
        "mamba_chunk_size": 256,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 128,
        "mamba_proj_bias": False,
        "mlp_bias": False,
        "num_logits_to_keep": 1,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize(
    ("release", "nets", "full", "part"), [("Nemotron 3 Nano 30B-A3B", 23, 6, None), ("Bamba 9B", 29, 3, 0.5)]
)
def test_the_config_of_a_release_with_state_spaces_is_read(
    release: str, nets: int, full: int, part: float | None
) -> None:
    """Attention of Nemotron does not rotate, and that of Bamba rotates half of a head."""
    mixers = [layer.mixer for layer in describe(SHARED | STATE_SPACES[release]).layers]
    attention = [mixer for mixer in mixers if isinstance(mixer, Attention)]
    assert (len(mixers) - len(attention), len(attention)) == (nets, full)
    assert {mixer.rope and mixer.rope.part for mixer in attention} == {part}


def test_another_part_of_a_head_that_rotates_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="attn_rotary_emb"):
        describe(SHARED | STATE_SPACES["Bamba 9B"] | {"attn_rotary_emb": 128})


@pytest.mark.parametrize("given", [None, True, False])
def test_weights_of_experts_are_normalised_unless_the_config_says_otherwise(given: bool | None) -> None:
    model = describe(SHARED | STATE_SPACES["Nemotron 3 Nano 30B-A3B"] | {"norm_topk_prob": given})
    blocks = [layer.feed_forward for layer in model.layers]
    found = {block.router.normalised for block in blocks if isinstance(block, Experts)}
    assert found == {given is not False}

"""Configs as releases have them are read: with fields that earlier versions of transformers wrote, or tools added."""

from __future__ import annotations

from typing import Any

import pytest
from support.weights.released import FULL, GELU, SHARED, SLIDING, shape

from plumbline.engines.native.models import UnsupportedModelError, describe

RELEASES: dict[str, dict[str, Any]] = {
    "Gemma 2 9B": GELU
    | shape(42, 16, 8, 3584, 14336, 256000, 8192)
    | {
        "model_type": "gemma2",
        "attention_bias": False,
        "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "sliding_window_size": 4096,
    },
    "Gemma 3 1B": GELU
    | shape(26, 4, 1, 1152, 6912, 262144, 32768)
    | {
        "model_type": "gemma3_text",
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": None,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    },
    "Phi-4-mini": shape(32, 24, 8, 3072, 8192, 200064, 131072)
    | {
        "model_type": "phi3",
        "attention_bias": False,
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
        "embd_pdrop": 0.0,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "lm_head_bias": False,
        "mlp_bias": False,
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 0.75,
        "resid_pdrop": 0.0,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {"long_factor": [2.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
        "rope_theta": 10000.0,
        "sliding_window": 262144,
        "tie_word_embeddings": True,
    },
    "Granite 4.0 Micro": shape(40, 40, 8, 2560, 8192, 100352, 131072)
    | {
        "model_type": "granitemoehybrid",
        "attention_bias": False,
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12,
        "init_method": "mup",
        "layer_types": ["attention"] * 40,
        "logits_scaling": 10,
        "mamba_chunk_size": 256,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": 40,
        "mamba_d_state": 256,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 128,
        "mamba_proj_bias": False,
        "normalization_function": "rmsnorm",
        "num_experts_per_tok": 0,
        "num_local_experts": 0,
        "output_router_logits": False,
        "position_embedding_type": "rope",
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000000,
        "router_aux_loss_coef": 0.01,
        "shared_intermediate_size": 8192,
        "tie_word_embeddings": True,
    },
    "OLMo 3 7B": shape(32, 32, 32, 4096, 11008, 100278, 65536)
    | {
        "model_type": "olmo3",
        "attention_bias": False,
        "layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "yarn",
        },
        "rope_theta": 500000,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
    "SmolLM3 3B": shape(36, 16, 4, 2048, 11008, 128256, 65536)
    | {
        "model_type": "smollm3",
        "attention_bias": False,
        "layer_types": [FULL] * 36,
        "max_window_layers": 28,
        "mlp_bias": False,
        "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0] * 9,
        "pretraining_tp": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 5000000.0,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "Command R7B": shape(32, 32, 8, 4096, 14336, 256000, 8192)
    | {
        "model_type": "cohere2",
        "attention_bias": False,
        "cache_implementation": "hybrid",
        "head_dim": 128,
        "layer_norm_eps": 1e-05,
        "layer_switch": 4,
        "logit_scale": 0.25,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rope_theta": 50000,
        "rotary_pct": 1.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "use_embedding_sharing": True,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_parallel_embedding": True,
    },
    "EXAONE 4.0 1.2B": shape(30, 32, 8, 2048, 4096, 102400, 65536)
    | {
        "model_type": "exaone4",
        "head_dim": 64,
        "layer_types": [FULL] * 30,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 16.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 1000000,
        "sliding_window": None,
        "sliding_window_pattern": None,
        "tie_word_embeddings": True,
    },
    "Qwen3 30B A3B": shape(48, 32, 4, 2048, 6144, 151936, 40960)
    | {
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "output_router_logits": False,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    },
    "GLM-4.5-Air": shape(46, 96, 8, 4096, 10944, 151552, 131072)
    | {
        "model_type": "glm4_moe",
        "attention_bias": True,
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 8,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "use_qk_norm": False,
    },
    "gpt-oss 20B": shape(24, 64, 8, 2880, 2880, 201088, 131072)
    | {
        "model_type": "gpt_oss",
        "attention_bias": True,
        "experts_per_token": 4,
        "head_dim": 64,
        "initial_context_length": 4096,
        "layer_types": [SLIDING, FULL] * 12,
        "num_experts_per_tok": 4,
        "num_local_experts": 32,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
    },
    "DeepSeek V2 Lite": shape(27, 16, 16, 2048, 10944, 102400, 163840)
    | {
        "model_type": "deepseek_v2",
        "attention_bias": False,
        "aux_loss_alpha": 0.001,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 512,
        "moe_intermediate_size": 1408,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_experts_per_tok": 6,
        "pretraining_tp": 1,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "seq_aux": True,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "greedy",
        "v_head_dim": 128,
    },
    "ERNIE 4.5 21B A3B": shape(28, 20, 4, 2560, 12288, 103424, 131072)
    | {
        "model_type": "ernie4_5_moe",
        "moe_capacity": [64, 64, 64],
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_layer_end_index": 27,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "moe_use_aux_free": True,
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000,
        "tie_word_embeddings": True,
        "use_bias": False,
        "use_rmsnorm": True,
    },
}


@pytest.mark.parametrize("types", [[["linear_attention"]], 3, [None]])
@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen3"])
def test_types_of_layers_that_are_no_names_are_refused(family: str, types: Any) -> None:
    fields = SHARED | shape(1, 2, 2, 32, 32, 99, 64) | {"model_type": family, "layer_types": types}
    with pytest.raises(UnsupportedModelError, match="layer_types"):
        describe(fields)


@pytest.mark.parametrize("release", RELEASES)
def test_the_config_of_a_release_is_read(release: str) -> None:
    fields = SHARED | RELEASES[release]
    model = describe(fields)
    assert len(model.layers) == fields["num_hidden_layers"]
    assert {layer.mixer.heads for layer in model.layers} == {fields["num_attention_heads"]}
    assert model.context_length >= fields["max_position_embeddings"]


def test_what_releases_leave_out_has_the_default_of_the_family() -> None:
    """Embeddings of Gemma and SmolLM3 are shared, and Gemma 3 has a window in five of six layers."""
    gemma = describe(SHARED | RELEASES["Gemma 3 1B"])
    assert gemma.tied
    assert describe(SHARED | RELEASES["SmolLM3 3B"]).tied
    mixers: list[Any] = [layer.mixer for layer in gemma.layers[:7]]
    assert [mixer.window for mixer in mixers] == [512] * 5 + [None, 512]

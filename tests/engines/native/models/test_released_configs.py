"""Configs as releases have them are read: with fields that earlier versions of transformers wrote, or tools added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline.engines.native.models import describe
from plumbline.engines.native.models.vision import read_preparation, read_vision

SHARED: dict[str, Any] = {
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "pad_token_id": 0,
    "rope_scaling": None,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.54.0",
    "use_cache": True,
}
GELU = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
FULL, SLIDING = "full_attention", "sliding_attention"


def shape(
    layers: int, heads: int, kv_heads: int, hidden: int, inner: int, vocab: int, length: int
) -> dict[str, int]:
    """The fields that every config has."""
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": length,
    }


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
    assert [layer.mixer.window for layer in gemma.layers[:7]] == [512] * 5 + [None, 512]


SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "model_type": "siglip_vision_model",
    "num_attention_heads": 16,
    "patch_size": 14,
    "vision_use_head": False,
}
HALF = [0.5, 0.5, 0.5]
PREPARED = {"do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True}
PREPARED |= {"rescale_factor": 0.00392156862745098, "resample": 3}
SEEING: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], int]] = {
    "LLaVA 1.5 7B": (
        {
            "model_type": "llava",
            "ignore_index": -100,
            "image_token_index": 32000,
            "pad_token_id": 32001,
            "projector_hidden_act": "gelu",
            "text_config": {
                "_name_or_path": "lmsys/vicuna-7b-v1.5",
                "architectures": ["LlamaForCausalLM"],
                "max_position_embeddings": 4096,
                "model_type": "llama",
                "rms_norm_eps": 1e-05,
                "torch_dtype": "float16",
                "vocab_size": 32064,
            },
            "torch_dtype": "float16",
            "vision_config": {
                "hidden_size": 1024,
                "image_size": 336,
                "intermediate_size": 4096,
                "model_type": "clip_vision_model",
                "num_attention_heads": 16,
                "num_hidden_layers": 24,
                "patch_size": 14,
                "projection_dim": 768,
                "vocab_size": 32000,
            },
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
            "vocab_size": 32064,
        },
        PREPARED
        | {
            "crop_size": {"height": 336, "width": 336},
            "do_center_crop": True,
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_processor_type": "CLIPImageProcessor",
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "processor_class": "LlavaProcessor",
            "size": {"shortest_edge": 336},
        },
        {
            "image_token": "<image>",
            "num_additional_image_tokens": 1,
            "patch_size": 14,
            "processor_class": "LlavaProcessor",
            "vision_feature_select_strategy": "default",
        },
        576,
    ),
    "LLaVA Interleave Qwen 0.5B": (
        {
            "model_type": "llava",
            "ignore_index": -100,
            "image_token_index": 151646,
            "projector_hidden_act": "gelu",
            "text_config": SHARED | shape(24, 16, 16, 1024, 2816, 152000, 32768) | {"model_type": "qwen2"},
            "vision_config": SIGLIP | {"image_size": 384, "num_hidden_layers": 26},
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        PREPARED
        | {
            "image_mean": HALF,
            "image_processor_type": "SiglipImageProcessor",
            "image_std": HALF,
            "size": {"height": 384, "width": 384},
        },
        {"patch_size": 14, "processor_class": "LlavaProcessor", "vision_feature_select_strategy": "full"},
        729,
    ),
    "Gemma 3 4B": (
        {
            "model_type": "gemma3",
            "boi_token_index": 255999,
            "eoi_token_index": 256000,
            "eos_token_id": [1, 106],
            "image_token_index": 262144,
            "initializer_range": 0.02,
            "mm_tokens_per_image": 256,
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "torch_dtype": "bfloat16",
            "vision_config": SIGLIP | {"image_size": 896, "num_hidden_layers": 27},
        },
        PREPARED
        | {
            "do_convert_rgb": None,
            "do_pan_and_scan": None,
            "image_mean": HALF,
            "image_processor_type": "Gemma3ImageProcessor",
            "image_seq_length": 256,
            "image_std": HALF,
            "pan_and_scan_max_num_crops": None,
            "pan_and_scan_min_crop_size": None,
            "pan_and_scan_min_ratio_to_activate": None,
            "processor_class": "Gemma3Processor",
            "resample": 2,
            "size": {"height": 896, "width": 896},
        },
        {"image_seq_length": 256, "processor_class": "Gemma3Processor"},
        256,
    ),
}
"""Models of images and text: the config, that of pixels, that of the processor, and the tokens of an image."""


@pytest.mark.parametrize("name", SEEING)
def test_the_images_of_a_release_are_read(name: str, tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    config, pixels, processor, tokens = SEEING[name]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(pixels), "utf-8")
    (tmp_path / "processor_config.json").write_text(json.dumps(processor), "utf-8")
    vision = read_vision(config, describe(config))
    assert vision.num_tokens == tokens
    prepared = read_preparation(tmp_path, vision)
    assert (prepared.crop or prepared.size) == (vision.tower.image_size,) * 2

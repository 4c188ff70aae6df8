"""Configs of earlier families and of families with layers of their own are read as releases have them."""

from __future__ import annotations

from typing import Any

import pytest
from support.weights.released import shape

from plumbline.engines.native.models import UnsupportedModelError, describe

SUMMARY = {
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}
GPT = SUMMARY | {
    "activation_function": "gelu_new",
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "resid_pdrop": 0.1,
    "use_cache": True,
}
GPTJ = GPT | {
    "gradient_checkpointing": False,
    "n_inner": None,
    "n_positions": 2048,
    "scale_attn_weights": True,
    "tie_word_embeddings": False,
    "tokenizer_class": "GPT2Tokenizer",
}
FALCON = {
    "model_type": "falcon",
    "alibi": False,
    "apply_residual_connection_post_layernorm": False,
    "bias": False,
    "bos_token_id": 11,
    "eos_token_id": 11,
    "hidden_dropout": 0.0,
    "layer_norm_epsilon": 1e-05,
    "multi_query": True,
    "parallel_attn": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 65024,
}
RELEASES: dict[str, tuple[dict[str, Any], int]] = {
    "GPT-2": (
        GPT
        | {
            "model_type": "gpt2",
            "_num_labels": 1,
            "n_ctx": 1024,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
        1024,
    ),
    "StarCoder": (
        GPT
        | {
            "model_type": "gpt_bigcode",
            "activation_function": "gelu",
            "attention_softmax_in_fp32": True,
            "inference_runner": 0,
            "max_batch_size": None,
            "max_sequence_length": None,
            "multi_query": True,
            "n_embd": 6144,
            "n_head": 48,
            "n_inner": 24576,
            "n_layer": 40,
            "n_positions": 8192,
            "pad_key_length": True,
            "pre_allocate_kv_cache": False,
            "scale_attention_softmax_in_fp32": True,
            "scale_attn_weights": True,
            "validate_runner_input": True,
            "vocab_size": 49152,
        },
        8192,
    ),
    "GPT-Neo 125M": (
        SUMMARY
        | {
            "model_type": "gpt_neo",
            "activation_function": "gelu_new",
            "attention_dropout": 0,
            "attention_layers": ["global", "local"] * 6,
            "attention_types": [[["global", "local"], 6]],
            "embed_dropout": 0,
            "gradient_checkpointing": False,
            "hidden_size": 768,
            "intermediate_size": None,
            "layer_norm_epsilon": 1e-05,
            "max_position_embeddings": 2048,
            "num_heads": 12,
            "num_layers": 12,
            "resid_dropout": 0,
            "vocab_size": 50257,
            "window_size": 256,
        },
        2048,
    ),
    "GPT-NeoX 20B": (
        {
            "model_type": "gpt_neox",
            "attention_probs_dropout_prob": 0,
            "hidden_act": "gelu_fast",
            "hidden_dropout_prob": 0,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048,
            "num_attention_heads": 64,
            "num_hidden_layers": 44,
            "rotary_emb_base": 10000,
            "rotary_pct": 0.25,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "use_parallel_residual": True,
            "vocab_size": 50432,
        },
        2048,
    ),
    "GPT-J 6B": (
        GPTJ
        | {
            "model_type": "gptj",
            "n_embd": 4096,
            "n_head": 16,
            "n_layer": 28,
            "rotary": True,
            "rotary_dim": 64,
            "vocab_size": 50400,
        },
        2048,
    ),
    "CodeGen 350M": (
        GPTJ
        | {
            "model_type": "codegen",
            "n_ctx": 2048,
            "n_embd": 1024,
            "n_head": 16,
            "n_layer": 20,
            "rotary_dim": 32,
            "vocab_size": 51200,
        },
        2048,
    ),
    "Falcon 7B": (
        FALCON
        | {
            "hidden_size": 4544,
            "new_decoder_architecture": False,
            "num_attention_heads": 71,
            "num_hidden_layers": 32,
        },
        2048,
    ),
    "Falcon 40B": (
        FALCON
        | {
            "hidden_size": 8192,
            "new_decoder_architecture": True,
            "num_attention_heads": 128,
            "num_hidden_layers": 60,
            "num_kv_heads": 8,
        },
        2048,
    ),
    "Falcon 2 11B": (
        FALCON
        | {
            "ff_factor": 4,
            "hidden_size": 4096,
            "max_position_embeddings": 8192,
            "new_decoder_architecture": True,
            "num_attention_heads": 32,
            "num_hidden_layers": 60,
            "num_kv_heads": 8,
            "num_ln_in_parallel_attn": 1,
            "rope_scaling": None,
            "rope_theta": 5000042.0,
            "tie_word_embeddings": False,
        },
        8192,
    ),
    "OPT 125M": (
        {
            "model_type": "opt",
            "activation_dropout": 0.0,
            "activation_function": "relu",
            "attention_dropout": 0.0,
            "do_layer_norm_before": True,
            "dropout": 0.1,
            "ffn_dim": 3072,
            "hidden_size": 768,
            "init_std": 0.02,
            "layerdrop": 0.0,
            "max_position_embeddings": 2048,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "pad_token_id": 1,
            "prefix": "</s>",
            "torch_dtype": "float16",
            "vocab_size": 50272,
            "word_embed_proj_dim": 768,
        },
        2048,
    ),
    "OLMo 7B 0724": (
        shape(32, 32, 32, 4096, 11008, 50304, 4096)
        | {
            "model_type": "olmo",
            "attention_bias": False,
            "clip_qkv": 8.0,
            "rope_scaling": None,
            "rope_theta": 10000.0,
        },
        4096,
    ),
    "InternLM 3 8B": (
        shape(48, 32, 2, 4096, 10240, 128512, 32768)
        | {
            "model_type": "internlm3",
            "bias": False,
            "head_dim": 128,
            "qkv_bias": False,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"},
            "rope_theta": 50000000,
        },
        32768,
    ),
    "Apertus 8B": (
        shape(32, 32, 8, 4096, 21504, 131072, 65536)
        | {
            "model_type": "apertus",
            "hidden_act": "xielu",
            "attention_bias": False,
            "hidden_dropout": 0.0,
            "mlp_bias": False,
            "post_norm": False,
            "qk_norm": True,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 8.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
                "type": "llama3",
            },
            "rope_theta": 12000000,
        },
        65536,
    ),
    "Phi-3.5-MoE": (
        shape(32, 32, 8, 4096, 6400, 32064, 131072)
        | {
            "model_type": "phimoe",
            "attention_bias": True,
            "input_jitter_noise": 0.01,
            "lm_head_bias": True,
            "num_experts_per_tok": 2,
            "num_local_experts": 16,
            "original_max_position_embeddings": 4096,
            "output_router_logits": False,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "long_factor": [2.0] * 64,
                "long_mscale": 1.243163121016122,
                "original_max_position_embeddings": 4096,
                "short_factor": [1.0] * 64,
                "short_mscale": 1.243163121016122,
                "type": "longrope",
            },
            "rope_theta": 10000.0,
            "router_aux_loss_coef": 0.0,
            "router_jitter_noise": 0.01,
            "sliding_window": 131072,
        },
        131072,
    ),
    "LFM2 1.2B": (
        {
            "model_type": "lfm2",
            "block_auto_adjust_ff_dim": True,
            "block_dim": 2048,
            "block_ff_dim": 12288,
            "block_ffn_dim_multiplier": 1.0,
            "block_mlp_init_scale": 1.0,
            "block_multiple_of": 256,
            "block_norm_eps": 1e-05,
            "block_out_init_scale": 1.0,
            "block_use_swiglu": True,
            "block_use_xavier_init": True,
            "conv_L_cache": 3,
            "conv_bias": False,
            "conv_dim": 2048,
            "conv_dim_out": 2048,
            "conv_use_xavier_init": True,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
            "hidden_size": 2048,
            "max_position_embeddings": 128000,
            "norm_eps": 1e-05,
            "num_attention_heads": 32,
            "num_heads": 32,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "rope_theta": 1000000.0,
            "theta": 1000000.0,
            "torch_dtype": "bfloat16",
            "use_pos_enc": True,
            "vocab_size": 65536,
        },
        128000,
    ),
    "Falcon-H1 0.5B": (
        shape(36, 8, 2, 1024, 2048, 32784, 16384)
        | {
            "model_type": "falcon_h1",
            "attention_bias": False,
            "attention_in_multiplier": 1.0,
            "attention_out_multiplier": 0.9375,
            "attn_layer_indices": None,
            "embedding_multiplier": 5.656854249492381,
            "head_dim": 64,
            "key_multiplier": 0.390625,
            "lm_head_multiplier": 0.0390625,
            "mamba_chunk_size": 128,
            "mamba_conv_bias": True,
            "mamba_d_conv": 4,
            "mamba_d_head": 64,
            "mamba_d_ssm": 1536,
            "mamba_d_state": 128,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "mamba_n_heads": 24,
            "mamba_norm_before_gate": False,
            "mamba_proj_bias": False,
            "mamba_rms_norm": False,
            "mamba_use_mlp": True,
            "mlp_bias": False,
            "mlp_expansion_factor": 8,
            "mlp_multipliers": [0.8838834764831844, 0.5859375],
            "num_logits_to_keep": 1,
            "projectors_bias": False,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "rope_theta": 100000000000.0,
            "ssm_in_multiplier": 1.25,
            "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
            "ssm_out_multiplier": 0.23570226039551587,
        },
        16384,
    ),
}
"""The config of a release, and the tokens that its model takes."""


@pytest.mark.parametrize("name", RELEASES)
def test_a_config_is_read_as_its_release_has_it(name: str) -> None:
    config, length = RELEASES[name]
    description = describe(config)
    assert description.context_length == length
    with pytest.raises(UnsupportedModelError, match="surprise"):
        describe(config | {"surprise": 1})

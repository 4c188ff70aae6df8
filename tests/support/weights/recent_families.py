"""Small configs of families that came after the first ones."""

from __future__ import annotations

from typing import Any

from support.weights.family_cases import FULL, SLIDING, WIDE, Case, both

__all__ = ["RECENT"]

_SPARSE: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
_MIXED: dict[str, Any] = {"layer_types": [SLIDING, FULL, SLIDING], "sliding_window": 11}
_ROPES = {
    FULL: {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0},
    SLIDING: {"rope_type": "default", "rope_theta": 100.0},
}
_LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "num_key_value_heads": 4,
}
_INDEXED = {
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 128,
}
_DELTA = {
    "initializer_range": 0.1,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 10,
}
_JAMBA = {
    "initializer_range": 0.1,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "mamba_d_state": 6,
    "mamba_dt_rank": 5,
}
_SPACE = {
    "initializer_range": 0.1,
    "mamba_n_heads": 6,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_head": 10,
    "mamba_d_ssm": 60,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 1.3,
    "embedding_multiplier": 3.0,
    "key_multiplier": 0.7,
    "lm_head_multiplier": 0.6,
    "mlp_multipliers": [0.8, 1.4],
    "ssm_in_multiplier": 1.2,
    "ssm_multipliers": [0.7, 0.9, 1.1, 1.3, 1.5],
    "ssm_out_multiplier": 0.8,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0] * 6,
    "long_factor": [1.0, 2.0, 8.0, 8.0, 9.0, 9.0],
    "short_mscale": 1.1,
    "long_mscale": 1.3,
}
_GRANITE: dict[str, Any] = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.0}

RECENT: list[Case] = [
    *both("olmo", clip_qkv=2.0),
    *both("internlm3", head_dim=16, attention_bias=True, mlp_bias=True),
    *both("internlm3", "dynamic", head_dim=16, rope_parameters={"rope_type": "dynamic", "factor": 6.0}),
    *both("hyperclovax", **_GRANITE, attention_multiplier=0.3),
    *both("hyperclovax", "before", use_post_norm=False),
    *both("jais2"),
    *both("apertus"),
    *both("nanochat", final_logit_softcapping=3.0),
    *both("flex_olmo", num_experts=4, num_experts_per_tok=2),
    *both(
        "mellum",
        **_SPARSE,
        **_MIXED,
        num_experts=4,
        head_dim=16,
        rope_parameters=_ROPES,
        mlp_layer_types=["dense", "sparse", "sparse"],
    ),
    *both("phimoe", num_local_experts=4, router_jitter_noise=0.2, sliding_window=21, lm_head_bias=True),
    Case(
        "phimoe",
        {"num_local_experts": 4, "rope_parameters": _LONG, "original_max_position_embeddings": 16},
        "long",
    ),
    *both(
        "cohere2_moe",
        **_MIXED,
        num_experts=4,
        head_dim=16,
        prefix_dense_intermediate_size=64,
        num_shared_experts=1,
        mlp_layer_types=["sparse", "dense", "sparse"],
    ),
    *both(
        "cohere2_moe",
        "sigmoid",
        **_MIXED,
        num_experts=4,
        head_dim=16,
        rms_norm_eps=1e-6,
        expert_selection_fn="sigmoid",
        shared_expert_combination_strategy="sum",
        num_shared_experts=2,
    ),
    *both("afmoe", **_SPARSE, **_MIXED, num_experts=4, head_dim=16, mup_enabled=True, route_scale=1.5),
    *both("hy_v3", **_SPARSE, num_experts=4, head_dim=16, num_shared_experts=2),
    *both("flint", **_SPARSE, **_MIXED, num_experts=4, head_dim=16, mlp_only_layers=[1]),
    Case("lfm2", {"layer_types": ["conv", FULL, "conv"], "conv_L_cache": 4, "block_multiple_of": 16}),
    Case(
        "lfm2",
        WIDE | {"full_attn_idxs": [1], "conv_bias": True, "block_auto_adjust_ff_dim": False},
        is_compiled=True,
    ),
    *both(
        "lfm2_moe",
        **_SPARSE,
        layer_types=["conv", FULL, "conv"],
        num_experts=4,
        num_dense_layers=1,
        conv_bias=True,
    ),
    Case("jamba", _JAMBA | {"num_experts": 4}, kernels=False),
    Case("jamba", _JAMBA | {"num_experts": 1, "mamba_proj_bias": True}, "dense", kernels=False),
    Case("falcon_h1", _SPACE | {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    Case("falcon_h1", _SPACE | WIDE | {"mamba_d_ssm": 96, "mamba_d_head": 16}, is_compiled=True),
    Case("olmo_hybrid", {"layer_types": ["linear_attention", FULL, "linear_attention"]} | _DELTA),
    Case(
        "olmo_hybrid",
        {"layer_types": ["linear_attention", "linear_attention", FULL]}
        | _DELTA
        | WIDE
        | {"linear_key_head_dim": 16, "linear_value_head_dim": 80, "linear_allow_neg_eigval": False}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
        is_compiled=True,
    ),
    Case("deepseek_v32", _INDEXED | _LATENT | _SPARSE),
    Case("glm_moe_dsa", _INDEXED | _LATENT | _SPARSE | {"indexer_types": ["full", "shared", "full"]}),
    Case("axk1", _LATENT | _SPARSE | {"n_routed_experts": 8, "n_group": 4, "topk_group": 2}),
    Case("minicpm3", _LATENT | {"scale_emb": 3, "dim_model_base": 24}),
]
for case in RECENT:
    case.is_long = bool(case.label)

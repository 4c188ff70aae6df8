"""Small configs of every family, for tests against transformers."""

from __future__ import annotations

from typing import Any

from support.weights.classic_families import CLASSIC
from support.weights.family_cases import FULL, HALF, SLIDING, SMALL, WIDE, Case, both
from support.weights.recent_families import RECENT

__all__ = ["CASES", "FULL", "SLIDING", "SMALL", "WIDE", "Case", "both"]

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.0, 2.0, 8.0],
}
GRANITE: dict[str, Any] = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}
TWO_ROPES: dict[str, Any] = {
    FULL: {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0},
    SLIDING: {"rope_type": "default", "rope_theta": 100.0},
}
ALTERNATING: dict[str, Any] = {"layer_types": [SLIDING, FULL, SLIDING], "sliding_window": 11}

SPARSE: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
DEEPSEEK: dict[str, Any] = SPARSE | {
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
}

LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "num_key_value_heads": 4,
}
WIDE_LATENT = WIDE | {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 16,
    "v_head_dim": 48,
}
LATENT_YARN = {name: value for name, value in YARN.items() if name != "llama_4_scaling_beta"}

LLAMA4: dict[str, Any] = {
    "head_dim": 16,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "moe_layers": [0, 2],
    "no_rope_layers": [1, 0, 1],
    "attention_chunk_size": 11,
    "floor_scale": 8,
    "attn_scale": 0.5,
}
GEMMA4 = {**ALTERNATING, "layer_types": [SLIDING, SLIDING, FULL], "hidden_size_per_layer_input": 0}

GEMMA4_EXPERTS = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 32}
GEMMA4_SHARED = {
    "num_hidden_layers": 5,
    "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 99,
}

EXPERTS: list[Case] = [
    *both("mixtral", num_local_experts=4, sliding_window=21),
    *both("qwen2_moe", **SPARSE, num_experts=4, shared_expert_intermediate_size=48, mlp_only_layers=[1]),
    *both("qwen3_moe", **SPARSE, num_local_experts=5, head_dim=16, norm_topk_prob=True),
    *both("qwen3_moe", "step", **SPARSE, num_local_experts=4, decoder_sparse_step=2),
    *both("olmoe", num_experts=4, num_experts_per_tok=2),
    *both("granitemoe", **GRANITE, num_local_experts=4),
    *both("granitemoeshared", **GRANITE, num_local_experts=4, shared_intermediate_size=48),
    *both("ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=32, moe_layer_start_index=1),
    *both("glm4_moe", **DEEPSEEK, use_qk_norm=True, head_dim=16, attention_bias=True),
    *both("dots1", **DEEPSEEK, max_window_layers=2, sliding_window=11),
    Case("deepseek_v2", LATENT | DEEPSEEK | {"topk_method": "group_limited_greedy", "norm_topk_prob": False}),
    Case("deepseek_v2", LATENT | DEEPSEEK | {"q_lora_rank": None, "norm_topk_prob": False}, "greedy"),
    Case("deepseek_v3", LATENT | DEEPSEEK | {"rope_parameters": LATENT_YARN}),
    Case(
        "deepseek_v3", LATENT | DEEPSEEK | {"n_group": 1, "topk_group": 1, "rope_interleave": False}, "kimi"
    ),
    Case("glm4_moe_lite", LATENT | SPARSE | {"n_routed_experts": 4}),
    Case("youtu", LATENT),
    Case("deepseek_v2", WIDE_LATENT | DEEPSEEK | {"norm_topk_prob": False}, "", is_compiled=True),
    Case("deepseek_v3", WIDE_LATENT | DEEPSEEK | {"rope_parameters": LATENT_YARN}, "", is_compiled=True),
    Case("youtu", WIDE_LATENT | {"q_lora_rank": None}, "", is_compiled=True),
    *both("solar_open", **SPARSE, head_dim=16, n_routed_experts=4, norm_topk_prob=True),
    *both("hunyuan_v1_moe", num_experts=4, moe_topk=[2, 1, 2], head_dim=16),
    *both(
        "exaone_moe",
        **SPARSE,
        **ALTERNATING,
        num_experts=8,
        n_group=2,
        topk_group=1,
        routed_scaling_factor=1.5,
    ),
    *both(
        "granitemoe_swa",
        **GRANITE,
        **ALTERNATING,
        num_local_experts=4,
        shared_intermediate_size=48,
        layer_rope_theta=[100.0, 0, 1000.0],
    ),
    Case("llama4_text", LLAMA4),
    Case(
        "llama4_text",
        LLAMA4 | {"num_experts_per_tok": 2, "use_qk_norm": False, "attention_bias": True},
        "two",
    ),
    Case(
        "llama4_text",
        LLAMA4 | WIDE | {"head_dim": 32, "num_experts_per_tok": 2, "attention_bias": True},
        "two",
        is_compiled=True,
    ),
    *both("gpt_oss", num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=11),
    *both("minimax_m2", num_local_experts=4, num_experts_per_tok=2, head_dim=16, rotary_dim=8),
]

DELTA: dict[str, Any] = {
    # With larger weights transformers' own logits differ by 3e-4 between a whole prompt and one token at a time.
    "initializer_range": 0.1,
    "head_dim": 16,
    "layer_types": ["linear_attention", FULL, "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 10,
    "rope_parameters": HALF,
}
DELTA_EXPERTS = DELTA | {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
STATE_SPACE: dict[str, Any] = {
    "initializer_range": 0.1,
    "layer_types": ["linear_attention", FULL, "linear_attention"],
    "shared_intermediate_size": 72,
    "mamba_n_heads": 6,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_d_head": 16,
}
SPACE_OF_NEMOTRON: dict[str, Any] = {
    "initializer_range": 0.1,
    "head_dim": 16,
    "layer_norm_epsilon": 1e-5,
    "mamba_num_heads": 6,
    "mamba_head_dim": 10,
    "n_groups": 2,
    "ssm_state_size": 12,
    # transformers gives steps of prompts this least value.
    "time_step_min": 1e-30,
}
WIDE_DELTA = WIDE | {"head_dim": 32, "linear_key_head_dim": 16, "linear_value_head_dim": 80}
WIDE_SPACE = WIDE | {"mamba_n_heads": 8, "mamba_d_state": 32}
HYBRID: list[Case] = [
    Case("qwen3_next", DELTA_EXPERTS | {"mlp_only_layers": [1]}, norms=0.0),
    Case(
        "qwen3_next",
        DELTA_EXPERTS | WIDE_DELTA | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
        norms=0.0,
        is_compiled=True,
    ),
    Case(
        "qwen3_5_text",
        DELTA | WIDE_DELTA | {"layer_types": [*DELTA["layer_types"][1:], FULL]},
        norms=0.0,
        is_compiled=True,
    ),
    Case("qwen3_5_text", DELTA | {"layer_types": [*DELTA["layer_types"][1:], FULL]}, norms=0.0),
    Case("qwen3_5_moe_text", DELTA_EXPERTS, norms=0.0),
    Case("granitemoehybrid", GRANITE | STATE_SPACE | {"num_local_experts": 0}, "mamba"),
    Case(
        "granitemoehybrid",
        GRANITE | STATE_SPACE | WIDE_SPACE | {"num_local_experts": 0, "shared_intermediate_size": 80},
        "mamba",
        is_compiled=True,
    ),
    Case(
        "granitemoehybrid",
        GRANITE | STATE_SPACE | {"num_local_experts": 4, "mamba_proj_bias": True},
        "experts",
    ),
    Case(
        "bamba",
        {name: value for name, value in STATE_SPACE.items() if name.startswith("mamba")}
        | {"initializer_range": 0.1, "attn_layer_indices": [1], "attention_bias": True, "mlp_bias": True},
    ),
    Case(
        "nemotron_h",
        SPACE_OF_NEMOTRON
        | {"layers_block_type": ["linear_attention", "mlp", FULL, "linear_attention", "mlp"]}
        | {"mlp_bias": True, "use_bias": True},
    ),
    Case(
        "nemotron_h",
        SPACE_OF_NEMOTRON
        | WIDE
        | SPARSE
        | {"head_dim": 32, "mamba_head_dim": 16, "ssm_state_size": 16}
        | {"layers_block_type": ["linear_attention", "moe", FULL, "mlp", "linear_attention"]}
        | {"n_routed_experts": 4, "moe_shared_expert_intermediate_size": 48, "use_bias": True},
        is_compiled=True,
    ),
    Case(
        "nemotron_h",
        SPACE_OF_NEMOTRON
        | SPARSE
        | {"layers_block_type": ["linear_attention", "moe", "linear_attention", FULL]}
        | {"n_routed_experts": 4, "moe_shared_expert_intermediate_size": 40, "routed_scaling_factor": 1.5},
        "experts",
    ),
]
"""Families whose layers keep a state of one size."""

CASES: list[Case] = [
    *both("mistral", sliding_window=21),
    *both("ministral3", rope_parameters=YARN, head_dim=16),
    *both("qwen3", head_dim=16, attention_bias=True),
    *both("iquestcoder", head_dim=16, mlp_bias=True),
    *both("helium", head_dim=12),
    *both("ministral", **ALTERNATING, head_dim=16),
    *both(
        "cwm", **ALTERNATING, bos_token_id=1, rope_parameters={"rope_type": "default", "rope_theta": 100.0}
    ),
    *both("smollm3", no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=9),
    *both("seed_oss", head_dim=16, attention_out_bias=True),
    *both("ernie4_5", head_dim=16, use_bias=True),
    *both("granite", **GRANITE),
    *both("granite_swa", **GRANITE, **ALTERNATING, layer_rope_theta=[100.0, 0, 1000.0]),
    *both(
        "granitemoehybrid",
        **GRANITE,
        num_local_experts=0,
        shared_intermediate_size=96,
        layer_types=[FULL] * 3,
        position_embedding_type="rope",
        mamba_n_heads=2,
    ),
    *both("olmo2"),
    *both("olmo3", **ALTERNATING, rope_parameters=TWO_ROPES),
    *both("phi3", sliding_window=30),
    Case("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16}, "long"),
    *both("gemma", norms=0.0, head_dim=16),
    *both(
        "gemma2",
        norms=0.0,
        head_dim=16,
        query_pre_attn_scalar=20,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        sliding_window=11,
    ),
    *both("vaultgemma", norms=0.0, head_dim=16, query_pre_attn_scalar=20, sliding_window=11),
    *both("gemma3_text", norms=0.0, head_dim=16, **ALTERNATING, rope_parameters=TWO_ROPES),
    *both("gemma4_text", "", 0.7, head_dim=16, **GEMMA4, global_head_dim=32),
    *both(
        "gemma4_text",
        "shared",
        0.7,
        head_dim=16,
        **GEMMA4,
        global_head_dim=32,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        final_logit_softcapping=3.0,
    ),
    *both("gemma4_text", "experts", 0.7, head_dim=16, **GEMMA4 | GEMMA4_EXPERTS, global_head_dim=32),
    Case("gemma4_text", GEMMA4 | GEMMA4_SHARED | {"head_dim": 16, "global_head_dim": 32}, "inputs"),
    Case(
        "gemma4_text",
        GEMMA4
        | GEMMA4_SHARED
        | WIDE
        | {"head_dim": 32, "global_head_dim": 64, "hidden_size_per_layer_input": 16},
        "inputs",
        is_compiled=True,
    ),
    Case("gemma4_text", WIDE | GEMMA4 | {"head_dim": 32, "global_head_dim": 512}, "wide", is_compiled=True),
    *both("glm", head_dim=16),
    *both("glm4", head_dim=16),
    *both("cohere", use_qk_norm=True, logit_scale=0.5),
    *both("cohere2", **ALTERNATING, logit_scale=0.5),
    *both("exaone4", **ALTERNATING),
    *both(
        "hunyuan_v1_dense",
        head_dim=16,
        rope_parameters={"rope_type": "dynamic", "alpha": 10.0, "factor": 1.0, "rope_theta": 100.0},
    ),
    *both(
        "stablelm",
        use_qkv_bias=True,
        rope_parameters=HALF,
    ),
    *both("stablelm", "parallel", use_parallel_residual=True, qk_layernorm=True, rope_parameters=HALF),
    *both("starcoder2", sliding_window=11),
    *both("phi", rope_parameters=HALF),
    *both("nemotron", norms=0.0, rope_parameters=HALF, mlp_bias=True, attention_bias=True),
    *both("arcee", mlp_bias=True),
    *CLASSIC,
    *RECENT,
    *EXPERTS,
    *HYBRID,
]

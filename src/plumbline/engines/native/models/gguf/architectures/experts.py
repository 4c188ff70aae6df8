"""Models with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.gguf.architectures.dense import GRANITE, OF_IMAGES
from plumbline.engines.native.models.gguf.architectures.parts import (
    EXPERTS,
    WIDTH,
    Architecture,
    Keys,
    Tensors,
    expert_width,
    layers_with_windows,
    partial_rotation,
    rope,
)

__all__ = ["ARCHITECTURES", "DEEPSEEK_V2", "ROUTED", "SIGMOID"]


SIGMOID = 2
"""The number of a choice by sigmoids."""
ROUTED = {
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_count": "n_shared_experts",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "leading_dense_block_count": "first_k_dense_replace",
    "nextn_predict_layers": "num_nextn_predict_layers",
    **WIDTH,
}
"""The experts of DeepSeek V3, which several have."""


def _gpt_oss(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    # llama.cpp rounds the bounds of YaRN to whole frequencies; the model does not.
    found = rope(keys)
    return {
        "attention_bias": True,
        "rope_parameters": found | ({"truncate": False} if found["rope_type"] == "yarn" else {}),
        **layers_with_windows(keys, tensors),
    }


def _glm4(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    return {
        **partial_rotation(keys, tensors),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in tensors,
    }


def _qwen2(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    return {
        "norm_topk_prob": False,  # llama.cpp takes the weights of a token as they are.
        "qkv_bias": "blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors,
        "shared_expert_intermediate_size": keys.get(
            "expert_shared_feed_forward_length", keys["feed_forward_length"]
        ),
        **expert_width(keys, tensors),
    }


def _hunyuan(keys: Keys, _: Tensors) -> dict[str, Any]:
    width = keys["feed_forward_length"]
    for name in ("expert_feed_forward_length", "expert_shared_feed_forward_length"):
        if keys.get(name, width) != width:
            raise UnsupportedModelError(f"{name} must be feed_forward_length for hunyuan-moe")
    return {}


def _ernie(keys: Keys, _: Tensors) -> dict[str, Any]:
    return {"use_bias": False, "moe_layer_end_index": keys["block_count"] - 1}


def _deepseek(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    rotated, found = keys["rope.dimension_count"], rope(keys)
    if found["rope_type"] == "yarn":
        # For historical reasons the file has a tenth of it.
        scale = keys.get("rope.scaling.yarn_log_multiplier", 0.0) * 10
        found |= {"mscale": 1.0, "mscale_all_dim": scale}
    # Files from before May 2025 have the widths of heads as those of any attention.
    latent = "_mla" if "attention.key_length_mla" in keys else ""
    return {
        "rope_parameters": found,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys[f"attention.key_length{latent}"] - rotated,
        "v_head_dim": keys[f"attention.value_length{latent}"],
        "num_key_value_heads": keys["attention.head_count"],
        # Converters take what releases say of the first layers, which not all do.
        "first_k_dense_replace": sum(
            f"blk.{layer}.ffn_gate_inp.weight" not in tensors for layer in range(keys["block_count"])
        ),
        "q_lora_rank": keys.get("attention.q_lora_rank"),
        "norm_topk_prob": keys.get("expert_weights_norm", False),
    }


def _phimoe(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    found = rope(Keys({**keys, "rope.scaling.attn_factor": 1.0}))
    if "rope.scaling.attn_factor" in keys:
        # The file has the factor of other models; that of the only release is lost, also in llama.cpp.
        found |= {"short_mscale": _PHIMOE_SCALE, "long_mscale": _PHIMOE_SCALE}
    return {
        "rope_parameters": found,
        "original_max_position_embeddings": keys.get("rope.scaling.original_context_length"),
        "sliding_window": keys.get("attention.sliding_window") or None,
        "lm_head_bias": "output.bias" in tensors,
    }


def _afmoe(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    return {"mup_enabled": True, **layers_with_windows(keys, tensors)}


_PHIMOE_SCALE = 1.243163121016122
"""What Phi-3.5-MoE multiplies queries and keys by."""

DEEPSEEK_V2 = Architecture(
    model_type="deepseek_v2",
    keys=ROUTED
    | {
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.q_lora_rank": "",
        "attention.key_length_mla": "",
        "attention.value_length_mla": "",
        "attention.key_length": "",
        "rope.scaling.yarn_log_multiplier": "",
        "expert_weights_norm": "",
    },
    fields=_deepseek,
    partial=True,
    needed="attention.kv_lora_rank attention.key_length attention.value_length rope.dimension_count "
    "expert_count expert_used_count leading_dense_block_count",
)
"""What `deepseek2` stands for in files whose experts are not chosen by sigmoids."""

ARCHITECTURES = {
    "qwen3vlmoe": Architecture(
        model_type="qwen3_moe",
        keys={**EXPERTS, **WIDTH, **OF_IMAGES},
        fields=lambda _, __: {"norm_topk_prob": True},
        needed="expert_count expert_used_count expert_feed_forward_length",
    ),
    "deepseek2": replace(DEEPSEEK_V2, model_type="deepseek_v3", gating=SIGMOID),
    "qwen2moe": Architecture(
        model_type="qwen2_moe",
        keys={
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
            **WIDTH,
        },
        fields=_qwen2,
        needed="expert_count expert_used_count feed_forward_length",
        biases=False,
    ),
    "gpt-oss": Architecture(
        model_type="gpt_oss",
        keys={
            **EXPERTS,
            "expert_feed_forward_length": "intermediate_size",
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "",
        },
        fields=_gpt_oss,
        needed="expert_count expert_used_count attention.sliding_window",
        biases=False,
    ),
    "glm4moe": Architecture(
        model_type="glm4_moe",
        keys=ROUTED | OF_IMAGES,
        fields=_glm4,
        gating=SIGMOID,
        partial=True,
        needed="expert_count expert_used_count expert_feed_forward_length leading_dense_block_count",
    ),
    "dots1": Architecture(
        model_type="dots1",
        keys=ROUTED,
        gating=SIGMOID,
        needed="expert_count expert_used_count expert_feed_forward_length leading_dense_block_count",
    ),
    "exaone-moe": Architecture(
        model_type="exaone_moe",
        keys={
            **ROUTED,
            "expert_count": "num_experts",
            "expert_shared_count": "num_shared_experts",
            "expert_shared_feed_forward_length": "",
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "",
        },
        fields=layers_with_windows,
        gating=SIGMOID,
        needed="expert_count expert_used_count expert_feed_forward_length leading_dense_block_count "
        "attention.sliding_window",
    ),
    "hunyuan-moe": Architecture(
        model_type="hunyuan_v1_moe",
        keys={
            "expert_count": "num_experts",
            "expert_used_count": "moe_topk",
            "expert_shared_count": "",
            "expert_shared_feed_forward_length": "",
            "expert_feed_forward_length": "",
        },
        fields=_hunyuan,
        needed="expert_count expert_used_count feed_forward_length",
    ),
    "llama4": Architecture(
        model_type="llama4_text",
        keys={
            **EXPERTS,
            "feed_forward_length": "intermediate_size_mlp",
            "expert_feed_forward_length": "intermediate_size",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        # llama.cpp knows Maverick, which has no norms of heads, by its experts.
        fields=lambda keys, _: {"use_qk_norm": keys["expert_count"] != 128},
        needed="expert_count expert_used_count expert_feed_forward_length interleave_moe_layer_step",
    ),
    "phimoe": Architecture(
        model_type="phimoe",
        keys={**EXPERTS, "attention.sliding_window": ""},
        fields=_phimoe,
        needed="expert_count expert_used_count feed_forward_length",
    ),
    "afmoe": Architecture(
        model_type="afmoe",
        keys={
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_shared_count": "num_shared_experts",
            "expert_weights_scale": "route_scale",
            "expert_weights_norm": "route_norm",
            "leading_dense_block_count": "num_dense_layers",
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "",
            **WIDTH,
        },
        fields=_afmoe,
        gating=SIGMOID,
        needed="expert_count expert_used_count expert_feed_forward_length attention.sliding_window",
    ),
    "olmoe": Architecture(
        model_type="olmoe", keys={"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
    ),
    "granitemoe": Architecture(
        model_type="granitemoeshared",
        keys={**EXPERTS, **GRANITE, "expert_shared_feed_forward_length": "shared_intermediate_size"},
        interleaved=True,
    ),
    "ernie4_5-moe": Architecture(
        model_type="ernie4_5_moe",
        keys={
            "expert_count": "moe_num_experts",
            "expert_used_count": "moe_k",
            "expert_shared_count": "moe_num_shared_experts",
            "expert_shared_feed_forward_length": "",
            "interleave_moe_layer_step": "moe_layer_interval",
            "leading_dense_block_count": "moe_layer_start_index",
            **WIDTH,
        },
        fields=_ernie,
    ),
    "minimax-m2": Architecture(
        model_type="minimax_m2",
        keys={
            **EXPERTS,
            "expert_feed_forward_length": "intermediate_size",
            "rope.dimension_count": "rotary_dim",
        },
        gating=SIGMOID,
        partial=True,
    ),
    "qwen3moe": Architecture(
        model_type="qwen3_moe",
        keys={**EXPERTS, "expert_feed_forward_length": "moe_intermediate_size"},
        # llama.cpp divides the weights of a token by their sum, whatever the config says.
        fields=lambda keys, tensors: {"norm_topk_prob": True, **expert_width(keys, tensors)},
        needed="expert_count expert_used_count feed_forward_length",
    ),
}

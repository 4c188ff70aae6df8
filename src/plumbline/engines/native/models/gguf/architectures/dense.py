"""Dense models with norms of the root mean square."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.families.parts import FULL, SLIDING
from plumbline.engines.native.models.gguf.architectures.parts import (
    Architecture,
    Keys,
    Tensors,
    layers_with_windows,
    partial_rotation,
    rope,
)

__all__ = ["ARCHITECTURES", "GLM4_OF_IMAGES", "GRANITE", "OF_IMAGES", "OLMO3"]

GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


def _granite(keys: Keys, _: Tensors) -> dict[str, Any]:
    if keys.get("rope.scaling.finetuned") is False:
        raise UnsupportedModelError("rope.scaling.finetuned false is not supported: it turns rotations off")
    return {}


def _olmo(keys: Keys, _: Tensors) -> dict[str, Any]:
    if abs(keys.get("attention.layer_norm_epsilon", 1e-5) - 1e-5) > 1e-9:
        raise UnsupportedModelError("attention.layer_norm_epsilon must be 1e-05 for olmo")
    return {}


def _olmo3(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    local = {
        "rope_type": "default",
        "rope_theta": keys.get("rope.freq_base_swa", keys.get("rope.freq_base", 500000.0)),
    }
    return layers_with_windows(keys, tensors) | {"rope_parameters": {FULL: rope(keys), SLIDING: local}}


def _phi3(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    return {
        "rope_parameters": rope(Keys({**keys, "rope.scaling.attn_factor": 1.0}))
        | partial_rotation(keys, tensors),
        "original_max_position_embeddings": keys.get("rope.scaling.original_context_length"),
        "sliding_window": keys.get("attention.sliding_window") or None,
    }


def _mistral3(keys: Keys, _: Tensors) -> dict[str, Any]:
    found = rope(keys)
    if found["rope_type"] == "yarn":
        scale = keys.get("rope.scaling.yarn_log_multiplier", 1.0)
        found |= {
            "mscale": 1.0,
            "mscale_all_dim": scale,
            "llama_4_scaling_beta": keys.get("attention.temperature_scale", 0.0),
        }
    return {"rope_parameters": found}


def _hunyuan(keys: Keys, _: Tensors) -> dict[str, Any]:
    if keys.get("expert_count", 0) > 1:
        raise UnsupportedModelError("expert_count must be at most 1 for hunyuan-dense")
    return {}


def _stablelm(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    return {
        **partial_rotation(keys, tensors),
        "use_qkv_bias": bool({"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"} & {*tensors}),
        "qk_layernorm": "blk.0.attn_q_norm.weight" in tensors,
        # Files of the first years lack the key, and the second norm where blocks are parallel.
        "use_parallel_residual": keys.get("use_parallel_residual", "blk.0.ffn_norm.weight" not in tensors),
    }


def _minicpm3(keys: Keys, _: Tensors) -> dict[str, Any]:
    rotated, heads = keys["rope.dimension_count"], keys["attention.head_count"]
    return {
        # What no key has is as in the only release, like in llama.cpp.
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys["attention.key_length"] - rotated,
        "v_head_dim": keys["embedding_length"] // heads,
        "num_key_value_heads": heads,
    }


OLMO3 = Architecture(
    model_type="olmo3",
    keys={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": "",
        "rope.freq_base_swa": "",
    },
    fields=_olmo3,
)
"""What `olmo2` stands for in files with windows."""

OF_IMAGES = {"rope.dimension_sections": "", "n_deepstack_layers": ""}
"""Keys of models that read images, whose three axes are one for text."""

GLM4_OF_IMAGES = Architecture(
    model_type="glm4", keys=OF_IMAGES, partial=True, fields=partial_rotation, interleaved=False
)
"""What `glm4` stands for in files of models that read images: the converter turns rows of q and k."""

ARCHITECTURES = {
    "qwen2vl": Architecture(model_type="qwen2", keys=OF_IMAGES),
    "qwen3vl": Architecture(model_type="qwen3", keys=OF_IMAGES),
    "phi3": Architecture(
        model_type="phi3", keys={"attention.sliding_window": ""}, fields=_phi3, partial=True
    ),
    "command-r": Architecture(
        model_type="cohere",
        keys={"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"},
        fields=lambda _, tensors: {"use_qk_norm": "blk.0.attn_q_norm.weight" in tensors},
        needed="logit_scale",
    ),
    "cohere2": Architecture(
        model_type="cohere2",
        keys={
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "logit_scale": "logit_scale",
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "",
        },
        fields=layers_with_windows,
        needed="logit_scale attention.sliding_window",
    ),
    "mistral3": Architecture(
        model_type="ministral3",
        keys={"attention.temperature_scale": "", "rope.scaling.yarn_log_multiplier": ""},
        fields=_mistral3,
        interleaved=True,
    ),
    "llama": Architecture(model_type="llama", interleaved=True),
    "qwen2": Architecture(model_type="qwen2"),
    "qwen3": Architecture(model_type="qwen3"),
    "smollm3": Architecture(model_type="smollm3", interleaved=True),
    "olmo": Architecture(
        model_type="olmo",
        keys={"attention.layer_norm_epsilon": "", "attention.clamp_kqv": "clip_qkv"},
        fields=_olmo,
        interleaved=True,
    ),
    "olmo2": Architecture(model_type="olmo2"),
    "seed_oss": Architecture(
        model_type="seed_oss",
        fields=lambda _, tensors: {"attention_out_bias": "blk.0.attn_output.bias" in tensors},
    ),
    "ernie4_5": Architecture(
        model_type="ernie4_5",
        fields=lambda _, tensors: {"use_bias": "blk.0.attn_q.bias" in tensors},
        biases=False,
    ),
    "glm4": replace(GLM4_OF_IMAGES, keys={}, interleaved=True),
    "exaone4": Architecture(
        model_type="exaone4",
        keys={"attention.sliding_window": "sliding_window", "attention.sliding_window_pattern": ""},
        fields=layers_with_windows,
    ),
    "starcoder2": Architecture(
        model_type="starcoder2", keys={"attention.layer_norm_epsilon": "norm_epsilon"}, biases=False
    ),
    "apertus": Architecture(
        model_type="apertus",
        numbers={f"mlp.act_fn.{name}": f"xielu.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")},
    ),
    "minicpm3": Architecture(
        model_type="minicpm3",
        keys={
            "attention.kv_lora_rank": "kv_lora_rank",
            "attention.q_lora_rank": "q_lora_rank",
            "attention.key_length": "",
        },
        fields=_minicpm3,
        needed="attention.kv_lora_rank attention.q_lora_rank attention.key_length rope.dimension_count",
        partial=True,
    ),
    "arcee": Architecture(model_type="arcee", interleaved=True),
    "hunyuan-dense": Architecture(
        model_type="hunyuan_v1_dense", keys={"expert_count": "", "expert_used_count": ""}, fields=_hunyuan
    ),
    "nemotron": Architecture(
        model_type="nemotron",
        keys={"attention.layer_norm_epsilon": "norm_eps", "attention.layer_norm_rms_epsilon": ""},
        fields=partial_rotation,
        norms_with_offset=True,
        partial=True,
    ),
    "phi2": Architecture(
        model_type="phi",
        keys={"attention.layer_norm_epsilon": "layer_norm_eps"},
        fields=partial_rotation,
        partial=True,
        biases=False,
    ),
    "stablelm": Architecture(
        model_type="stablelm",
        keys={
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
        fields=_stablelm,
        names={"q_norm": "self_attn.q_layernorm", "k_norm": "self_attn.k_layernorm"},
        partial=True,
        biases=False,
    ),
    "granite": Architecture(
        model_type="granite",
        keys=GRANITE,
        fields=_granite,
        interleaved=True,
    ),
}

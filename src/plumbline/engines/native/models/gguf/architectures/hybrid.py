"""Models whose layers are not all attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plumbline.engines.native.models.checkpoint import some
from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.families.parts import FULL
from plumbline.engines.native.models.fields import MOST_LAYERS
from plumbline.engines.native.models.gguf.architectures.dense import GRANITE
from plumbline.engines.native.models.gguf.architectures.experts import ROUTED, SIGMOID
from plumbline.engines.native.models.gguf.architectures.parts import (
    EXPERTS,
    WIDTH,
    Architecture,
    Keys,
    Tensors,
    partial_rotation,
    rope,
)

__all__ = ["ARCHITECTURES"]


def _lfm2_moe(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    found = _lfm2(keys, tensors)
    del found["block_auto_adjust_ff_dim"]
    return found


def _lfm2(keys: Keys, _: Tensors) -> dict[str, Any]:
    counts = keys["attention.head_count_kv"]
    if not isinstance(counts, list) or len({*counts} - {0}) != 1:
        raise UnsupportedModelError(
            "attention.head_count_kv must have a number for each layer of lfm2, or zero"
        )
    return {
        "block_auto_adjust_ff_dim": False,
        "layer_types": [FULL if count else "conv" for count in counts],
        "num_key_value_heads": max(counts),
    }


def _delta(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    layers = keys["block_count"] - keys.get("nextn_predict_layers", 0)
    recurrent = keys.get("attention.recurrent_layers")
    if recurrent is None:
        recurrent = [(layer + 1) % keys.get("full_attention_interval", 4) != 0 for layer in range(layers)]
    return {
        **partial_rotation(keys, tensors),
        "layer_types": ["linear_attention" if each else FULL for each in recurrent[:layers]],
        "linear_value_head_dim": keys["ssm.inner_size"] // keys["ssm.time_step_rank"],
    }


def _qwen35(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    found, sections = _delta(keys, tensors), keys.get("rope.dimension_sections", (11, 11, 10))
    return found | {
        "rope_parameters": rope(keys)
        | {
            "mrope_section": [*sections[:3]],
            "partial_rotary_factor": found.pop("partial_rotary_factor"),
        }
    }


def _granite(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    counts, inner = keys["attention.head_count_kv"], keys["ssm.inner_size"]
    if not isinstance(counts, list):
        raise UnsupportedModelError(
            "attention.head_count_kv must have a number for each layer of granitehybrid"
        )
    return {
        "layer_types": [FULL if count else "mamba" for count in counts],
        "num_key_value_heads": max(counts),
        "mamba_expand": inner // keys["embedding_length"],
        "mamba_d_head": inner // keys["ssm.time_step_rank"],
        "position_embedding_type": "nope" if keys.get("rope.scaling.finetuned") is False else "rope",
        "mamba_proj_bias": any(name.endswith("ssm_in.bias") for name in tensors),
        "num_local_experts": keys.get("expert_count", 0),
        "shared_intermediate_size": keys.get(
            "expert_shared_feed_forward_length", keys["feed_forward_length"]
        ),
    }


def _nemotron(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    counts, widths, inner = (
        keys["attention.head_count_kv"],
        keys["feed_forward_length"],
        keys["ssm.inner_size"],
    )
    if not isinstance(counts, list) or not isinstance(widths, list):
        raise UnsupportedModelError(
            "nemotron_h needs attention.head_count_kv and feed_forward_length by layer"
        )
    block = "moe" if keys.get("expert_count") else "mlp"
    layers = keys["block_count"] - keys.get("nextn_predict_layers", 0)
    return {
        "layers_block_type": [
            FULL if count else block if width else "linear_attention"
            for count, width in zip(counts[:layers], widths[:layers], strict=True)
        ],
        "num_key_value_heads": max(counts[:layers]),
        "intermediate_size": max(widths),
        "mamba_head_dim": inner // keys["ssm.time_step_rank"],
        "use_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in tensors),
        "use_bias": any(name.endswith("ssm_in.bias") for name in tensors),
        "mlp_bias": any(name.endswith("ffn_up.bias") for name in tensors),
    }


def _jamba(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    counts = keys["attention.head_count_kv"]
    if not isinstance(counts, list):
        raise UnsupportedModelError("attention.head_count_kv must have a number for each layer of jamba")
    layers = range(keys["block_count"])
    return {
        **_every("attn_layer", [layer for layer in layers if counts[layer]]),
        **_every(
            "expert_layer", [layer for layer in layers if f"blk.{layer}.ffn_gate_inp.weight" in tensors]
        ),
        "num_key_value_heads": max(counts),
        "num_experts": keys["expert_count"],
        "mamba_expand": keys["ssm.inner_size"] // keys["embedding_length"],
        "mamba_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in tensors),
        "mamba_proj_bias": any(name.endswith("ssm_in.bias") for name in tensors),
    }


def _every(name: str, layers: list[int]) -> dict[str, int]:
    """Return the period of some layers, and the first one; with none, a first one behind all.

    Raises:
        UnsupportedModelError: they have no period.
    """
    first = layers[0] if layers else MOST_LAYERS
    period = layers[1] - first if len(layers) > 1 else 2 * MOST_LAYERS
    if layers and layers != [*range(first, layers[-1] + 1, period)]:
        raise UnsupportedModelError(
            f"the layers {some([str(layer) for layer in layers])} have no period ({name})"
        )
    return {f"{name}_period": period, f"{name}_offset": first}


def _falcon(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    inner, heads = keys["ssm.inner_size"], keys["ssm.time_step_rank"]
    normed = any(name.endswith("ssm_norm.weight") for name in tensors)
    biased = any(name.endswith("ssm_in.bias") for name in tensors)
    return {
        "mamba_d_ssm": inner,
        "mamba_d_head": inner // heads,
        "mamba_rms_norm": normed,
        "mamba_norm_before_gate": not normed,
        "mamba_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in tensors),
        "mamba_proj_bias": biased,
        "projectors_bias": biased,
        # The converter multiplies the weights by all factors.
    }


_NEMOTRON = Architecture(
    model_type="nemotron_h",
    keys={
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "attention.layer_norm_epsilon": "",
        "ssm.conv_kernel": "conv_kernel",
        "ssm.state_size": "ssm_state_size",
        "ssm.group_count": "n_groups",
        "ssm.time_step_rank": "mamba_num_heads",
        "ssm.inner_size": "",
    },
    fields=_nemotron,
    names={
        "delta_shifts": "mixer.dt_proj.bias",
        "correction": "mixer.gate.e_score_correction.bias",
        "expert_gate_up": ("mlp.experts.{}.up_proj",),
        "expert_down": "mlp.experts.{}.down_proj",
        "shared_gate_up": ("mixer.shared_experts.up_proj",),
        "shared_down": "mixer.shared_experts.down_proj",
    },
    needed="block_count attention.head_count_kv feed_forward_length ssm.conv_kernel ssm.state_size ssm.group_count "
    "ssm.time_step_rank ssm.inner_size",
    rotated=False,
    partial=True,
    biases=False,
)

_DELTA = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": "",
    "attention.recurrent_layers": "",
    "full_attention_interval": "",
}
_DELTA_EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    **WIDTH,
}
_DELTA_NAMES = {
    "delta": (
        "linear_attn.in_proj_qkv",
        "linear_attn.in_proj_z",
        "linear_attn.in_proj_b",
        "linear_attn.in_proj_a",
    ),
    "delta_shifts": "linear_attn.dt_proj.bias",
}
_DELTA_NEEDED = "block_count ssm.conv_kernel ssm.state_size ssm.group_count ssm.time_step_rank ssm.inner_size"

ARCHITECTURES = {
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": replace(
        _NEMOTRON,
        keys={
            **_NEMOTRON.keys,
            **ROUTED,
            "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        },
        gating=SIGMOID,
        needed=f"{_NEMOTRON.needed} expert_count expert_used_count expert_feed_forward_length",
    ),
    "jamba": Architecture(
        model_type="jamba",
        keys={
            "expert_count": "",
            "expert_used_count": "num_experts_per_tok",
            "ssm.conv_kernel": "mamba_d_conv",
            "ssm.state_size": "mamba_d_state",
            "ssm.time_step_rank": "mamba_dt_rank",
            "ssm.inner_size": "",
        },
        fields=_jamba,
        needed="attention.head_count_kv feed_forward_length expert_count expert_used_count ssm.conv_kernel "
        "ssm.state_size ssm.time_step_rank ssm.inner_size",
        rotated=False,
        biases=False,
    ),
    "falcon-h1": Architecture(
        model_type="falcon_h1",
        keys={
            "ssm.conv_kernel": "mamba_d_conv",
            "ssm.state_size": "mamba_d_state",
            "ssm.group_count": "mamba_n_groups",
            "ssm.time_step_rank": "mamba_n_heads",
            "ssm.inner_size": "",
        },
        fields=_falcon,
        names={"delta_shifts": "mamba.dt_proj.bias", "before_feed_forward": "pre_feedforward_layernorm"},
        needed="feed_forward_length ssm.conv_kernel ssm.state_size ssm.group_count ssm.time_step_rank ssm.inner_size",
    ),
    "granitehybrid": Architecture(
        model_type="granitemoehybrid",
        keys={
            **EXPERTS,
            **GRANITE,
            "expert_shared_feed_forward_length": "",
            "ssm.conv_kernel": "mamba_d_conv",
            "ssm.state_size": "mamba_d_state",
            "ssm.group_count": "mamba_n_groups",
            "ssm.time_step_rank": "mamba_n_heads",
            "ssm.inner_size": "",
        },
        fields=_granite,
        names={"delta_shifts": "mamba.dt_proj.bias"},
        needed="attention.head_count_kv feed_forward_length ssm.conv_kernel ssm.state_size ssm.group_count "
        "ssm.time_step_rank ssm.inner_size",
        interleaved=True,
    ),
    "qwen3next": Architecture(
        model_type="qwen3_next",
        keys=_DELTA | _DELTA_EXPERTS,
        fields=_delta,
        names=_DELTA_NAMES | {"delta": (*_DELTA_NAMES["delta"][:2], "linear_attn.in_proj_ba")},
        needed=f"{_DELTA_NEEDED} expert_count expert_used_count",
        norms_with_offset=True,
        partial=True,
    ),
    "qwen35": Architecture(
        model_type="qwen3_5_text",
        keys=_DELTA | {"rope.dimension_sections": ""},
        fields=_qwen35,
        tiled=True,
        names=_DELTA_NAMES,
        needed=_DELTA_NEEDED,
        norms_with_offset=True,
        partial=True,
    ),
    "qwen35moe": Architecture(
        model_type="qwen3_5_moe_text",
        keys=_DELTA | _DELTA_EXPERTS | {"rope.dimension_sections": ""},
        fields=_qwen35,
        tiled=True,
        names=_DELTA_NAMES,
        needed=f"{_DELTA_NEEDED} expert_count expert_used_count",
        norms_with_offset=True,
        partial=True,
    ),
    "lfm2moe": Architecture(
        model_type="lfm2_moe",
        keys={
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "leading_dense_block_count": "num_dense_layers",
            "shortconv.l_cache": "conv_L_cache",
            "attention.layer_norm_rms_epsilon": "norm_eps",
            **WIDTH,
        },
        fields=_lfm2_moe,
        gating=SIGMOID,
        needed="attention.head_count_kv shortconv.l_cache",
        biases=False,
    ),
    "lfm2": Architecture(
        model_type="lfm2",
        keys={"shortconv.l_cache": "conv_L_cache", "attention.layer_norm_rms_epsilon": "norm_eps"},
        fields=_lfm2,
        needed="attention.head_count_kv shortconv.l_cache",
        biases=False,
    ),
}

"""Gemma."""

from __future__ import annotations

from typing import Any

from plumbline.engines.native.models.families.parts import FULL, SLIDING
from plumbline.engines.native.models.gguf.architectures.parts import (
    WIDTH,
    Architecture,
    Keys,
    Tensors,
    layers_with_windows,
    rope,
)

__all__ = ["ARCHITECTURES"]

_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "",
}


def _gemma2(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": _query_scalar(keys, layers_of_largest=46),
        # The first files have no window.
        "sliding_window": keys.get("attention.sliding_window", 4096),
        **layers_with_windows(keys, tensors),
    }


def _gemma3(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    # Only layers without a window are scaled. Files of the first converters have no base for the others.
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10000.0)}
    return {
        "query_pre_attn_scalar": _query_scalar(keys, layers_of_largest=62),
        "rope_parameters": {FULL: rope(keys), SLIDING: local},
        **layers_with_windows(keys, tensors),
    }


def _query_scalar(keys: Keys, layers_of_largest: int) -> int:
    """Return what scores are divided by the root of: head_dim, in the model of 27B the row divided by its heads."""
    if keys.get("block_count") == layers_of_largest:
        return int(keys["embedding_length"] // keys["attention.head_count"])
    return int(keys["attention.key_length"])


def _gemma4(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    slides, widths, key_heads = (
        keys["attention.sliding_window_pattern"],
        keys["feed_forward_length"],
        keys["attention.head_count_kv"],
    )
    found: dict[str, Any] = {
        "layer_types": [SLIDING if each else FULL for each in slides],
        "rope_parameters": {
            # The divisors of these rotations are in the file (`FACTORS`), but they follow from this part.
            FULL: {**rope(keys), "rope_type": "proportional", "partial_rotary_factor": 0.25},
            SLIDING: {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10000.0)},
        },
        "enable_moe_block": bool(keys.get("expert_count")),
        # Keys are values where the file has none.
        "attention_k_eq_v": any(
            f"blk.{layer}.attn_k.weight" in tensors and f"blk.{layer}.attn_v.weight" not in tensors
            for layer in range(len(slides))
        ),
    }
    if isinstance(widths, list):
        found |= {"intermediate_size": widths[0], "use_double_wide_mlp": len({*widths}) > 1}
    if isinstance(key_heads, list):
        by_kind = {bool(each): number for each, number in zip(slides, key_heads, strict=True)}
        found["num_key_value_heads"] = by_kind[True]
        if (of_full := by_kind.get(False)) != by_kind[True]:
            found["num_global_key_value_heads"] = of_full
    return found


ARCHITECTURES = {
    "gemma4": Architecture(
        model_type="gemma4_text",
        keys={
            "attention.key_length": "global_head_dim",
            "attention.key_length_swa": "head_dim",
            "attention.value_length_swa": "",
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "",
            "attention.shared_kv_layers": "num_kv_shared_layers",
            "embedding_length_per_layer_input": "hidden_size_per_layer_input",
            "final_logit_softcapping": "final_logit_softcapping",
            "expert_count": "num_experts",
            "expert_used_count": "top_k_experts",
            "rope.freq_base_swa": "",
            "rope.dimension_count_swa": "",
            **WIDTH,
        },
        fields=_gemma4,
        names={
            "router_scale": "router.proj.scale",
            "router_factors": "mlp.experts.down_proj.scale",
            "scale": "layer_scalar.weight",
        },
        needed="attention.key_length attention.key_length_swa attention.sliding_window_pattern feed_forward_length "
        "attention.head_count_kv",
    ),
    "gemma": Architecture(model_type="gemma", norms_with_offset=True),
    "gemma2": Architecture(
        model_type="gemma2",
        keys=_CAPS,
        fields=_gemma2,
        norms_with_offset=True,
        needed="attention.key_length",
    ),
    "gemma3": Architecture(
        model_type="gemma3_text",
        keys={**_CAPS, "rope.freq_base_swa": ""},
        fields=_gemma3,
        norms_with_offset=True,
        needed="attention.key_length attention.sliding_window",
    ),
}

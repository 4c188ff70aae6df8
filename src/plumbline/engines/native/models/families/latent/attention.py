"""Read the latent attention of DeepSeek V2 and V3, which several families have."""

from __future__ import annotations

import math

from plumbline.engines.native.models.description import Latent, UnsupportedModelError
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["as_released", "latent_attention", "latent_mixers"]


def latent_attention(fields: Fields, *, interleaved: bool = True) -> Latent:
    """Read the attention, which all layers have; it rotates neighbours where the config does not say otherwise."""
    # Derived from other fields.
    fields.without_effect("head_dim", "qk_head_dim", "num_key_value_heads", "num_local_experts")
    rope = read_rope(fields, interleaved=fields.flag("rope_interleave", interleaved))
    key_dim, rope_dim = fields.integer("qk_nope_head_dim", 128), fields.integer("qk_rope_head_dim", 64)
    scale = (key_dim + rope_dim) ** -0.5
    if rope.mscale_all_dim and rope.factor > 1:
        scale *= (0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1) ** 2
    return Latent(
        heads=fields.integer("num_attention_heads"),
        rank=fields.integer("kv_lora_rank", 512),
        key_dim=key_dim,
        rope_dim=rope_dim,
        value_dim=fields.integer("v_head_dim", 128),
        rope=rope,
        scale=scale,
        query_rank=fields.optional("q_lora_rank"),
        bias=fields.flag("attention_bias"),
    )


def latent_mixers(fields: Fields) -> list[Latent]:
    """Read the mixer of each layer."""
    return [latent_attention(fields)] * fields.integer("num_hidden_layers")


def as_released(fields: Fields, **expected: object) -> None:
    """Accept further fields of released configs, with the values that describe what transformers computes."""
    fields.without_effect("aux_loss_alpha", "seq_aux", "ep_size", "topk_method", *expected)
    for name, value in expected.items():
        if fields.get(name, value) != value:
            raise UnsupportedModelError(f"{name} must be {value!r}, not {fields.get(name)!r}")

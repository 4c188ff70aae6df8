"""Hunyuan 3: the attention of Qwen 3, experts with a correction beside a shared one."""

from __future__ import annotations

from dataclasses import replace

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    Experts,
    HeadNorm,
    ModelDescription,
    Router,
)
from plumbline.engines.native.models.families.parts import (
    Family,
    attention_bias,
    dense,
    heads,
    model,
    rms,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.families.routed import layers_by_type, next_token_layers
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _hy3(fields: Fields) -> ModelDescription:
    fields.refuse("mlp_bias")
    # It changes the precision of a sum, which is fp32 here.
    fields.without_effect("enable_moe_fp32_combine")
    mixer = Attention(
        **heads(fields, 128),
        rope=read_rope(fields, 11158840.0),
        head_norm=HeadNorm(),
        **attention_bias(fields),
    )
    width, shared = fields.integer("moe_intermediate_size"), fields.integer("num_shared_experts", 1)
    experts = Experts(
        number=fields.integer("num_experts", 192),
        width=width,
        router=Router(
            top_k=fields.integer("num_experts_per_tok", 8),
            scores="sigmoid",
            correction=True,
            scale=fields.number("router_scaling_factor", 2.826),
        ),
        activation=fields.activation(),
        shared=Dense(width=width * shared, activation=fields.activation()),
    )
    mixers = [mixer] * fields.integer("num_hidden_layers")
    layers = layers_by_type(fields, mixers, dense(fields), experts, fields.get("first_k_dense_replace", 1))
    names = replace(
        next_token_layers(fields, 1),
        router="mlp.router.gate",
        correction="mlp.expert_bias",
        shared_gate_up=("mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"),
        shared_down="mlp.shared_mlp.down_proj",
    )
    return model(fields, layers, rms(fields), names=names)


FAMILIES = {"hy_v3": Family("Hunyuan 3", _hy3)}

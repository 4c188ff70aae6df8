"""Arcee Trinity: gated attention, which rotates inside of windows only, and norms before and after each block."""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    Experts,
    HeadNorm,
    LayerDescription,
    ModelDescription,
    Router,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.parts import (
    SLIDING,
    Family,
    dense,
    every,
    heads,
    layer_types,
    model,
    rms,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_NAMES = Names(
    attention_gate="self_attn.gate_proj",
    before_feed_forward="pre_mlp_layernorm",
    after_feed_forward="post_mlp_layernorm",
    router="mlp.router.gate",
    correction="mlp.expert_bias",
)


def _afmoe(fields: Fields) -> ModelDescription:
    fields.refuse("attention_bias")
    # Released configs have these fields; transformers always computes what these values describe.
    fields.without_effect(
        "load_balance_coeff num_expert_groups num_limited_groups use_grouped_mm n_group topk_group"
    )
    if fields.get("score_func", "sigmoid") != "sigmoid" or not fields.flag("route_norm", True):
        raise UnsupportedModelError("score_func must be sigmoid, and route_norm true")
    types = layer_types(fields, every(fields, fields.integer("global_attn_every_n_layers", 4)))
    shape, rope = heads(fields, 128), read_rope(fields)
    plain, experts = dense(fields), _experts(fields)
    first = fields.get("num_dense_layers", 1)
    layers = [
        LayerDescription(
            mixer=Attention(
                **shape,
                rope=rope if kind == SLIDING else None,
                head_norm=HeadNorm(),
                window=window,
                gated=True,
            ),
            feed_forward=plain if layer < first else experts,
            norms="both",
        )
        for layer, (kind, window) in enumerate(zip(types, windows(fields, types), strict=True))
    ]
    scale = fields.integer("hidden_size") ** 0.5 if fields.flag("mup_enabled") else 1.0
    return model(fields, layers, rms(fields), embedding_scale=scale, names=_NAMES)


def _experts(fields: Fields) -> Experts:
    width, shared = fields.integer("moe_intermediate_size"), fields.get("num_shared_experts", 2)
    return Experts(
        number=fields.integer("num_experts", 64),
        width=width,
        router=Router(
            top_k=fields.integer("num_experts_per_tok", 6),
            scores="sigmoid",
            correction=True,
            scale=fields.number("route_scale", 1.0),
        ),
        activation=fields.activation(),
        shared=Dense(width=width * shared, activation=fields.activation()) if shared else None,
    )


FAMILIES = {"afmoe": Family("Arcee Trinity", _afmoe)}

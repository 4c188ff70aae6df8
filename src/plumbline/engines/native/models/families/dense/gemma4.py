"""Gemma 4, text and dense: wider heads in layers with full attention, norms of values, a factor after each layer."""

from __future__ import annotations

from typing import Any

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    HeadNorm,
    LayerDescription,
    ModelDescription,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.dense.gemma import AROUND
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    every,
    layer_types,
    model,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]

_ROPES: dict[str, dict[str, Any]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    FULL: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
}
"""The rotations of a config that has none."""


def _gemma4(fields: Fields) -> ModelDescription:
    # Embeddings for each layer, layers that share a cache, and experts are parts of other sizes of Gemma 4.
    for name, default in (
        ("hidden_size_per_layer_input", 256),
        ("num_kv_shared_layers", 0),
        ("enable_moe_block", False),
        ("use_bidirectional_attention", None),
    ):
        if value := fields.get(name, default):
            raise UnsupportedModelError(f"{name} {value!r} is not supported")
    fields.without_effect(
        "vocab_size_per_layer_input use_double_wide_mlp num_experts top_k_experts moe_intermediate_size"
    )
    types = list(layer_types(fields, every(fields, 6)))
    types[-1] = FULL
    activation = fields.activation("hidden_activation", "gelu_pytorch_tanh")
    feed_forward = Dense(width=fields.integer("intermediate_size"), activation=activation)
    layers = (
        LayerDescription(mixer=mixer, feed_forward=feed_forward, norms="both", scaled=True)
        for mixer in _mixers(fields, types)
    )
    cap = fields.get("final_logit_softcapping")
    scale = fields.integer("hidden_size") ** 0.5
    return model(fields, layers, tied=True, embedding_scale=scale, logits_softcap=cap, names=AROUND)


def _mixers(fields: Fields, types: list[str]) -> list[Attention]:
    ropes = {**_ROPES, **(fields.get("rope_parameters") or {})}
    rotations = {kind: read_rope(fields, parameters=ropes[kind], part=1.0) for kind in (FULL, SLIDING)}
    bias, shares = fields.flag("attention_bias"), fields.flag("attention_k_eq_v")
    kv_heads = fields.integer("num_key_value_heads", 4)
    wide = {"head_dim": fields.integer("global_head_dim", 512)}
    if shares and fields.get("num_global_key_value_heads"):
        wide["num_key_value_heads"] = fields.integer("num_global_key_value_heads")
    by_default = {str(layer): wide for layer, kind in enumerate(types) if kind == FULL}
    own = {int(layer): changes for layer, changes in fields.get("per_layer_config", by_default).items()}
    mixers = []
    for layer, (kind, window) in enumerate(zip(types, windows(fields, types), strict=True)):
        changes = Fields({"num_key_value_heads": kv_heads, **own.get(layer, {})})
        head_dim = changes.integer("head_dim", fields.integer("head_dim", 256))
        layer_kv_heads = changes.integer("num_key_value_heads")
        changes.finish()
        mixers.append(
            Attention(
                heads=fields.integer("num_attention_heads"),
                kv_heads=layer_kv_heads,
                head_dim=head_dim,
                rope=rotations[kind],
                qkv_bias=bias,
                o_bias=bias,
                head_norm=HeadNorm(),
                value_norm=True,
                values_are_keys=shares and kind == FULL,
                window=window,
                scores_scale=1.0,
            )
        )
    return mixers


FAMILIES = {"gemma4_text": Family("Gemma 4 dense (text)", _gemma4)}

"""Read the blocks of Gemma 4: attention that is wider in some layers, layers without keys, experts beside a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    Experts,
    HeadNorm,
    Router,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.parts import FULL, SLIDING, HeadShape, attention_bias, windows
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["feed_forwards", "layers_with_keys", "mixers"]

_ROPES: dict[str, dict[str, Any]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    FULL: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
}
"""The rotations of a config that has none."""


def layers_with_keys(fields: Fields, types: Sequence[str]) -> int:
    """Return how many layers have keys of their own; those after them attend to keys of earlier layers.

    Raises:
        UnsupportedModelError: a type of layers has no layer with keys.
    """
    shared = fields.get("num_kv_shared_layers", 0)
    own: int = len(types) - shared
    if shared < 0:
        raise UnsupportedModelError(f"num_kv_shared_layers must not be negative, got {shared}")
    if missing := {*types} - {*types[:own]}:
        raise UnsupportedModelError(f"num_kv_shared_layers leaves no layer of {sorted(missing)} with keys")
    return own


def feed_forwards(fields: Fields, *, shares_keys: bool) -> tuple[Dense | Experts, Dense | Experts]:
    """Return the feed-forward block of layers with keys of their own, and of those without.

    Raises:
        UnsupportedModelError: the fields of experts do not fit.
    """
    dense = Dense(
        width=fields.integer("intermediate_size"),
        activation=fields.activation("hidden_activation", "gelu_pytorch_tanh"),
    )
    is_wider = fields.flag("use_double_wide_mlp")
    if not fields.flag("enable_moe_block"):
        fields.without_effect("num_experts top_k_experts moe_intermediate_size")
        return dense, replace(dense, width=2 * dense.width) if is_wider else dense
    number, top_k = fields.integer("num_experts"), fields.integer("top_k_experts")
    if top_k > number:
        raise UnsupportedModelError("top_k_experts must be at most num_experts")
    experts = Experts(
        number=number,
        width=fields.integer("moe_intermediate_size"),
        router=Router(top_k=top_k, by_expert=True),
        activation=dense.activation,
        shared=dense,
        has_norms=True,
    )
    if is_wider and shares_keys:
        raise UnsupportedModelError("use_double_wide_mlp with experts is not supported")
    return experts, experts


def mixers(fields: Fields, types: Sequence[str], own: int) -> list[Attention]:
    """Read the mixer of each layer; those from layer `own` on attend to keys of the last one of their type before."""
    ropes = {**_ROPES, **(fields.get("rope_parameters") or {})}
    rotations = {kind: read_rope(fields, parameters=ropes[kind], part=1.0) for kind in (FULL, SLIDING)}
    bias, shares = attention_bias(fields), fields.flag("attention_k_eq_v")
    shapes = _shapes(fields, types, with_kv_heads=shares)
    return [
        Attention(
            **shape,
            **bias,
            rope=rotations[kind],
            head_norm=HeadNorm(),
            value_norm=layer < own,
            values_are_keys=layer < own and shares and kind == FULL,
            window=window,
            causal=kind == FULL,
            scores_scale=1.0,
            keys_of=None if layer < own else own - 1 - types[:own][::-1].index(kind),
        )
        for layer, (kind, window, shape) in enumerate(zip(types, windows(fields, types), shapes, strict=True))
    ]


def _shapes(fields: Fields, types: Sequence[str], *, with_kv_heads: bool) -> list[HeadShape]:
    """Read the shape of each layer's attention: `per_layer_config`, or the fields of layers with full attention."""
    number, kv_heads = fields.integer("num_attention_heads"), fields.integer("num_key_value_heads", 4)
    head_dim = fields.integer("head_dim", 256)
    wide = {"head_dim": fields.integer("global_head_dim", 512)}
    if with_kv_heads and fields.get("num_global_key_value_heads"):
        wide["num_key_value_heads"] = fields.integer("num_global_key_value_heads")
    by_default = {str(layer): wide for layer, kind in enumerate(types) if kind == FULL}
    special = {int(layer): changes for layer, changes in fields.get("per_layer_config", by_default).items()}
    shapes: list[HeadShape] = []
    for layer in range(len(types)):
        shape = Fields({"num_key_value_heads": kv_heads, **special.get(layer, {})})
        width, key_heads = shape.integer("head_dim", head_dim), shape.integer("num_key_value_heads")
        shape.finish()
        shapes.append({"heads": number, "kv_heads": key_heads, "head_dim": width})
    return shapes

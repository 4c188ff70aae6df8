"""Granite, dense: factors on embeddings, scores, residuals and logits; sinks and windows in its SWA models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plumbline.engines.native.models.description import (
    Attention,
    LayerDescription,
    ModelDescription,
    Norm,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.parts import (
    FULL,
    Family,
    alike,
    attention_bias,
    dense,
    every,
    heads,
    layer_types,
    model,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES", "factors", "granite_mixer", "swa_mixers"]


def granite_mixer(fields: Fields) -> Attention:
    """Read the attention, with its own factor on scores."""
    scale = fields.number("attention_multiplier", 1.0)
    return Attention(**heads(fields), rope=read_rope(fields), scores_scale=scale, **attention_bias(fields))


def factors(fields: Fields) -> dict[str, Any]:
    """Read the factors of a model."""
    return {
        "embedding_scale": fields.number("embedding_multiplier", 1.0),
        "residual_scale": fields.number("residual_multiplier", 1.0),
        "logits_scale": 1 / fields.number("logits_scaling", 1.0),
    }


def _granite(fields: Fields) -> ModelDescription:
    feed_forward = dense(fields, bias=fields.flag("mlp_bias"))
    return model(fields, alike(fields, granite_mixer(fields), feed_forward), **factors(fields))


def swa_mixers(fields: Fields) -> list[Attention]:
    """Read the attention of each layer: sinks, windows, and a base of its own for the rotation."""
    mixer = replace(granite_mixer(fields), sinks=True)
    types = layer_types(fields, every(fields, 4, first=True))
    count = len(types)
    assert mixer.rope is not None
    thetas = fields.get("layer_rope_theta", [mixer.rope.theta] * count)
    return [
        # A layer with a base of 0 or null is not rotated.
        replace(mixer, window=window, rope=replace(mixer.rope, theta=float(theta)) if theta else None)
        for window, theta in zip(windows(fields, types), thetas, strict=True)
    ]


def _granite_swa(fields: Fields) -> ModelDescription:
    feed_forward = dense(fields, bias=fields.flag("mlp_bias"))
    layers = (LayerDescription(mixer=mixer, feed_forward=feed_forward) for mixer in swa_mixers(fields))
    norm = Norm(eps=fields.number("rms_norm_eps", 1e-5))
    return model(fields, layers, norm, tied=True, **factors(fields))


def _granite_hybrid(fields: Fields) -> ModelDescription:
    """Granite 4 without state-space layers and experts, such as Micro."""
    # What configs of this type have for the layers and experts that this model does without.
    fields.without_effect(_STATE_SPACE, "num_experts_per_tok", "intermediate_size")
    types = fields.get("layer_types", fields.get("layers_block_type", []))
    if unknown := set(types or ["linear_attention"]) - {FULL, "attention"}:
        raise UnsupportedModelError(f"layer_types {sorted(unknown)} are not supported")
    if experts := fields.get("num_local_experts", 8):
        raise UnsupportedModelError(f"num_local_experts {experts!r} is not supported (0 is)")
    position = fields.get("position_embedding_type")
    if position not in (None, "rope", "nope"):
        raise UnsupportedModelError(f"position_embedding_type {position!r} is not supported (rope is)")
    mixer = granite_mixer(fields)
    mixer = mixer if position == "rope" else replace(mixer, rope=None)
    feed_forward = dense(fields, width="shared_intermediate_size")
    names = Names(gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear")
    return model(fields, alike(fields, mixer, feed_forward), names=names, **factors(fields))


_STATE_SPACE = (
    "mamba_chunk_size mamba_conv_bias mamba_d_conv mamba_d_head mamba_d_state mamba_expand mamba_n_groups "
    "mamba_n_heads mamba_proj_bias time_step_limit time_step_min time_step_max time_step_floor init_method "
    "normalization_function rope_theta"
)

FAMILIES = {
    "granite": Family("Granite 3 dense", _granite),
    "granite_swa": Family("Granite SWA", _granite_swa),
    "granitemoehybrid": Family("Granite 4 dense", _granite_hybrid),
}

"""Granite, dense: factors on embeddings, scores, residuals and logits; sinks and windows in its SWA models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plumbline.engines.native.models.description import Attention, ModelDescription, Placement
from plumbline.engines.native.models.families.parts import (
    Family,
    alike,
    attention_bias,
    dense,
    every,
    heads,
    layer_types,
    model,
    rms,
    stack,
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
    layers = stack(swa_mixers(fields), feed_forward)
    norm = rms(fields)
    return model(fields, layers, norm, tied=True, **factors(fields))


def _hyperclovax(fields: Fields) -> ModelDescription:
    shape = heads(fields)
    scale = fields.number("attention_multiplier", shape["head_dim"] ** -0.5)
    mixer = Attention(**shape, rope=read_rope(fields), scores_scale=scale, **attention_bias(fields))
    norms: Placement = "both" if fields.flag("use_post_norm", True) else "before"
    layers = alike(fields, mixer, dense(fields, bias=fields.flag("mlp_bias")), norms)
    names = Names(after_mixer="post_norm1", after_feed_forward="post_norm2")
    changes = {**factors(fields), "logits_scale": fields.number("logits_scaling", 1.0)}
    return model(fields, layers, names=names, **changes)


FAMILIES = {
    "granite": Family("Granite 3 dense", _granite),
    "hyperclovax": Family("HyperCLOVA X SEED", _hyperclovax),
    "granite_swa": Family("Granite SWA", _granite_swa),
}

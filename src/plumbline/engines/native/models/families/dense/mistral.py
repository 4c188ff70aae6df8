"""Mistral and Ministral, dense."""

from __future__ import annotations

from collections.abc import Iterable

from plumbline.engines.native.models.description import Attention, LayerDescription, ModelDescription, Norm
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    alike,
    dense,
    every,
    heads,
    layer_types,
    model,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _mistral(fields: Fields) -> ModelDescription:
    fields.refuse("attention_bias", "mlp_bias")
    mixer = Attention(**heads(fields), rope=read_rope(fields), window=fields.get("sliding_window"))
    return model(fields, alike(fields, mixer, dense(fields)))


def _ministral(fields: Fields) -> ModelDescription:
    slides = fields.get("sliding_window") is not None
    types = [SLIDING if slides else FULL] * fields.integer("num_hidden_layers")
    return _by_type(fields, types, 10000.0)


def _cwm(fields: Fields) -> ModelDescription:
    fields.without_effect("attention_bias")
    return _by_type(
        fields, every(fields, 4, first=True), 1000000.0, Norm(eps=fields.number("rms_norm_eps", 1e-5))
    )


def _by_type(
    fields: Fields, types: Iterable[str], theta: float, norm: Norm | None = None
) -> ModelDescription:
    """Describe a model with windows by `layer_types`; `types` are those of a config that has none."""
    rope, shape = read_rope(fields, theta), heads(fields, head_dim=128)
    feed_forward = dense(fields, bias=fields.flag("mlp_bias"))
    layers = (
        LayerDescription(mixer=Attention(**shape, rope=rope, window=window), feed_forward=feed_forward)
        for window in windows(fields, layer_types(fields, types))
    )
    return model(fields, layers, norm)


def _ministral3(fields: Fields) -> ModelDescription:
    fields.refuse("attention_bias", "mlp_bias")
    # The parameters repeat the context length.
    own = frozenset({"llama_4_scaling_beta", "max_position_embeddings"})
    parameters = {**_YARN, **(fields.get("rope_parameters") or {})}
    parameters.pop("max_position_embeddings", None)
    rope = read_rope(fields, 1000000.0, parameters=parameters, further=own)
    mixer = Attention(**heads(fields, head_dim=128), rope=rope, window=fields.get("sliding_window"))
    return model(fields, alike(fields, mixer, dense(fields)), Norm(eps=fields.number("rms_norm_eps", 1e-5)))


_YARN = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""The rotation of a config that has none."""

FAMILIES = {
    "mistral": Family("Mistral 7B, Nemo, Small 3 (text)", _mistral),
    "ministral": Family("Ministral 8B", _ministral),
    "cwm": Family("Code World Model", _cwm),
    "ministral3": Family("Ministral 3 (text)", _ministral3),
}

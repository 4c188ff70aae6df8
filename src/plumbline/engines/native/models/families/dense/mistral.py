"""Mistral, dense, and Code World Model: one window for all layers, or windows by layer."""

from __future__ import annotations

from collections.abc import Iterable

from plumbline.engines.native.models.description import Attention, LayerDescription, ModelDescription
from plumbline.engines.native.models.families.parts import (
    Family,
    Wrapped,
    alike,
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

__all__ = ["FAMILIES", "windowed_layers"]

_MISTRAL3 = Wrapped(
    "mistral3",
    "Mistral Small 3.1 and 3.2, Ministral 3, with images by Pixtral's tower",
    {
        "head_dim": 128,
        "hidden_size": 5120,
        "intermediate_size": 32768,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 40,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000000.0,
        "vocab_size": 131072,
    },
)


def _mistral(fields: Fields) -> ModelDescription:
    fields.refuse("attention_bias", "mlp_bias")
    # Pixtral 12B leaves the number of heads out.
    mixer = Attention(
        **heads(fields, number=32), rope=read_rope(fields), window=fields.optional("sliding_window")
    )
    return model(fields, alike(fields, mixer, dense(fields)))


def _cwm(fields: Fields) -> ModelDescription:
    fields.without_effect("attention_bias")
    norm = rms(fields)
    return model(fields, windowed_layers(fields, every(fields, 4, first=True), 1000000.0), norm)


def windowed_layers(fields: Fields, types: Iterable[str], theta: float) -> tuple[LayerDescription, ...]:
    """Return layers with windows by `layer_types`; `types` and `theta` are those of a config that has none."""
    rope, shape = read_rope(fields, theta), heads(fields, head_dim=128)
    feed_forward = dense(fields, bias=fields.flag("mlp_bias"))
    found = windows(fields, layer_types(fields, types))
    return stack((Attention(**shape, rope=rope, window=window) for window in found), feed_forward)


FAMILIES = {
    "mistral": Family("Mistral 7B, Nemo, Small 3 (text)", _mistral, _MISTRAL3),
    "cwm": Family("Code World Model", _cwm),
}

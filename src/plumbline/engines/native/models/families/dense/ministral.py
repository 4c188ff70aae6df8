"""Ministral: windows by layer in Ministral 8B, temperatures of queries by position in Ministral 3."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, ModelDescription
from plumbline.engines.native.models.families.dense.mistral import windowed_layers
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    alike,
    dense,
    heads,
    model,
    rms,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]

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


def _ministral(fields: Fields) -> ModelDescription:
    slides = fields.get("sliding_window") is not None
    types = [SLIDING if slides else FULL] * fields.integer("num_hidden_layers")
    return model(fields, windowed_layers(fields, types, 10000.0))


def _ministral3(fields: Fields) -> ModelDescription:
    fields.refuse("attention_bias", "mlp_bias")
    # The parameters repeat the context length.
    own = frozenset({"llama_4_scaling_beta", "max_position_embeddings"})
    parameters = {**_YARN, **(fields.get("rope_parameters") or {})}
    parameters.pop("max_position_embeddings", None)
    rope = read_rope(fields, 1000000.0, parameters=parameters, further=own)
    mixer = Attention(**heads(fields, head_dim=128), rope=rope, window=fields.optional("sliding_window"))
    return model(fields, alike(fields, mixer, dense(fields)), rms(fields))


FAMILIES = {
    "ministral": Family("Ministral 8B", _ministral),
    "ministral3": Family("Ministral 3 (text)", _ministral3),
}

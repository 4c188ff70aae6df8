"""Mistral and Ministral, dense."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, ModelDescription, Norm
from plumbline.engines.native.models.families.parts import Family, alike, dense, heads, model
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _mistral(fields: Fields) -> ModelDescription:
    fields.refuse("attention_bias", "mlp_bias")
    mixer = Attention(**heads(fields), rope=read_rope(fields), window=fields.get("sliding_window"))
    return model(fields, alike(fields, mixer, dense(fields)))


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
    "ministral3": Family("Ministral 3 (text)", _ministral3),
}

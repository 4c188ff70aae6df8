"""Youtu-LLM: the latent attention of DeepSeek V3, dense."""

from __future__ import annotations

from plumbline.engines.native.models.description import ModelDescription
from plumbline.engines.native.models.families.latent.attention import latent_attention
from plumbline.engines.native.models.families.parts import Family, alike, dense, model
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _youtu(fields: Fields) -> ModelDescription:
    fields.without_effect("embedding_initializer_range", "mlp_bias")
    return model(fields, alike(fields, latent_attention(fields), dense(fields)), tied=True)


FAMILIES = {"youtu": Family("Youtu-LLM", _youtu)}

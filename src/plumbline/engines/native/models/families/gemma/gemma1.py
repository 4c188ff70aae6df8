"""Gemma 1: scaled embeddings, weights of norms around 0."""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    ModelDescription,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.gemma.models import gemma_model
from plumbline.engines.native.models.families.parts import Family, alike, attention_bias, heads
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _gemma(fields: Fields) -> ModelDescription:
    fields.refuse("use_bidirectional_attention")
    fields.without_effect("hidden_activation")
    act = fields.get("hidden_act", "gelu_pytorch_tanh")
    # Releases say "gelu", and mean its approximation with tanh.
    if act not in ("gelu", "gelu_pytorch_tanh"):
        raise UnsupportedModelError(f"hidden_act {act!r} is not supported (gelu_pytorch_tanh is)")
    mixer = Attention(**heads(fields, head_dim=256), rope=read_rope(fields), **attention_bias(fields))
    feed_forward = Dense(width=fields.integer("intermediate_size"), activation="gelu_tanh")
    return gemma_model(fields, alike(fields, mixer, feed_forward))


FAMILIES = {"gemma": Family("Gemma 1", _gemma)}

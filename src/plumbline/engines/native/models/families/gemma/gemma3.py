"""Gemma 3, text: norms of heads, a rotation with a base of its own in layers with a window."""

from __future__ import annotations

from plumbline.engines.native.models.description import HeadNorm, ModelDescription
from plumbline.engines.native.models.families.gemma.models import windowed_model
from plumbline.engines.native.models.families.parts import FULL, SLIDING, Family, Wrapped, every, layer_types
from plumbline.engines.native.models.families.rope_fields import read_ropes, rope_theta
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]

_GEMMA3 = Wrapped(
    "gemma3",
    "Gemma 3 4B, 12B and 27B, with images by SigLIP",
    {
        "head_dim": 256,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "vocab_size": 262208,
    },
)


def _gemma3(fields: Fields) -> ModelDescription:
    pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    types = layer_types(fields, every(fields, pattern))
    local = fields.number("rope_local_base_freq", 10000.0)
    ropes = read_ropes(fields, {FULL: rope_theta(fields, 1000000.0), SLIDING: local})
    return windowed_model(fields, types, ropes, head_norm=HeadNorm())


FAMILIES = {"gemma3_text": Family("Gemma 3 (text)", _gemma3, _GEMMA3)}

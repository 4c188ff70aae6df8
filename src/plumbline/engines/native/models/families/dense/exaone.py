"""EXAONE 4: norms after each block, norms of heads, full attention without a rotation."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, HeadNorm, ModelDescription
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
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

__all__ = ["FAMILIES", "exaone_mixers"]


def exaone_mixers(fields: Fields) -> list[Attention]:
    """Read the attention of each layer."""
    pattern = fields.get("sliding_window_pattern", 4)
    slides = fields.get("sliding_window") is not None
    by_default = every(fields, pattern) if isinstance(pattern, int) and pattern else []
    types = layer_types(fields, by_default if slides else [FULL] * fields.integer("num_hidden_layers"))
    shape, rope = heads(fields), read_rope(fields)
    return [
        Attention(
            **shape,
            rope=rope if kind == SLIDING or not slides else None,
            head_norm=HeadNorm(),
            window=window,
        )
        for kind, window in zip(types, windows(fields, types), strict=True)
    ]


def _exaone4(fields: Fields) -> ModelDescription:
    feed_forward = dense(fields)
    return model(fields, stack(exaone_mixers(fields), feed_forward, "after"), rms(fields))


FAMILIES = {"exaone4": Family("EXAONE 4", _exaone4)}

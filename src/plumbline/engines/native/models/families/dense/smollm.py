"""SmolLM3: some layers are not rotated, and may have a window then."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, ModelDescription
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    attention_bias,
    dense,
    heads,
    layer_types,
    model,
    stack,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _smollm3(fields: Fields) -> ModelDescription:
    fields.without_effect("max_window_layers")
    count, interval = fields.integer("num_hidden_layers"), fields.integer("no_rope_layer_interval", 4)
    rotated = fields.get("no_rope_layers", [int((layer + 1) % interval != 0) for layer in range(count)])
    slides = fields.flag("use_sliding_window")
    types = layer_types(fields, (SLIDING if slides and not turns else FULL for turns in rotated))
    rope, bias = read_rope(fields, 2000000.0), attention_bias(fields)
    feed_forward = dense(fields, bias=fields.flag("mlp_bias"))
    mixers = (
        Attention(**heads(fields), rope=rope if turns else None, window=window if slides else None, **bias)
        for turns, window in zip(rotated, windows(fields, types), strict=True)
    )
    return model(fields, stack(mixers, feed_forward), tied=True)


FAMILIES = {"smollm3": Family("SmolLM3", _smollm3)}

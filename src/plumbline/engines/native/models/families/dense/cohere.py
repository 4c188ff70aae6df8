"""Command: layer norms, both blocks of a layer on the same input, a rotation of neighbours."""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Attention,
    HeadNorm,
    LayerDescription,
    ModelDescription,
    Norm,
)
from plumbline.engines.native.models.families.parts import (
    SLIDING,
    Family,
    alike,
    attention_bias,
    dense,
    every,
    heads,
    layer_types,
    model,
    stack,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _cohere(fields: Fields) -> ModelDescription:
    fields.without_effect("model_max_length")
    mixer = Attention(
        **heads(fields),
        rope=read_rope(fields, 500000.0, interleaved=True),
        head_norm=HeadNorm(weights="each") if fields.flag("use_qk_norm") else None,
        **attention_bias(fields),
    )
    return _model(fields, alike(fields, mixer, dense(fields), "parallel"))


def _cohere2(fields: Fields) -> ModelDescription:
    # Of earlier configs: transformers computes what they say for every model of this type.
    fields.without_effect(
        "order_of_interleaved_layers position_embedding_type rotary_pct use_embedding_sharing "
        "use_gated_activation use_parallel_block use_parallel_embedding layer_switch"
    )
    fields.refuse("use_qk_norm")
    types = layer_types(fields, every(fields, fields.integer("sliding_window_pattern", 4)))
    shape, rope, feed_forward = heads(fields), read_rope(fields, interleaved=True), dense(fields)
    bias = attention_bias(fields)
    mixers = (
        Attention(**shape, **bias, rope=rope if kind == SLIDING else None, window=window)
        for kind, window in zip(types, windows(fields, types), strict=True)
    )
    return _model(fields, stack(mixers, feed_forward, "parallel"))


def _model(fields: Fields, layers: tuple[LayerDescription, ...]) -> ModelDescription:
    norm = Norm(kind="layer", eps=fields.number("layer_norm_eps", 1e-5))
    return model(fields, layers, norm, tied=True, logits_scale=fields.number("logit_scale", 0.0625))


FAMILIES = {
    "cohere": Family("Command R, Aya", _cohere),
    "cohere2": Family("Command R7B, Command A", _cohere2),
}

"""OLMo: layer norms without weights, or norms after each block and of all query heads and all key heads together."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, HeadNorm, ModelDescription, Norm
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    alike,
    attention_bias,
    dense,
    every,
    heads,
    layer_types,
    model,
    rms,
    stack,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope, read_ropes, rope_theta
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]

_HEAD_NORM = HeadNorm(weights="each", whole=True)


def _olmo(fields: Fields) -> ModelDescription:
    clip = fields.get("clip_qkv")
    mixer = Attention(
        **heads(fields),
        rope=read_rope(fields),
        clip=None if clip is None else fields.number("clip_qkv", 0.0),
        **attention_bias(fields),
    )
    norm = Norm(kind="layer", eps=1e-5, weights=False)
    return model(fields, alike(fields, mixer, dense(fields)), norm)


def _olmo2(fields: Fields) -> ModelDescription:
    mixer = Attention(**heads(fields), rope=read_rope(fields), **attention_bias(fields), head_norm=_HEAD_NORM)
    return model(fields, alike(fields, mixer, dense(fields), "after"), rms(fields))


def _olmo3(fields: Fields) -> ModelDescription:
    theta = rope_theta(fields, 500000.0)
    ropes = read_ropes(fields, {FULL: theta, SLIDING: theta})
    shape, bias, feed_forward = heads(fields), attention_bias(fields), dense(fields)
    types = layer_types(fields, every(fields, 4))
    mixers = (
        Attention(**shape, rope=ropes[kind], **bias, head_norm=_HEAD_NORM, window=window)
        for kind, window in zip(types, windows(fields, types), strict=True)
    )
    return model(fields, stack(mixers, feed_forward, "after"), rms(fields))


FAMILIES = {
    "olmo": Family("OLMo 1", _olmo),
    "olmo2": Family("OLMo 2", _olmo2),
    "olmo3": Family("OLMo 3", _olmo3),
}

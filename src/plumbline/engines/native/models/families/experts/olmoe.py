"""OLMoE: 64 small experts, norms of all query heads and all key heads together."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, Experts, HeadNorm, ModelDescription, Router
from plumbline.engines.native.models.families.parts import Family, alike, attention_bias, heads, model, rms
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _olmoe(fields: Fields) -> ModelDescription:
    fields.refuse("clip_qkv")
    mixer = Attention(
        **heads(fields),
        rope=read_rope(fields),
        head_norm=HeadNorm(weights="each", whole=True),
        **attention_bias(fields),
    )
    return model(fields, alike(fields, mixer, _experts(fields, 64, 8)), rms(fields))


def _flex_olmo(fields: Fields) -> ModelDescription:
    mixer = Attention(
        **heads(fields),
        rope=read_rope(fields, 500000.0),
        head_norm=HeadNorm(weights="each", whole=True),
        **attention_bias(fields),
    )
    layers = alike(fields, mixer, _experts(fields, 7, 5), "after")
    return model(fields, layers)


def _experts(fields: Fields, number: int, top_k: int) -> Experts:
    return Experts(
        number=fields.integer("num_experts", number),
        width=fields.integer("intermediate_size"),
        router=Router(
            top_k=fields.integer("num_experts_per_tok", top_k), normalised=fields.flag("norm_topk_prob")
        ),
        activation=fields.activation(),
    )


FAMILIES = {
    "olmoe": Family("OLMoE", _olmoe),
    "flex_olmo": Family("FlexOlmo", _flex_olmo),
}

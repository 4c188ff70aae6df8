"""GPT-NeoX: both blocks of a layer read what the layer got, by norms of their own; a part of each head is rotated."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, ModelDescription, Placement
from plumbline.engines.native.models.families.parts import Family, alike, heads, layer_norm, model, ungated
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_NAMES = Names(
    base="gpt_neox.",
    embedding="gpt_neox.embed_in",
    norm="gpt_neox.final_layer_norm",
    head="embed_out",
    layer="gpt_neox.layers.{}.",
    qkv=("attention.query_key_value",),
    o="attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    ignored_ends=(".attention.bias", ".attention.masked_bias"),
)


def _neox(fields: Fields) -> ModelDescription:
    fields.rename({"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"})
    fields.without_effect("attention_probs_dropout_prob classifier_dropout hidden_dropout_prob")
    bias = fields.flag("attention_bias", True)
    mixer = Attention(
        **heads(fields),
        rope=read_rope(fields, part=0.25),
        layout="by_key_head",
        qkv_bias=bias,
        o_bias=bias,
    )
    norms: Placement = "parallel_two" if fields.flag("use_parallel_residual", True) else "before"
    layers = alike(fields, mixer, ungated(fields, "gelu", bias=True), norms)
    norm = layer_norm(fields)
    return model(fields, layers, norm, names=_NAMES)


FAMILIES = {"gpt_neox": Family("GPT-NeoX, Pythia, StableLM Alpha, RedPajama, Dolly 2", _neox)}

"""Falcon: one key head or few, both blocks of a layer on the same input or by norms of their own."""

from __future__ import annotations

from dataclasses import replace

from plumbline.engines.native.models.description import (
    Attention,
    ModelDescription,
    Placement,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.classic.gpt2 import four_times
from plumbline.engines.native.models.families.parts import Family, alike, layer_norm, model
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_NAMES = Names(
    base="transformer.",
    embedding="transformer.word_embeddings",
    norm="transformer.ln_f",
    layer="transformer.h.{}.",
    qkv=("self_attention.query_key_value",),
    o="self_attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
)
_TWO_NORMS = replace(_NAMES, before_mixer="ln_attn", before_feed_forward="ln_mlp")


def _falcon(fields: Fields) -> ModelDescription:
    fields.rename({"n_embed": "hidden_size", "ffn_hidden_size": "intermediate_size"})
    # Released configs have these fields; transformers ignores them.
    fields.without_effect("apply_residual_connection_post_layernorm ff_factor n_head n_layer")
    fields.refuse("alibi")
    fields.fill("max_position_embeddings", 2048)
    number, new = fields.integer("num_attention_heads"), fields.flag("new_decoder_architecture")
    parallel, two = (
        fields.flag("parallel_attn", True),
        fields.get("num_ln_in_parallel_attn", 2 if new else 1) == 2,
    )
    key_heads = fields.integer("num_kv_heads", number)
    if fields.flag("multi_query", True) and not new:
        key_heads = 1
    elif not new and key_heads != number:
        raise UnsupportedModelError("num_kv_heads must be that of heads without new_decoder_architecture")
    if (new != two and two) or (new and not parallel):
        raise UnsupportedModelError(
            "num_ln_in_parallel_attn 2 and new_decoder_architecture are supported together, and with parallel_attn"
        )
    bias = fields.flag("bias")
    mixer = Attention(
        heads=number,
        kv_heads=key_heads,
        head_dim=fields.integer("hidden_size") // number,
        rope=read_rope(fields),
        layout="by_key_head",
        qkv_bias=bias,
        o_bias=bias,
    )
    norms: Placement = "parallel_two" if two else "parallel" if parallel else "before"
    layers = alike(fields, mixer, four_times(fields, "gelu", "activation", bias=bias), norms)
    norm = layer_norm(fields, "layer_norm_epsilon")
    return model(fields, layers, norm, tied=True, names=_TWO_NORMS if two else _NAMES)


FAMILIES = {"falcon": Family("Falcon 7B, 40B and 180B, Falcon 2", _falcon)}

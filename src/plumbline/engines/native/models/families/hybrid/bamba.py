"""Bamba: state spaces of Mamba 2, and few layers of attention that rotates half of a head."""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Attention,
    LayerDescription,
    ModelDescription,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.hybrid.state_space import state_space, state_space_names
from plumbline.engines.native.models.families.parts import Family, attention_bias, dense, heads, model, rms
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_NAMES = Names(
    norm="model.final_layernorm",
    before_feed_forward="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    **state_space_names("mamba."),
)


def _bamba(fields: Fields) -> ModelDescription:
    fields.without_effect("mamba_chunk_size num_logits_to_keep z_loss_coefficient")
    count, attends = fields.integer("num_hidden_layers"), set(fields.get("attn_layer_indices", []))
    if not attends & set(range(count)):
        # The cache is counted in the bytes of a token, which would be none.
        raise UnsupportedModelError("attn_layer_indices must name a layer")
    attention = Attention(**heads(fields), **attention_bias(fields), rope=read_rope(fields, part=0.5))
    if fields.get("attn_rotary_emb", attention.head_dim // 2) != attention.head_dim // 2:
        raise UnsupportedModelError("attn_rotary_emb must be half of a head")
    net, block = state_space(fields), dense(fields, bias=fields.flag("mlp_bias"))
    layers = (
        LayerDescription(mixer=attention if layer in attends else net, feed_forward=block)
        for layer in range(count)
    )
    return model(fields, layers, rms(fields), names=_NAMES)


FAMILIES = {"bamba": Family("Bamba", _bamba)}

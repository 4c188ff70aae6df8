"""OPT, XGLM and BioGPT: positions with embeddings, the first of which have none of a token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plumbline.engines.native.models.description import (
    Attention,
    ModelDescription,
    Norm,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.classic.gpt2 import learned_positions
from plumbline.engines.native.models.families.parts import Family, alike, heads, model, ungated
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_WITHOUT_EFFECT = (
    "activation_dropout decoder_start_token_id dropout init_std layerdrop prefix scale_embedding layer_norm_eps "
    "attention_probs_dropout_prob hidden_dropout_prob"
)
"""Among them the eps of BioGPT, whose norms have another one."""
_OFFSET = 2
"""Rows of the table of positions before the first one."""


def _names(prefix: str, norm: str) -> Names:
    return Names(
        base=prefix.partition(".")[0] + ".",
        embedding=f"{prefix}embed_tokens",
        positions=f"{prefix}embed_positions",
        norm=f"{prefix}{norm}",
        layer=f"{prefix}layers.{{}}.",
        before_mixer="self_attn_layer_norm",
        before_feed_forward="final_layer_norm",
        o="self_attn.out_proj",
        gate_up=("fc1",),
        down="fc2",
    )


def _opt(fields: Fields) -> ModelDescription:
    if not fields.flag("do_layer_norm_before", True) or fields.flag("_remove_final_layer_norm"):
        raise UnsupportedModelError("do_layer_norm_before must be true, and _remove_final_layer_norm false")
    hidden = fields.integer("hidden_size")
    if fields.integer("word_embed_proj_dim", hidden) != hidden:
        raise UnsupportedModelError("word_embed_proj_dim must be hidden_size")
    has_weights = fields.flag("layer_norm_elementwise_affine", True)
    norm = Norm(kind="layer", eps=1e-5, bias=has_weights, weights=has_weights)
    bias, names = fields.flag("enable_bias", True), _names("model.decoder.", "final_layer_norm")
    return _model(fields, "relu", ("activation_function", "ffn_dim"), names, bias=bias, norm=norm)


def _xglm(fields: Fields) -> ModelDescription:
    fields.rename(
        {
            "attention_heads": "num_attention_heads",
            "d_model": "hidden_size",
            "num_layers": "num_hidden_layers",
        }
    )
    fields.refuse("add_cross_attention")
    if fields.get("pad_token_id", 1) >= _OFFSET:
        raise UnsupportedModelError("pad_token_id must be 0 or 1: its row of the positions is zero")
    scale = fields.integer("hidden_size") ** 0.5 if fields.flag("scale_embedding", True) else 1.0
    positions = replace(learned_positions(fields, _OFFSET), computed=True)
    names = _names("model.", "layer_norm")
    return _model(
        fields, "gelu", ("activation_function", "ffn_dim"), names, embedding_scale=scale, positions=positions
    )


def _biogpt(fields: Fields) -> ModelDescription:
    scale = fields.integer("hidden_size") ** 0.5 if fields.flag("scale_embedding", True) else 1.0
    names = replace(_names("biogpt.", "layer_norm"), head="output_projection")
    return _model(fields, "gelu", ("hidden_act", "intermediate_size"), names, embedding_scale=scale)


def _model(
    fields: Fields,
    activation: str,
    block: tuple[str, str],
    names: Names,
    *,
    bias: bool = True,
    **changes: Any,
) -> ModelDescription:
    fields.without_effect(_WITHOUT_EFFECT)
    mixer = Attention(**heads(fields), rope=None, qkv_bias=bias, o_bias=bias)
    layers = alike(fields, mixer, ungated(fields, activation, name=block[0], width=block[1], bias=bias))
    changes = {"positions": learned_positions(fields, _OFFSET), **changes}
    norm = changes.pop("norm", Norm(kind="layer", eps=1e-5, bias=True))
    return model(fields, layers, norm, tied=True, names=names, **changes)


FAMILIES = {
    "opt": Family("OPT", _opt),
    "xglm": Family("XGLM", _xglm),
    "biogpt": Family("BioGPT", _biogpt),
}

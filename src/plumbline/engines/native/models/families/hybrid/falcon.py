"""Falcon-H1: a state space and an attention beside each other in each layer, with factors on most results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plumbline.engines.native.models.description import (
    Attention,
    DeltaNet,
    LayerDescription,
    ModelDescription,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.hybrid.state_space import (
    OF_STATE_SPACES,
    space,
    state_space_names,
)
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


def _falcon_h1(fields: Fields) -> ModelDescription:
    fields.without_effect(OF_STATE_SPACES)
    # Released configs have these fields; transformers ignores them.
    fields.without_effect("attn_layer_indices mamba_use_mlp mlp_expansion_factor num_logits_to_keep")
    attention, net = _attention(fields), _state_space(fields)
    gate, down = _factors(fields, "mlp_multipliers", 2)
    block = dense(fields, bias=fields.flag("mlp_bias"))
    if block.bias and down != 1.0:
        raise UnsupportedModelError("mlp_bias with mlp_multipliers is not supported")
    block = replace(block, scales=(gate, down))
    given = fields.number("attention_in_multiplier", 1.0)
    if attention.qkv_bias and given != 1.0:
        raise UnsupportedModelError("attention_bias with attention_in_multiplier is not supported")
    scales = {
        "ssm": fields.number("ssm_out_multiplier", 1.0),
        # The factor on the input of attention is one on its values, and twice on its scores.
        "attention": fields.number("attention_out_multiplier", 1.0) * given,
    }
    layers = [
        layer
        for number in range(fields.integer("num_hidden_layers"))
        for layer in (
            LayerDescription(
                mixer=net, feed_forward=None, numbers=(number, number), mixer_scale=scales["ssm"]
            ),
            LayerDescription(
                mixer=attention,
                feed_forward=block,
                numbers=(number, number),
                mixer_scale=scales["attention"],
                again=True,
            ),
        )
    ]
    return model(
        fields,
        layers,
        rms(fields),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        logits_scale=fields.number("lm_head_multiplier", 1.0),
        names=_NAMES,
    )


def _attention(fields: Fields) -> Attention:
    shape, given = heads(fields), fields.number("attention_in_multiplier", 1.0)
    scale = given**2 * fields.number("key_multiplier", 1.0) * shape["head_dim"] ** -0.5
    return Attention(**shape, rope=read_rope(fields), scores_scale=scale, **attention_bias(fields))


def _state_space(fields: Fields) -> DeltaNet:
    number = fields.integer("mamba_n_heads", 128)
    expanded = int(fields.number("mamba_expand", 2) * fields.integer("hidden_size"))
    width = fields.get("mamba_d_ssm", 1024 if not fields.has("mamba_d_ssm") else expanded)
    head = fields.get("mamba_d_head", "auto")
    if width % number or head not in ("auto", width // number):
        raise UnsupportedModelError("mamba_d_head must be mamba_d_ssm / mamba_n_heads")
    bias, normed = fields.flag("mamba_proj_bias"), fields.flag("mamba_rms_norm")
    if fields.flag("projectors_bias") != bias:
        raise UnsupportedModelError("projectors_bias must be mamba_proj_bias")
    if fields.flag("mamba_norm_before_gate", True) and normed:
        raise UnsupportedModelError("mamba_norm_before_gate is not supported with mamba_rms_norm")
    given = fields.number("ssm_in_multiplier", 1.0)
    if bias and given != 1.0:
        raise UnsupportedModelError("mamba_proj_bias with ssm_in_multiplier is not supported")
    return space(
        fields,
        ("mamba_n_heads", "mamba_n_groups", "mamba_d_conv"),
        activation="hidden_act",
        key_dim=fields.integer("mamba_d_state", 256),
        value_dim=width // number,
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=bias,
        normed=normed,
        row_scales=tuple(given * factor for factor in _factors(fields, "ssm_multipliers", 5)),
        eps=fields.number("rms_norm_eps", 1e-5),
    )


def _factors(fields: Fields, name: str, count: int) -> tuple[Any, ...]:
    found = fields.get(name, [1.0] * count)
    if len(found) != count:
        raise UnsupportedModelError(f"{name} must have {count} numbers")
    return tuple(float(factor) for factor in found)


FAMILIES = {"falcon_h1": Family("Falcon-H1", _falcon_h1)}

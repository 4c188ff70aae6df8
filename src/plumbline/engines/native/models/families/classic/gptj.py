"""GPT-J and CodeGen: both blocks of a layer on the same input, a rotation of neighbours in a part of each head."""

from __future__ import annotations

from dataclasses import replace

from plumbline.engines.native.models.description import (
    Attention,
    ModelDescription,
    Rope,
    UnsupportedModelError,
)
from plumbline.engines.native.models.description.mixers import Layout
from plumbline.engines.native.models.families.classic.gpt2 import OF_GPT, four_times
from plumbline.engines.native.models.families.parts import Family, alike, heads, layer_norm, model
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_WITHOUT_EFFECT = (
    "attn_pdrop gradient_checkpointing n_ctx rotary scale_attn_weights summary_activation summary_first_dropout "
    "summary_proj_to_labels summary_type summary_use_proj task_specific_params"
)
_GPTJ = Names(
    base="transformer.",
    embedding="transformer.wte",
    norm="transformer.ln_f",
    layer="transformer.h.{}.",
    before_mixer="ln_1",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    o="attn.out_proj",
    gate_up=("mlp.fc_in",),
    down="mlp.fc_out",
    ignored_ends=(".attn.bias", ".attn.masked_bias", ".attn.causal_mask"),
)


def _gptj(fields: Fields) -> ModelDescription:
    return _describe(fields, "apart", _GPTJ)


def _codegen(fields: Fields) -> ModelDescription:
    return _describe(fields, "codegen", replace(_GPTJ, qkv=("attn.qkv_proj",)))


def _describe(fields: Fields, layout: Layout, names: Names) -> ModelDescription:
    fields.rename(OF_GPT)
    fields.without_effect(_WITHOUT_EFFECT)
    shape = heads(fields)
    if fields.has("rotary_dim") and fields.get("rotary_dim") is None:
        raise UnsupportedModelError(
            "rotary_dim must be a number: models of this type rotate a part of a head"
        )
    rotated, width = fields.integer("rotary_dim", 64), shape["head_dim"]
    if rotated > width or rotated % 2:
        raise UnsupportedModelError("rotary_dim must be even, and at most the width of a head")
    # Half a number more, so that the product with the width is not rounded below it.
    rope = Rope(part=min(1.0, (rotated + 0.5) / width), interleaved=True)
    block = four_times(fields, "gelu_new", "activation_function")
    layers = alike(fields, Attention(**shape, rope=rope, layout=layout), block, "parallel")
    norm = layer_norm(fields, "layer_norm_epsilon")
    return model(fields, layers, norm, head_bias=True, names=names)


FAMILIES = {
    "gptj": Family("GPT-J", _gptj),
    "codegen": Family("CodeGen", _codegen),
}

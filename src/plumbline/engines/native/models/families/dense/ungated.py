"""Families whose feed-forward blocks have no gate: StarCoder2, Phi 1 to 2, Nemotron, Arcee, Jais 2, Apertus."""

from __future__ import annotations

from dataclasses import replace

from plumbline.engines.native.models.description import Attention, HeadNorm, ModelDescription, Norm
from plumbline.engines.native.models.families.parts import (
    Family,
    alike,
    attention_bias,
    heads,
    layer_norm,
    model,
    rms,
    ungated,
)
from plumbline.engines.native.models.families.rope_fields import read_rope, rope_parameters
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_UP = Names(gate_up=("mlp.up_proj",))
_APERTUS_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12000000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
"""The rotation of a config of Apertus that has none."""
_STARCODER = Names(gate_up=("mlp.c_fc",), down="mlp.c_proj")
_PHI = Names(
    norm="model.final_layernorm",
    o="self_attn.dense",
    gate_up=("mlp.fc1",),
    down="mlp.fc2",
)


def _arcee(fields: Fields) -> ModelDescription:
    mixer = Attention(**heads(fields), rope=read_rope(fields), **attention_bias(fields))
    block = ungated(fields, "relu2", bias=fields.flag("mlp_bias"))
    norm = rms(fields)
    return model(fields, alike(fields, mixer, block), norm, names=_UP)


def _nemotron(fields: Fields) -> ModelDescription:
    mixer = Attention(**heads(fields), rope=read_rope(fields, part=0.5), **attention_bias(fields))
    block = ungated(fields, "relu2", bias=fields.flag("mlp_bias"))
    norm = Norm(kind="layer", eps=fields.number("norm_eps", 1e-5), bias=True, offset=1.0)
    return model(fields, alike(fields, mixer, block), norm, names=_UP)


def _starcoder2(fields: Fields) -> ModelDescription:
    # Released configs have these fields; transformers ignores them.
    fields.without_effect("embedding_dropout", "mlp_type", "norm_type", "activation_function")
    bias = fields.flag("use_bias", True)
    mixer = Attention(
        **heads(fields),
        rope=read_rope(fields),
        qkv_bias=bias,
        o_bias=bias,
        window=fields.optional("sliding_window"),
    )
    block = ungated(fields, "gelu_pytorch_tanh", bias=bias)
    norm = Norm(kind="layer", eps=fields.number("norm_epsilon", 1e-5), bias=True)
    return model(fields, alike(fields, mixer, block), norm, tied=True, names=_STARCODER)


def _phi(fields: Fields) -> ModelDescription:
    fields.refuse("qk_layernorm")
    mixer = Attention(**heads(fields), rope=read_rope(fields, part=0.5), qkv_bias=True, o_bias=True)
    block = ungated(fields, "gelu_new", bias=True)
    norm = Norm(kind="layer", eps=fields.number("layer_norm_eps", 1e-5), bias=True)
    layers = alike(fields, mixer, block, "parallel")
    return model(fields, layers, norm, head_bias=True, names=_PHI)


def _jais2(fields: Fields) -> ModelDescription:
    bias = fields.flag("attention_bias", True)
    mixer = Attention(**heads(fields), rope=read_rope(fields), qkv_bias=bias, o_bias=bias)
    block = ungated(fields, "relu2", bias=fields.flag("mlp_bias", True))
    norm = layer_norm(fields)
    return model(fields, alike(fields, mixer, block), norm, names=_UP)


def _apertus(fields: Fields) -> ModelDescription:
    mixer = Attention(
        **heads(fields),
        rope=read_rope(fields, 12000000.0, parameters=rope_parameters(fields) or _APERTUS_ROPE),
        head_norm=HeadNorm(),
        **attention_bias(fields),
    )
    # Released configs have these fields; transformers ignores them.
    fields.without_effect("mlp_bias qk_norm post_norm")
    names = replace(_UP, before_mixer="attention_layernorm", before_feed_forward="feedforward_layernorm")
    block, norm = ungated(fields, "xielu", bias=False), rms(fields)
    return model(fields, alike(fields, mixer, block), norm, names=names)


def _nanochat(fields: Fields) -> ModelDescription:
    mixer = Attention(
        **heads(fields),
        rope=replace(read_rope(fields), backwards=True),
        head_norm=HeadNorm(weights="none", after_rope=True),
        **attention_bias(fields),
    )
    layers = alike(fields, mixer, ungated(fields, "relu2", bias=False))
    return model(
        fields,
        layers,
        rms(fields, 1e-6, weights=False),
        embedding_norm=True,
        logits_softcap=fields.number("final_logit_softcapping", 15.0),
        names=replace(_PHI, o="self_attn.o_proj"),
    )


FAMILIES = {
    "starcoder2": Family("StarCoder2", _starcoder2),
    "phi": Family("Phi-1, Phi-1.5, Phi-2", _phi),
    "nemotron": Family("Nemotron-3 and -4, Minitron", _nemotron),
    "arcee": Family("Arcee AFM", _arcee),
    "jais2": Family("Jais 2", _jais2),
    "apertus": Family("Apertus", _apertus),
    "nanochat": Family("nanochat", _nanochat),
}

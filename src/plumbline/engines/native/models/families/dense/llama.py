"""Llama, and families that differ from it by a bias, a window or layers without a rotation."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, LayerDescription, ModelDescription, Norm
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    alike,
    attention_bias,
    dense,
    heads,
    layer_types,
    model,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _llama(fields: Fields) -> ModelDescription:
    fields.without_effect("is_llama_config", "sliding_window")
    fields.refuse("rope_interleaved")
    mixer = Attention(**heads(fields), rope=read_rope(fields), **attention_bias(fields))
    return model(fields, alike(fields, mixer, dense(fields, bias=fields.flag("mlp_bias"))))


def _iquest(fields: Fields) -> ModelDescription:
    fields.refuse("clip_qkv", "use_sliding_window")
    mixer = Attention(**heads(fields, head_dim=128), rope=read_rope(fields), **attention_bias(fields))
    norm = Norm(eps=fields.number("rms_norm_eps", 1e-5))
    return model(fields, alike(fields, mixer, dense(fields, bias=fields.flag("mlp_bias"))), norm)


def _helium(fields: Fields) -> ModelDescription:
    mixer = Attention(
        **heads(fields, head_dim=128),
        rope=read_rope(fields, 100000.0, interleaved=True),
        qkv_bias=fields.flag("attention_bias"),
    )
    norm = Norm(eps=fields.number("rms_norm_eps", 1e-8))
    return model(fields, alike(fields, mixer, dense(fields, bias=fields.flag("mlp_bias"))), norm)


def _smollm3(fields: Fields) -> ModelDescription:
    fields.without_effect("max_window_layers")
    count, interval = fields.integer("num_hidden_layers"), fields.integer("no_rope_layer_interval", 4)
    rotated = fields.get("no_rope_layers", [int((layer + 1) % interval != 0) for layer in range(count)])
    slides = fields.flag("use_sliding_window")
    types = layer_types(fields, (SLIDING if slides and not turns else FULL for turns in rotated))
    rope, bias = read_rope(fields, 2000000.0), attention_bias(fields)
    feed_forward = dense(fields, bias=fields.flag("mlp_bias"))
    layers = (
        LayerDescription(
            mixer=Attention(
                **heads(fields), rope=rope if turns else None, window=window if slides else None, **bias
            ),
            feed_forward=feed_forward,
        )
        for turns, window in zip(rotated, windows(fields, types), strict=True)
    )
    return model(fields, layers, tied=True)


def _seed_oss(fields: Fields) -> ModelDescription:
    mixer = Attention(
        **heads(fields, head_dim=128),
        rope=read_rope(fields),
        qkv_bias=fields.flag("attention_bias", True),
        o_bias=fields.flag("attention_out_bias"),
    )
    return model(fields, alike(fields, mixer, dense(fields, bias=fields.flag("mlp_bias"))))


def _ernie(fields: Fields) -> ModelDescription:
    bias = fields.flag("use_bias")
    rope = read_rope(fields, 500000.0, interleaved=True)
    mixer = Attention(**heads(fields, head_dim=128), rope=rope, qkv_bias=bias, o_bias=bias)
    norm = Norm(eps=fields.number("rms_norm_eps", 1e-5))
    return model(fields, alike(fields, mixer, dense(fields, bias=bias)), norm, tied=True)


FAMILIES = {
    "llama": Family("Llama 2 and 3, Falcon 3, SmolLM2, DeepSeek-R1 distilled to Llama", _llama),
    "iquestcoder": Family("IQuest-Coder", _iquest),
    "helium": Family("Helium", _helium),
    "smollm3": Family("SmolLM3", _smollm3),
    "seed_oss": Family("Seed-OSS", _seed_oss),
    "ernie4_5": Family("ERNIE 4.5 dense", _ernie),
}

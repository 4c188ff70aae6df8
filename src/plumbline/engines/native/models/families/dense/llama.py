"""Llama, and families that differ from it by a bias or by the rotation."""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Attention,
    ModelDescription,
    Norm,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.parts import (
    Family,
    Wrapped,
    alike,
    attention_bias,
    dense,
    heads,
    model,
    rms,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]

_LLAVA = Wrapped(
    "llava",
    "LLaVA 1.5 and others of its kind, with images by CLIP, SigLIP or Pixtral's tower",
    {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "rms_norm_eps": 1e-06,
        "vocab_size": 32000,
    },
)


def _llama(fields: Fields) -> ModelDescription:
    fields.without_effect("is_llama_config", "sliding_window")
    fields.refuse("rope_interleaved")
    mixer = Attention(**heads(fields), rope=read_rope(fields), **attention_bias(fields))
    return _with_mixer(fields, mixer)


def _iquest(fields: Fields) -> ModelDescription:
    fields.refuse("clip_qkv", "use_sliding_window")
    mixer = Attention(**heads(fields, head_dim=128), rope=read_rope(fields), **attention_bias(fields))
    return _with_mixer(fields, mixer, rms(fields))


def _internlm3(fields: Fields) -> ModelDescription:
    fields.rename({"qkv_bias": "attention_bias", "bias": "mlp_bias"})
    if fields.flag("attention_bias") != fields.flag("mlp_bias"):
        raise UnsupportedModelError("qkv_bias and bias must be the same")
    mixer = Attention(**heads(fields, head_dim=128), rope=read_rope(fields), **attention_bias(fields))
    return _with_mixer(fields, mixer, rms(fields))


def _helium(fields: Fields) -> ModelDescription:
    mixer = Attention(
        **heads(fields, head_dim=128),
        rope=read_rope(fields, 100000.0, interleaved=True),
        qkv_bias=fields.flag("attention_bias"),
    )
    return _with_mixer(fields, mixer, rms(fields, 1e-8))


def _seed_oss(fields: Fields) -> ModelDescription:
    mixer = Attention(
        **heads(fields, head_dim=128),
        rope=read_rope(fields),
        qkv_bias=fields.flag("attention_bias", True),
        o_bias=fields.flag("attention_out_bias"),
    )
    return _with_mixer(fields, mixer)


def _with_mixer(fields: Fields, mixer: Attention, norm: Norm | None = None) -> ModelDescription:
    return model(fields, alike(fields, mixer, dense(fields, bias=fields.flag("mlp_bias"))), norm)


FAMILIES = {
    "llama": Family("Llama 2 and 3, Falcon 3, SmolLM2, DeepSeek-R1 distilled to Llama", _llama, _LLAVA),
    "iquestcoder": Family("IQuest-Coder", _iquest),
    "internlm3": Family("InternLM 3", _internlm3),
    "helium": Family("Helium", _helium),
    "seed_oss": Family("Seed-OSS", _seed_oss),
}

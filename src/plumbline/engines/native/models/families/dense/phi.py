"""Phi-3 and Phi-4: merged projections, a rotation of a part of each head; and StableLM 2, which also rotates a part."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, HeadNorm, ModelDescription, Norm, Placement
from plumbline.engines.native.models.families.parts import Family, alike, dense, heads, model, rms
from plumbline.engines.native.models.families.rope_fields import read_rope, rope_parameters
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_MERGED = Names(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))

_STABLELM = Names(q_norm="self_attn.q_layernorm.norms.{}", k_norm="self_attn.k_layernorm.norms.{}")


def _phi3(fields: Fields) -> ModelDescription:
    fields.refuse("attention_bias", "mlp_bias", "lm_head_bias")
    fields.without_effect("original_max_position_embeddings", "full_attn_mod", "interpolate_factor")
    parameters = rope_parameters(fields)
    kind = parameters.pop("type", None)
    kind = parameters.pop("rope_type", None) or kind or "default"
    # Configs of Phi-3 call it by its names of the time.
    parameters["rope_type"] = "longrope" if kind in ("su", "yarn") else kind
    mixer = Attention(
        **heads(fields),
        rope=read_rope(fields, parameters=parameters, part=1.0),
        window=fields.optional("sliding_window"),
    )
    norm = rms(fields)
    return model(fields, alike(fields, mixer, dense(fields)), norm, names=_MERGED)


def _stablelm(fields: Fields) -> ModelDescription:
    mixer = Attention(
        **heads(fields),
        rope=read_rope(fields, part=0.25),
        qkv_bias=fields.flag("use_qkv_bias"),
        head_norm=HeadNorm(weights="each") if fields.flag("qk_layernorm") else None,
    )
    norms: Placement = "parallel" if fields.flag("use_parallel_residual") else "before"
    norm = Norm(kind="layer", eps=fields.number("layer_norm_eps", 1e-5), bias=True)
    return model(fields, alike(fields, mixer, dense(fields), norms), norm, names=_STABLELM)


FAMILIES = {
    "phi3": Family("Phi-3, Phi-4, Phi-4-mini", _phi3),
    "stablelm": Family("StableLM 2, StableLM Zephyr", _stablelm),
}

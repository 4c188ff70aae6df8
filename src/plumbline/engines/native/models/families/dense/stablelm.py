"""StableLM 2: layer norms with a bias, a rotation of a part of each head, sometimes both blocks on the same input."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, HeadNorm, ModelDescription, Norm, Placement
from plumbline.engines.native.models.families.parts import Family, alike, dense, heads, model
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_NAMES = Names(q_norm="self_attn.q_layernorm.norms.{}", k_norm="self_attn.k_layernorm.norms.{}")


def _stablelm(fields: Fields) -> ModelDescription:
    mixer = Attention(
        **heads(fields),
        rope=read_rope(fields, part=0.25),
        qkv_bias=fields.flag("use_qkv_bias"),
        head_norm=HeadNorm(weights="each") if fields.flag("qk_layernorm") else None,
    )
    norms: Placement = "parallel" if fields.flag("use_parallel_residual") else "before"
    norm = Norm(kind="layer", eps=fields.number("layer_norm_eps", 1e-5), bias=True)
    return model(fields, alike(fields, mixer, dense(fields), norms), norm, names=_NAMES)


FAMILIES = {"stablelm": Family("StableLM 2, StableLM Zephyr", _stablelm)}

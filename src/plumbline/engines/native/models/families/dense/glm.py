"""GLM-4, dense: merged gate and up, a rotation of neighbours in half of each head, more norms in GLM-4-0414."""

from __future__ import annotations

from dataclasses import replace

from plumbline.engines.native.models.description import Attention, ModelDescription, Placement
from plumbline.engines.native.models.families.parts import Family, alike, dense, heads, model, rms
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_NAMES = Names(gate_up=("mlp.gate_up_proj",))


def _glm(fields: Fields) -> ModelDescription:
    return _describe(fields, "before", _NAMES)


def _glm4(fields: Fields) -> ModelDescription:
    names = replace(_NAMES, after_mixer="post_self_attn_layernorm", after_feed_forward="post_mlp_layernorm")
    return _describe(fields, "both", names)


def _describe(fields: Fields, norms: Placement, names: Names) -> ModelDescription:
    mixer = Attention(
        **heads(fields, head_dim=128),
        rope=read_rope(fields, part=0.5, interleaved=True),
        qkv_bias=fields.flag("attention_bias", True),
    )
    norm = rms(fields, 1.5625e-07)
    return model(fields, alike(fields, mixer, dense(fields), norms), norm, names=names)


FAMILIES = {
    "glm": Family("GLM-4-9B", _glm),
    "glm4": Family("GLM-4-0414, GLM-Z1", _glm4),
}

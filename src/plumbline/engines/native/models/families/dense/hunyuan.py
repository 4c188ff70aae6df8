"""Hunyuan, dense: norms of heads after the rotation."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, HeadNorm, ModelDescription, Rope
from plumbline.engines.native.models.families.parts import (
    Family,
    alike,
    attention_bias,
    dense,
    heads,
    model,
    rms,
)
from plumbline.engines.native.models.families.rope_fields import read_rope, rope_parameters, rope_theta
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES", "HEAD_NORMS", "hunyuan_mixer"]

HEAD_NORMS = Names(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm")
_WITHOUT_EFFECT = (
    "add_classification_head attention_head_dim cla_share_factor class_num dense_list eod_token_id im_end_id "
    "im_newline_id im_start_id kv_lora_rank mask_init_id norm_type org_vocab_size pad_id pool_type q_lora_rank "
    "sep_token_id text_end_id text_start_id use_qk_norm use_rotary_pos_emb v_head_dim"
)
"""Fields of other models of the family in released configs; transformers ignores them."""


def hunyuan_mixer(fields: Fields) -> Attention:
    """Read the attention, and refuse what models of the type do without."""
    fields.without_effect(_WITHOUT_EFFECT)
    fields.refuse("mlp_bias", "position_embedding_xdrope", "use_cla")
    shape = heads(fields)
    return Attention(
        **shape,
        rope=_rope(fields, shape["head_dim"]),
        head_norm=HeadNorm(after_rope=True),
        **attention_bias(fields),
    )


def _hunyuan(fields: Fields) -> ModelDescription:
    mixer = hunyuan_mixer(fields)
    norm = rms(fields)
    return model(fields, alike(fields, mixer, dense(fields)), norm, names=HEAD_NORMS)


def _rope(fields: Fields, head_dim: int) -> Rope:
    """Read the rotation; a factor `alpha` raises its base, and the other fields of the scaling do nothing then."""
    parameters = rope_parameters(fields)
    alpha = parameters.get("alpha")
    if (parameters.get("rope_type") or parameters.get("type")) != "dynamic" or not alpha:
        return read_rope(fields)
    fields.without_effect("rope_theta")
    theta = float(parameters.get("rope_theta") or rope_theta(fields))
    return Rope(theta=theta * alpha ** (head_dim / (head_dim - 2)))


FAMILIES = {"hunyuan_v1_dense": Family("Hunyuan dense", _hunyuan)}

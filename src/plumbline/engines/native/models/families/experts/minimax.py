"""MiniMax-M2: sigmoids with a correction, norms of all heads together, a rotation of a part of each head."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, Experts, HeadNorm, ModelDescription, Router
from plumbline.engines.native.models.families.experts.mixtral import SPARSE
from plumbline.engines.native.models.families.parts import Family, alike, heads, model
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]

_WITHOUT_EFFECT = (
    "attn_type_list layernorm_full_attention_beta layernorm_linear_attention_beta layernorm_mlp_beta "
    "mlp_intermediate_size mtp_transformer_layers num_mtp_modules postnorm qk_norm_type scoring_func "
    "shared_intermediate_size shared_moe_mode swa_rope_theta use_mtp use_qk_norm use_routing_bias"
)
"""Further fields of released configs; transformers ignores them."""


def _minimax(fields: Fields) -> ModelDescription:
    fields.without_effect(_WITHOUT_EFFECT)
    shape = heads(fields, head_dim=128)
    part = fields.number("rotary_dim", shape["head_dim"]) / shape["head_dim"]
    mixer = Attention(
        **shape,
        rope=read_rope(fields, 5000000.0, part=part),
        head_norm=HeadNorm(weights="each", whole=True),
    )
    experts = Experts(
        number=fields.integer("num_local_experts", 256),
        width=fields.integer("intermediate_size"),
        router=Router(top_k=fields.integer("num_experts_per_tok", 8), scores="sigmoid", correction=True),
        activation=fields.activation(),
    )
    return model(fields, alike(fields, mixer, experts), names=SPARSE)


FAMILIES = {"minimax_m2": Family("MiniMax-M2", _minimax)}

"""Mixtral: two of eight experts, with weights that add up to 1."""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Attention,
    Experts,
    ModelDescription,
    Router,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.parts import (
    Family,
    alike,
    attention_bias,
    heads,
    layer_norm,
    model,
    rms,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES", "SPARSE"]

SPARSE = Names(
    router="block_sparse_moe.gate",
    correction="block_sparse_moe.e_score_correction_bias",
    expert_gate_up=("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3"),
    expert_down="block_sparse_moe.experts.{}.w2",
)


def _mixtral(fields: Fields) -> ModelDescription:
    fields.refuse("attention_bias", "mlp_bias")
    rope = read_rope(fields, 1000000.0)
    mixer = Attention(**heads(fields), rope=rope, window=fields.optional("sliding_window"))
    experts = Experts(
        number=fields.integer("num_local_experts", 8),
        width=fields.integer("intermediate_size"),
        router=Router(top_k=fields.integer("num_experts_per_tok", 2)),
        activation=fields.activation(),
    )
    norm = rms(fields)
    return model(fields, alike(fields, mixer, experts), norm, names=SPARSE)


def _phimoe(fields: Fields) -> ModelDescription:
    fields.without_effect("input_jitter_noise")
    rope = read_rope(fields, 1000000.0, further=frozenset({"short_mscale", "long_mscale"}))
    mixer = Attention(
        **heads(fields), rope=rope, window=fields.optional("sliding_window"), **attention_bias(fields)
    )
    top_k = fields.integer("num_experts_per_tok", 2)
    jitter = fields.number("router_jitter_noise", 0.01)
    experts = Experts(
        number=fields.integer("num_local_experts", 16),
        width=fields.integer("intermediate_size"),
        router=Router(top_k=top_k, scores="sparse_mixer", jitter=jitter),
        activation=fields.activation(),
    )
    if top_k != 2:
        raise UnsupportedModelError("num_experts_per_tok must be 2 for this model_type")
    norm = layer_norm(fields, "rms_norm_eps")
    head_bias = fields.flag("lm_head_bias")
    return model(fields, alike(fields, mixer, experts), norm, head_bias=head_bias, names=SPARSE)


FAMILIES = {
    "mixtral": Family("Mixtral", _mixtral),
    "phimoe": Family("Phi-3.5-MoE", _phimoe),
}

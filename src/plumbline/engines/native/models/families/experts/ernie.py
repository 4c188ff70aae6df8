"""ERNIE 4.5, dense or with experts: the softmax with a correction for the choice, shared experts."""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    Experts,
    LayerDescription,
    ModelDescription,
    Router,
)
from plumbline.engines.native.models.families.parts import Family, alike, dense, heads, model, rms
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_NAMES = Names(correction="mlp.moe_statics.e_score_correction_bias", ignored=("model.mtp_", "mtp"))


def _ernie(fields: Fields) -> ModelDescription:
    bias = fields.flag("use_bias")
    rope = read_rope(fields, 500000.0, interleaved=True)
    mixer = Attention(**heads(fields, head_dim=128), rope=rope, qkv_bias=bias, o_bias=bias)
    norm = rms(fields)
    return model(fields, alike(fields, mixer, dense(fields, bias=bias)), norm, tied=True)


def _ernie_moe(fields: Fields) -> ModelDescription:
    # Fields of training and of multi-token prediction in released configs; transformers ignores them.
    fields.without_effect(
        "moe_capacity moe_gate moe_gate_act moe_use_aux_free num_nextn_predict_layers use_flash_attention "
        "use_rmsnorm"
    )
    fields.refuse("use_bias")
    mixer = Attention(**heads(fields), rope=read_rope(fields, 500000.0, interleaved=True))
    count = fields.integer("num_hidden_layers")
    first, last = fields.get("moe_layer_start_index", 1), fields.get("moe_layer_end_index", -1)
    last, interval = count - 1 if last == -1 else last, fields.integer("moe_layer_interval", 1)
    plain, experts = dense(fields), _experts(fields)
    layers = (
        LayerDescription(
            mixer=mixer,
            feed_forward=experts if first <= layer <= last and (layer + 1) % interval == 0 else plain,
        )
        for layer in range(count)
    )
    norm = rms(fields)
    return model(fields, layers, norm, tied=True, names=_NAMES)


def _experts(fields: Fields) -> Experts:
    width, shared = fields.integer("moe_intermediate_size"), fields.get("moe_num_shared_experts", 2)
    top_k = fields.get("moe_k", fields.get("num_experts_per_tok", 6))
    router = Router(top_k=top_k, correction=True, floor=fields.number("moe_norm_min", 1e-12))
    return Experts(
        number=fields.integer("moe_num_experts", 64),
        width=width,
        router=router,
        activation=fields.activation(),
        shared=Dense(width=width * shared, activation=fields.activation()) if shared else None,
    )


FAMILIES = {
    "ernie4_5": Family("ERNIE 4.5 dense", _ernie),
    "ernie4_5_moe": Family("ERNIE 4.5 with experts", _ernie_moe),
}

"""Qwen 2 and 3 with experts: the softmax of all logits; Qwen 2 with a gated shared expert."""

from __future__ import annotations

from collections.abc import Sequence

from plumbline.engines.native.models.description import (
    Attention,
    DeltaNet,
    Dense,
    Experts,
    HeadNorm,
    LayerDescription,
    ModelDescription,
    Router,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.dense.qwen import qwen3_mixers, qwen3_vl_rope, qwen_windows
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    Wrapped,
    attention_bias,
    dense,
    heads,
    layer_types,
    model,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope, read_ropes
from plumbline.engines.native.models.families.routed import layers_by_type
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES", "SHARED", "expert_layers", "experts"]

SHARED = Names(
    shared_gate_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared_down="mlp.shared_expert.down_proj",
)


def _qwen2(fields: Fields) -> ModelDescription:
    shape, rope = heads(fields), read_rope(fields)
    bias = fields.flag("qkv_bias", True)
    mixers = (Attention(**shape, rope=rope, qkv_bias=bias, window=window) for window in qwen_windows(fields))
    shared = dense(fields, width="shared_expert_intermediate_size")
    block = experts(fields, fields.integer("num_experts", 60), shared)
    return model(fields, expert_layers(fields, tuple(mixers), block), names=SHARED)


def _qwen3(fields: Fields) -> ModelDescription:
    fields.without_effect("max_window_layers")
    fields.refuse("use_mrope", "mlp_bias")
    window = fields.optional("sliding_window") if fields.flag("use_sliding_window") else None
    each = (window,) * fields.integer("num_hidden_layers")
    number = fields.integer("num_local_experts", fields.integer("num_experts", 128))
    block = experts(fields, number, None)
    return model(fields, expert_layers(fields, qwen3_mixers(fields, each, None), block))


def _qwen3_vl(fields: Fields) -> ModelDescription:
    if not fields.flag("norm_topk_prob", True):
        raise UnsupportedModelError("norm_topk_prob must be true for this model_type")
    fields.integer("num_experts_per_tok")
    number = fields.integer("num_local_experts", fields.integer("num_experts", 60))
    block = experts(fields, number, None, normalised=True)
    each = (None,) * fields.integer("num_hidden_layers")
    mixers = qwen3_mixers(fields, each, None, qwen3_vl_rope(fields, None))
    return model(fields, expert_layers(fields, mixers, block))


def _mellum(fields: Fields) -> ModelDescription:
    fields.without_effect("mtp_layer_types mtp_mlp_layer_types num_nextn_predict_layers num_mtp_layers")
    count, ropes = fields.integer("num_hidden_layers"), read_ropes(fields, {FULL: 500000.0, SLIDING: 10000.0})
    types = layer_types(fields, [FULL] * count)
    shape, bias = heads(fields, 128), attention_bias(fields)
    mixers = [
        Attention(**shape, rope=ropes[kind], **bias, head_norm=HeadNorm(), window=window)
        for kind, window in zip(types, windows(fields, types), strict=True)
    ]
    number = fields.integer("num_local_experts", fields.integer("num_experts", 64))
    block = experts(fields, number, None, normalised=True)
    layers = layers_by_type(fields, mixers, dense(fields), block, first=0)
    return model(fields, layers, names=Names(ignored=("mtp.",)))


def experts(fields: Fields, number: int, shared: Dense | None, *, normalised: bool = False) -> Experts:
    """Read so many experts, whose weights are `normalised` where the config does not say so."""
    top_k = fields.integer("num_experts_per_tok", 8)
    normalised = fields.flag("norm_topk_prob", normalised)
    return Experts(
        number=number,
        width=fields.integer("moe_intermediate_size"),
        router=Router(top_k=top_k, normalised=normalised),
        activation=fields.activation(),
        shared=shared,
        shared_gate=shared is not None,
    )


def expert_layers(
    fields: Fields, mixers: Sequence[Attention | DeltaNet], block: Experts
) -> list[LayerDescription]:
    """Read the layers of these mixers, in which the config says which have experts."""
    plain, step = fields.get("mlp_only_layers", []), fields.integer("decoder_sparse_step", 1)
    feed_forward = dense(fields)
    return [
        LayerDescription(
            mixer=mixer,
            feed_forward=feed_forward if layer in plain or (layer + 1) % step else block,
        )
        for layer, mixer in enumerate(mixers)
    ]


FAMILIES = {
    "qwen2_moe": Family("Qwen 1.5 and 2 with experts", _qwen2),
    "qwen3_moe": Family("Qwen 3 with experts", _qwen3),
    "mellum": Family("Mellum 2", _mellum),
    "qwen3_vl_moe_text": Family(
        "Qwen3-VL with experts", _qwen3_vl, Wrapped("qwen3_vl_moe", "Qwen3-VL with experts", {})
    ),
}

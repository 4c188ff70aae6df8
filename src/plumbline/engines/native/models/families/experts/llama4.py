"""Llama 4, text: windows side by side, layers without rotations, experts whose inputs have the weights."""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Dense,
    Experts,
    LayerDescription,
    ModelDescription,
    Router,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.experts.llama4_attention import CHUNKED, llama4_mixers
from plumbline.engines.native.models.families.parts import (
    FULL,
    Family,
    Wrapped,
    dense,
    layer_types,
    model,
    rms,
)
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_NAMES = Names(
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    router="feed_forward.router",
    expert_gate_up=("feed_forward.experts.gate_up_proj",),
    expert_down="feed_forward.experts.down_proj",
    experts_transposed=True,
    shared_gate_up=("feed_forward.shared_expert.gate_proj", "feed_forward.shared_expert.up_proj"),
    shared_down="feed_forward.shared_expert.down_proj",
)


def _llama4(fields: Fields) -> ModelDescription:
    fields.without_effect("for_llm_compressor")
    count, interval = fields.integer("num_hidden_layers"), fields.integer("no_rope_layer_interval", 4)
    turned = fields.get("no_rope_layers") or [(layer + 1) % interval != 0 for layer in range(count)]
    if len(turned) != count:
        raise UnsupportedModelError("no_rope_layers must have a number for every layer")
    types = layer_types(fields, (CHUNKED if turns else FULL for turns in turned), (FULL, CHUNKED))
    step = fields.integer("interleave_moe_layer_step", 1)
    with_experts = fields.get("moe_layers", range(step - 1, count, step))
    plain, block = dense(fields, width="intermediate_size_mlp"), _experts(fields, dense(fields))
    layers = (
        LayerDescription(mixer=mixer, feed_forward=block if layer in with_experts else plain)
        for layer, mixer in enumerate(llama4_mixers(fields, types, turned))
    )
    return model(fields, layers, rms(fields), names=_NAMES)


def _experts(fields: Fields, shared: Dense) -> Experts:
    router = Router(
        top_k=fields.integer("num_experts_per_tok", 1), scores="sigmoid", normalised=False, of_inputs=True
    )
    number = fields.integer("num_local_experts", 16)
    return Experts(
        number=number, width=shared.width, router=router, activation=shared.activation, shared=shared
    )


FAMILIES = {"llama4_text": Family("Llama 4 (text)", _llama4, Wrapped("llama4", "Llama 4, with images", {}))}

"""Llama 4, text: windows side by side, layers without rotations, experts whose inputs have the weights."""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    Experts,
    HeadNorm,
    LayerDescription,
    ModelDescription,
    Norm,
    Rope,
    Router,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.parts import (
    FULL,
    Family,
    attention_bias,
    dense,
    heads,
    layer_types,
    model,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_CHUNKED = "chunked_attention"
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
    count, interval = fields.integer("num_hidden_layers"), fields.integer("no_rope_layer_interval", 4)
    turned = fields.get("no_rope_layers") or [(layer + 1) % interval != 0 for layer in range(count)]
    if len(turned) != count:
        raise UnsupportedModelError("no_rope_layers must have a number for every layer")
    types = layer_types(fields, (_CHUNKED if turns else FULL for turns in turned), (FULL, _CHUNKED))
    step = fields.integer("interleave_moe_layer_step", 1)
    with_experts = fields.get("moe_layers", range(step - 1, count, step))
    plain, block = dense(fields, width="intermediate_size_mlp"), _experts(fields, dense(fields))
    layers = (
        LayerDescription(mixer=mixer, feed_forward=block if layer in with_experts else plain)
        for layer, mixer in enumerate(_mixers(fields, types, turned))
    )
    return model(fields, layers, Norm(eps=fields.number("rms_norm_eps", 1e-5)), names=_NAMES)


def _mixers(fields: Fields, types: tuple[str, ...], turned: list[bool]) -> list[Attention]:
    size, shape, bias = None, heads(fields, 128), attention_bias(fields)
    # Null means no windows, as in vLLM; transformers cannot run such a model.
    if fields.get("attention_chunk_size") is not None or not fields.has("attention_chunk_size"):
        size = fields.integer("attention_chunk_size", 8192)
    rope = read_rope(fields, 500000.0, interleaved=True)
    norm = HeadNorm(weights="none", after_rope=True) if fields.flag("use_qk_norm", True) else None
    scale, length = fields.number("attn_scale", 0.1), fields.integer("floor_scale", 8192)
    still = None
    if fields.flag("attn_temperature_tuning", True):
        # A rotation of no part of a head, for its temperatures.
        still = Rope(part=0.0, temperature=scale, temperature_shift=1, original_max_positions=length)
    return [
        Attention(
            **shape,
            **bias,
            rope=rope if turns else still,
            head_norm=norm if turns else None,
            window=size if kind == _CHUNKED else None,
            tiled=kind == _CHUNKED and size is not None,
        )
        for kind, turns in zip(types, turned, strict=True)
    ]


def _experts(fields: Fields, shared: Dense) -> Experts:
    router = Router(
        top_k=fields.integer("num_experts_per_tok", 1), scores="sigmoid", normalised=False, of_inputs=True
    )
    number = fields.integer("num_local_experts", 16)
    return Experts(
        number=number, width=shared.width, router=router, activation=shared.activation, shared=shared
    )


FAMILIES = {"llama4_text": Family("Llama 4 (text)", _llama4)}

"""Command with experts: both blocks of a layer on the same input, as in Command R7B."""

from __future__ import annotations

from dataclasses import replace

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    Experts,
    ModelDescription,
    Norm,
    Router,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    attention_bias,
    every,
    heads,
    layer_types,
    model,
    rms,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.families.routed import layers_by_type
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _cohere2(fields: Fields) -> ModelDescription:
    first, count = fields.get("first_k_dense_replace", 0), fields.integer("num_hidden_layers")
    interval = fields.integer("prefix_dense_sliding_window_pattern", 1)
    by_default = [FULL if (layer + 1) % interval == 0 else SLIDING for layer in range(first)]
    by_default += every(fields, fields.integer("sliding_window_pattern", 4))[: count - first]
    types = layer_types(fields, by_default)
    shape, bias, rope = heads(fields, 128), attention_bias(fields), read_rope(fields, interleaved=True)
    mixers = [Attention(**shape, **bias, rope=rope, window=window) for window in windows(fields, types)]
    width = fields.get("prefix_dense_intermediate_size") or fields.integer("intermediate_size")
    plain = Dense(width=width, activation=fields.activation())
    layers = layers_by_type(fields, mixers, plain, _experts(fields), first)
    # A layer without a window is not rotated, but for one without experts if all of them have full attention.
    layers = tuple(
        replace(
            layer,
            norms="parallel",
            mixer=replace(mixer, rope=None)
            if kind == FULL and not (interval == 1 and layer.feed_forward is plain)
            else mixer,
        )
        for layer, mixer, kind in zip(layers, mixers, types, strict=True)
    )
    norm = Norm(kind="layer", eps=fields.number("layer_norm_eps", 1e-5))
    if fields.get("rms_norm_eps") is not None:
        norm = rms(fields)
    return model(fields, layers, norm, tied=True, logits_scale=fields.number("logit_scale", 0.0625))


def _experts(fields: Fields) -> Experts:
    scores = fields.get("expert_selection_fn", "softmax")
    combined = fields.get("shared_expert_combination_strategy", "average")
    if scores not in ("softmax", "sigmoid") or combined not in ("sum", "average"):
        raise UnsupportedModelError(
            "expert_selection_fn must be softmax or sigmoid, and shared_expert_combination_strategy sum or average"
        )
    width, shared = fields.integer("intermediate_size"), fields.get("num_shared_experts", 0)
    scale = 0.5 if shared and combined == "average" else 1.0
    return Experts(
        number=fields.integer("num_experts", 8),
        width=width,
        router=Router(
            top_k=fields.integer("num_experts_per_tok", 2),
            scores="sigmoid" if scores == "sigmoid" else "softmax_of_chosen",
            normalised=fields.flag("norm_topk_prob", True),
            scale=scale,
        ),
        activation=fields.activation(),
        shared=Dense(width=width * shared, activation=fields.activation()) if shared else None,
        shared_scale=scale,
    )


FAMILIES = {"cohere2_moe": Family("Command with experts", _cohere2)}

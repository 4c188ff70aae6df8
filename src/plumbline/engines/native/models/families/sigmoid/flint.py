"""Flint: sinks, norms of heads, a rotation inside of windows only."""

from __future__ import annotations

from dataclasses import replace

from plumbline.engines.native.models.description import (
    Attention,
    Experts,
    HeadNorm,
    LayerDescription,
    ModelDescription,
    Router,
)
from plumbline.engines.native.models.families.experts.qwen import SHARED
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    attention_bias,
    dense,
    heads,
    layer_types,
    model,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _flint(fields: Fields) -> ModelDescription:
    count = fields.integer("num_hidden_layers")
    by_default = (
        FULL if layer < 2 or layer % 4 == 1 or layer == count - 1 else SLIDING for layer in range(count)
    )
    types = layer_types(fields, by_default)
    shape, rope, bias = heads(fields, 128), read_rope(fields), attention_bias(fields)
    experts, plain = _experts(fields), dense(fields)
    without, step = fields.get("mlp_only_layers", [0, 1]), fields.integer("decoder_sparse_step", 1)
    layers = [
        LayerDescription(
            mixer=Attention(
                **shape,
                **bias,
                rope=rope if kind == SLIDING else None,
                head_norm=HeadNorm(),
                sinks=True,
                window=window,
            ),
            feed_forward=plain if layer in without or (layer + 1) % step else experts,
        )
        for layer, (kind, window) in enumerate(zip(types, windows(fields, types), strict=True))
    ]
    return model(fields, layers, names=replace(SHARED, sinks="self_attn.softmax_offset"))


def _experts(fields: Fields) -> Experts:
    return Experts(
        number=fields.integer("num_experts", 256),
        width=fields.integer("moe_intermediate_size"),
        router=Router(
            top_k=fields.integer("num_experts_per_tok", 6),
            scores="sigmoid",
            normalised=fields.flag("norm_topk_prob", True),
        ),
        activation=fields.activation(),
        shared=dense(fields, width="shared_expert_intermediate_size"),
    )


FAMILIES = {"flint": Family("Flint", _flint)}

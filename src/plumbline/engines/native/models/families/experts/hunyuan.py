"""Hunyuan with experts: the softmax of all logits, a shared expert, norms of heads after the rotation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plumbline.engines.native.models.description import (
    Experts,
    LayerDescription,
    ModelDescription,
    Router,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.dense.hunyuan import HEAD_NORMS, hunyuan_mixer
from plumbline.engines.native.models.families.parts import Family, dense, model, rms
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]

_NAMES = replace(
    HEAD_NORMS,
    router="mlp.gate.wg",
    shared_gate_up=("mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"),
    shared_down="mlp.shared_mlp.down_proj",
)
_WITHOUT_EFFECT = (
    "capacity_factor group_limited_greedy moe_drop_tokens moe_intermediate_size moe_layer_num_skipped "
    "moe_random_routing_dropped_token n_group norm_topk_prob num_shared_expert routed_scaling_factor topk_group "
    "use_mixed_mlp_moe"
)
"""Further fields of released configs; transformers ignores them."""


def _hunyuan(fields: Fields) -> ModelDescription:
    fields.without_effect(_WITHOUT_EFFECT)
    mixer, shared, count = hunyuan_mixer(fields), dense(fields), fields.integer("num_hidden_layers")
    numbers, tops = (_by_layer(fields.get(name, 1), count) for name in ("num_experts", "moe_topk"))
    layers = (
        LayerDescription(
            mixer=mixer,
            feed_forward=Experts(
                number=number,
                width=shared.width,
                router=Router(top_k=top_k),
                activation=shared.activation,
                shared=shared,
            ),
        )
        for number, top_k in zip(numbers, tops, strict=True)
    )
    return model(fields, layers, rms(fields), names=_NAMES)


def _by_layer(value: Any, count: int) -> list[int]:
    """Return a number for each layer from one for all or a list."""
    numbers = value if isinstance(value, list) else [value] * count
    if len(numbers) < count or not all(isinstance(number, int) and number > 0 for number in numbers):
        raise UnsupportedModelError("num_experts and moe_topk must be positive integers for every layer")
    return numbers[:count]


FAMILIES = {"hunyuan_v1_moe": Family("Hunyuan A13B", _hunyuan)}

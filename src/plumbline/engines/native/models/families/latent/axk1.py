"""A.X K1: the latent attention and the experts of DeepSeek V3, with a norm after experts."""

from __future__ import annotations

from dataclasses import replace

from plumbline.engines.native.models.description import Experts, ModelDescription
from plumbline.engines.native.models.families.latent.attention import as_released, latent_mixers
from plumbline.engines.native.models.families.parts import Family, dense, model
from plumbline.engines.native.models.families.routed import (
    deepseek_experts,
    layers_by_type,
    next_token_layers,
)
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _axk1(fields: Fields) -> ModelDescription:
    as_released(fields, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    mixers, plain, experts = latent_mixers(fields), dense(fields), deepseek_experts(fields)
    first = fields.get("first_k_dense_replace", 1)
    layers = [
        replace(layer, norms="three") if isinstance(layer.feed_forward, Experts) else layer
        for layer in layers_by_type(fields, mixers, plain, experts, first)
    ]
    names = replace(next_token_layers(fields, 1), after_feed_forward="post_mlp_layernorm")
    return model(fields, layers, names=names)


FAMILIES = {"axk1": Family("A.X K1", _axk1)}

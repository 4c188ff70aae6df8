"""DeepSeek V2 and V3, and Kimi K2: latent attention, experts in groups."""

from __future__ import annotations

from plumbline.engines.native.models.description import ModelDescription, Router, UnsupportedModelError
from plumbline.engines.native.models.families.latent.attention import as_released, latent_mixers
from plumbline.engines.native.models.families.parts import Family, model
from plumbline.engines.native.models.families.routed import deepseek_experts, next_token_layers, sparse_layers
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _v2(fields: Fields) -> ModelDescription:
    as_released(fields, scoring_func="softmax", moe_layer_freq=1)
    fields.refuse("mlp_bias", "norm_topk_prob")
    method = fields.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise UnsupportedModelError(f"topk_method {method!r} is not supported")
    groups = fields.get("n_group", 1), fields.get("topk_group", 1)
    router = Router(
        top_k=fields.integer("num_experts_per_tok"),
        groups=groups[0] if method == "group_limited_greedy" else 1,
        chosen_groups=groups[1] if method == "group_limited_greedy" else 1,
        groups_by_two=False,
        normalised=False,
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    return model(
        fields, sparse_layers(fields, latent_mixers(fields), deepseek_experts(fields, router), first=0)
    )


def _v3(fields: Fields) -> ModelDescription:
    as_released(fields, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    layers = sparse_layers(fields, latent_mixers(fields), deepseek_experts(fields), first=3)
    return model(fields, layers, names=next_token_layers(fields, 1))


FAMILIES = {
    "deepseek_v2": Family("DeepSeek V2", _v2),
    "deepseek_v3": Family("DeepSeek V3, V3.1 and R1", _v3),
    "kimi_k2": Family("Kimi K2", _v3),
}

"""DeepSeek V2 and V3, and what has their latent attention: Kimi K2, GLM-4.7-Flash, Youtu-LLM."""

from __future__ import annotations

import math

from plumbline.engines.native.models.description import (
    Latent,
    LayerDescription,
    ModelDescription,
    Norm,
    Router,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.experts.glm import (
    deepseek_experts,
    next_token_layers,
    sparse_layers,
)
from plumbline.engines.native.models.families.parts import Family, alike, dense, model
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _mixer(fields: Fields) -> Latent:
    # Derived from other fields.
    fields.without_effect("head_dim", "qk_head_dim", "num_key_value_heads", "num_local_experts")
    rope = read_rope(fields, interleaved=fields.flag("rope_interleave", True))
    key_dim, rope_dim = fields.integer("qk_nope_head_dim", 128), fields.integer("qk_rope_head_dim", 64)
    scale = (key_dim + rope_dim) ** -0.5
    if rope.mscale_all_dim and rope.factor > 1:
        scale *= (0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1) ** 2
    return Latent(
        heads=fields.integer("num_attention_heads"),
        rank=fields.integer("kv_lora_rank", 512),
        key_dim=key_dim,
        rope_dim=rope_dim,
        value_dim=fields.integer("v_head_dim", 128),
        rope=rope,
        scale=scale,
        query_rank=fields.get("q_lora_rank"),
        bias=fields.flag("attention_bias"),
    )


def _mixers(fields: Fields) -> list[Latent]:
    return [_mixer(fields)] * fields.integer("num_hidden_layers")


def _v2(fields: Fields) -> ModelDescription:
    _released(fields, scoring_func="softmax", moe_layer_freq=1)
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
    return model(fields, sparse_layers(fields, _mixers(fields), deepseek_experts(fields, router), first=0))


def _v3(fields: Fields) -> ModelDescription:
    _released(fields, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    layers = sparse_layers(fields, _mixers(fields), deepseek_experts(fields), first=3)
    return model(fields, layers, names=next_token_layers(fields, 1))


def _glm_lite(fields: Fields) -> ModelDescription:
    _released(fields, scoring_func="sigmoid", topk_method="noaux_tc")
    fields.without_effect("first_k_dense_replace", "partial_rotary_factor")
    count = fields.integer("num_hidden_layers")
    kinds = fields.get("mlp_layer_types", ["dense"] + ["sparse"] * (count - 1))
    if len(kinds) != count or set(kinds) - {"dense", "sparse"}:
        raise UnsupportedModelError("mlp_layer_types must be dense or sparse for every layer")
    plain, experts, mixer = dense(fields), deepseek_experts(fields), _mixer(fields)
    layers = (
        LayerDescription(mixer=mixer, feed_forward=plain if kind == "dense" else experts) for kind in kinds
    )
    norm = Norm(eps=fields.number("rms_norm_eps", 1e-5))
    return model(fields, layers, norm, names=next_token_layers(fields, 1))


def _youtu(fields: Fields) -> ModelDescription:
    fields.without_effect("embedding_initializer_range", "mlp_bias")
    return model(fields, alike(fields, _mixer(fields), dense(fields)), tied=True)


def _released(fields: Fields, **expected: object) -> None:
    """Accept what releases carry besides the fields of transformers, as far as it says what transformers computes."""
    fields.without_effect("aux_loss_alpha", "seq_aux", "ep_size", "topk_method", *expected)
    for name, value in expected.items():
        if fields.get(name, value) != value:
            raise UnsupportedModelError(f"{name} must be {value!r}, not {fields.get(name)!r}")


FAMILIES = {
    "deepseek_v2": Family("DeepSeek V2", _v2),
    "deepseek_v3": Family("DeepSeek V3, V3.1 and R1", _v3),
    "kimi_k2": Family("Kimi K2", _v3),
    "glm4_moe_lite": Family("GLM-4.7-Flash", _glm_lite),
    "youtu": Family("Youtu-LLM", _youtu),
}

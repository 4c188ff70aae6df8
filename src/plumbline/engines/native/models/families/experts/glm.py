"""GLM-4.5 and dots.llm1: the experts of DeepSeek V3 with the attention of other families."""

from __future__ import annotations

from collections.abc import Sequence

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    Experts,
    HeadNorm,
    Latent,
    LayerDescription,
    ModelDescription,
    Norm,
    Router,
)
from plumbline.engines.native.models.families.dense.qwen import qwen3_mixers
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    alike,
    dense,
    heads,
    layer_types,
    model,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES", "corrected_router", "deepseek_experts", "next_token_layers", "sparse_layers"]


def deepseek_experts(fields: Fields, router: Router | None = None) -> Experts:
    """Read the experts; by default they are chosen by `corrected_router`."""
    width, shared = fields.integer("moe_intermediate_size"), fields.get("n_shared_experts", 0)
    return Experts(
        number=fields.integer("n_routed_experts"),
        width=width,
        router=router or corrected_router(fields),
        activation=fields.activation(),
        shared=Dense(width=width * shared, activation=fields.activation()) if shared else None,
    )


def corrected_router(fields: Fields, *, normalised: bool = True) -> Router:
    """Read a choice by sigmoids with a correction, in groups.

    Args:
        fields: of the config.
        normalised: `norm_topk_prob` where the config lacks it.
    """
    return Router(
        top_k=fields.integer("num_experts_per_tok"),
        scores="sigmoid",
        correction=True,
        groups=fields.integer("n_group", 1),
        chosen_groups=fields.integer("topk_group", 1),
        normalised=fields.flag("norm_topk_prob", normalised),
        scale=fields.number("routed_scaling_factor", 1.0),
    )


def sparse_layers(
    fields: Fields, mixers: Sequence[Attention | Latent], experts: Experts, first: int
) -> list[LayerDescription]:
    """Return layers of which `first_k_dense_replace` have no experts; `first` is its default."""
    plain, dense_layers = dense(fields), fields.get("first_k_dense_replace", first)
    return [
        LayerDescription(mixer=mixer, feed_forward=plain if layer < dense_layers else experts)
        for layer, mixer in enumerate(mixers)
    ]


def next_token_layers(fields: Fields, default: int = 0) -> Names:
    """Return names in which the layers after the last one, which predict further tokens, are ignored."""
    count = fields.integer("num_hidden_layers")
    further = fields.get("num_nextn_predict_layers", fields.get("num_mtp_layers", default))
    return Names(ignored=tuple(f"model.layers.{count + layer}." for layer in range(further)))


def _glm4(fields: Fields) -> ModelDescription:
    fields.without_effect("num_local_experts")
    mixer = Attention(
        **heads(fields),
        rope=read_rope(fields, part=0.5),
        qkv_bias=fields.flag("attention_bias"),
        head_norm=HeadNorm() if fields.flag("use_qk_norm") else None,
    )
    mixers = (mixer,) * fields.integer("num_hidden_layers")
    layers = sparse_layers(fields, mixers, deepseek_experts(fields), first=1)
    norm = Norm(eps=fields.number("rms_norm_eps", 1e-5))
    return model(fields, layers, norm, names=next_token_layers(fields, 1))


def _solar(fields: Fields) -> ModelDescription:
    fields.without_effect("num_local_experts", "first_k_dense_replace", "intermediate_size", "use_qk_norm")
    mixer = Attention(
        **heads(fields, head_dim=128),
        rope=read_rope(fields, 1000000.0, part=1.0),
        qkv_bias=fields.flag("attention_bias"),
    )
    experts, norm = deepseek_experts(fields), Norm(eps=fields.number("rms_norm_eps", 1e-5))
    return model(fields, alike(fields, mixer, experts), norm)


def _dots(fields: Fields) -> ModelDescription:
    fields.without_effect("num_local_experts", "scoring_func", "topk_method", "moe_layer_freq", "ep_size")
    count, last = fields.integer("num_hidden_layers"), fields.get("max_window_layers", 62)
    types = layer_types(fields, (SLIDING if layer >= last else FULL for layer in range(count)))
    mixers = qwen3_mixers(fields, windows(fields, types), None)
    experts = deepseek_experts(fields, corrected_router(fields, normalised=False))
    return model(fields, sparse_layers(fields, mixers, experts, first=0))


FAMILIES = {
    "glm4_moe": Family("GLM-4.5, GLM-4.6, GLM-4.7", _glm4),
    "solar_open": Family("Solar Open", _solar),
    "dots1": Family("dots.llm1", _dots),
}

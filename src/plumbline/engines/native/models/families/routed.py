"""Read the experts of DeepSeek V3, which several families have: layers without them, and a choice by sigmoids."""

from __future__ import annotations

from collections.abc import Sequence

from plumbline.engines.native.models.description import (
    Dense,
    Experts,
    LayerDescription,
    Mixer,
    Router,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.parts import dense
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["corrected_router", "deepseek_experts", "layers_by_type", "next_token_layers", "sparse_layers"]


def deepseek_experts(fields: Fields, router: Router | None = None) -> Experts:
    """Read the experts; by default they are chosen by `corrected_router`."""
    width, shared = fields.integer("moe_intermediate_size"), fields.get("n_shared_experts", 0)
    if shared:
        fields.integer("n_shared_experts")
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
    fields: Fields, mixers: Sequence[Mixer], experts: Experts, first: int
) -> list[LayerDescription]:
    """Return layers of which `first_k_dense_replace` have no experts; `first` is its default."""
    plain, dense_layers = dense(fields), fields.get("first_k_dense_replace", first)
    return [
        LayerDescription(mixer=mixer, feed_forward=plain if layer < dense_layers else experts)
        for layer, mixer in enumerate(mixers)
    ]


def layers_by_type(
    fields: Fields, mixers: Sequence[Mixer], plain: Dense, experts: Experts, first: int
) -> tuple[LayerDescription, ...]:
    """Return layers with or without experts by `mlp_layer_types`; without it, the `first` ones have none.

    Raises:
        UnsupportedModelError: it does not name every layer, or a type that there is not.
    """
    by_default = ["dense" if layer < first else "sparse" for layer in range(len(mixers))]
    kinds = fields.get("mlp_layer_types", by_default)
    if len(kinds) != len(mixers) or set(kinds) - {"dense", "sparse"}:
        raise UnsupportedModelError("mlp_layer_types must be dense or sparse for every layer")
    return tuple(
        LayerDescription(mixer=mixer, feed_forward=plain if kind == "dense" else experts)
        for mixer, kind in zip(mixers, kinds, strict=True)
    )


def next_token_layers(fields: Fields, default: int = 0) -> Names:
    """Return names in which the layers after the last one, which predict further tokens, are ignored."""
    count = fields.integer("num_hidden_layers")
    further = fields.get("num_nextn_predict_layers", fields.get("num_mtp_layers", default))
    return Names(ignored=tuple(f"model.layers.{count + layer}." for layer in range(further)))

"""Qwen3-Next and Qwen 3.5: gated delta nets, and gated attention in every fourth layer; dense or with experts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from plumbline.engines.native.models.description import (
    LayerDescription,
    ModelDescription,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.experts.qwen import SHARED, expert_layers, experts
from plumbline.engines.native.models.families.hybrid.gated_delta import gated_delta_mixers
from plumbline.engines.native.models.families.parts import Family, Wrapped, dense, model, rms, stack
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_IGNORED = ("mtp.",)
"""Layers that predict further tokens."""
_NEXT = replace(SHARED, delta=("linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"), ignored=_IGNORED)
_DENSE = Names(ignored=_IGNORED)
_EXPERTS = replace(SHARED, ignored=_IGNORED)


def _qwen3_next(fields: Fields) -> ModelDescription:
    shared = dense(fields, width="shared_expert_intermediate_size")
    block = experts(fields, fields.integer("num_experts", 512), shared, normalised=True)
    return _model(fields, expert_layers(fields, gated_delta_mixers(fields, by_key_head=True), block), _NEXT)


def _qwen3_5(fields: Fields) -> ModelDescription:
    fields.without_effect("mlp_only_layers")
    feed_forward = dense(fields)
    return _model(fields, stack(gated_delta_mixers(fields, turned=True), feed_forward), _DENSE)


def _qwen3_5_moe(fields: Fields) -> ModelDescription:
    fields.without_effect("intermediate_size")
    if plain := fields.get("mlp_only_layers"):
        raise UnsupportedModelError(f"mlp_only_layers {plain} are not supported")
    shared = dense(fields, width="shared_expert_intermediate_size")
    block = experts(fields, fields.integer("num_experts", 256), shared, normalised=True)
    return _model(fields, stack(gated_delta_mixers(fields, turned=True), block), _EXPERTS)


def _model(fields: Fields, layers: Iterable[LayerDescription], names: Names) -> ModelDescription:
    fields.without_effect("mtp_num_hidden_layers mtp_use_dedicated_embeddings mamba_ssm_dtype")
    fields.refuse("mlp_bias", "use_sliding_window", "sliding_window")
    return model(fields, layers, rms(fields, 1e-6, offset=1.0), names=names)


FAMILIES = {
    "qwen3_next": Family("Qwen3-Next", _qwen3_next),
    "qwen3_5_text": Family("Qwen 3.5, dense", _qwen3_5, Wrapped("qwen3_5", "Qwen 3.5, dense", {})),
    "qwen3_5_moe_text": Family(
        "Qwen 3.5 with experts",
        _qwen3_5_moe,
        Wrapped("qwen3_5_moe", "Qwen 3.5 with experts", {}),
    ),
}

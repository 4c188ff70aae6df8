"""GLM-4.7-Flash: the latent attention and the experts of DeepSeek V3."""

from __future__ import annotations

from plumbline.engines.native.models.description import ModelDescription
from plumbline.engines.native.models.families.latent.attention import as_released, latent_mixers
from plumbline.engines.native.models.families.parts import Family, dense, model, rms
from plumbline.engines.native.models.families.routed import (
    deepseek_experts,
    layers_by_type,
    next_token_layers,
)
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _glm_lite(fields: Fields) -> ModelDescription:
    as_released(fields, scoring_func="sigmoid", topk_method="noaux_tc")
    fields.without_effect("first_k_dense_replace", "partial_rotary_factor")
    mixers, plain, experts = latent_mixers(fields), dense(fields), deepseek_experts(fields)
    layers = layers_by_type(fields, mixers, plain, experts, first=1)
    return model(fields, layers, rms(fields), names=next_token_layers(fields, 1))


FAMILIES = {"glm4_moe_lite": Family("GLM-4.7-Flash", _glm_lite)}

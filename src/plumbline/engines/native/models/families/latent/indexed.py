"""DeepSeek V3.2 and GLM-5: latent attention to the keys that an indexer chooses.

Up to `index_topk` tokens the indexer chooses all of them, so the attention is that of DeepSeek V3. Longer sequences are
refused, and the weights of indexers are left alone.
"""

from __future__ import annotations

from dataclasses import replace

from plumbline.engines.native.models.description import ModelDescription, Norm, UnsupportedModelError
from plumbline.engines.native.models.families.latent.attention import as_released, latent_mixers
from plumbline.engines.native.models.families.parts import Family, dense, model, rms
from plumbline.engines.native.models.families.routed import (
    deepseek_experts,
    layers_by_type,
    next_token_layers,
)
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]

_OF_INDEXERS = (
    "index_head_dim index_n_heads index_skip_topk_offset index_topk_freq index_topk_pattern indexer_rope_interleave "
    "indexer_types"
)


def _v32(fields: Fields) -> ModelDescription:
    return _describe(fields, rms(fields, 1e-6))


def _glm(fields: Fields) -> ModelDescription:
    return _describe(fields, rms(fields))


def _describe(fields: Fields, norm: Norm) -> ModelDescription:
    as_released(
        fields, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1, rope_interleave=True
    )
    fields.without_effect(_OF_INDEXERS)
    fields.refuse("mlp_bias")
    if {*fields.get("layer_types", [])} - {"indexed_attention"}:
        raise UnsupportedModelError("layer_types must be indexed_attention for every layer")
    most = fields.integer("index_topk", 2048)
    mixers, plain, experts = latent_mixers(fields), dense(fields), deepseek_experts(fields)
    layers = layers_by_type(fields, mixers, plain, experts, fields.get("first_k_dense_replace", 3))
    names = next_token_layers(fields, 1)
    indexers = (f"model.layers.{layer}.self_attn.indexer." for layer in range(len(layers)))
    found = model(fields, layers, norm, names=replace(names, ignored=(*names.ignored, *indexers)))
    length = min(found.context_length, most)
    return replace(found, context_length=length, longest=most, longest_field="index_topk")


FAMILIES = {
    "deepseek_v32": Family("DeepSeek V3.2, up to `index_topk` tokens", _v32),
    "glm_moe_dsa": Family("GLM-5, up to `index_topk` tokens", _glm),
}

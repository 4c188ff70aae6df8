"""GLM-4.5, Solar Open and dots.llm1: the experts of DeepSeek V3 with the attention of other families."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, HeadNorm, ModelDescription
from plumbline.engines.native.models.families.dense.qwen import qwen3_mixers
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    alike,
    heads,
    layer_types,
    model,
    rms,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.families.routed import (
    corrected_router,
    deepseek_experts,
    next_token_layers,
    sparse_layers,
)
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


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
    norm = rms(fields)
    return model(fields, layers, norm, names=next_token_layers(fields, 1))


def _solar(fields: Fields) -> ModelDescription:
    fields.without_effect("num_local_experts", "first_k_dense_replace", "intermediate_size", "use_qk_norm")
    mixer = Attention(
        **heads(fields, head_dim=128),
        rope=read_rope(fields, 1000000.0, part=1.0),
        qkv_bias=fields.flag("attention_bias"),
    )
    experts, norm = deepseek_experts(fields), rms(fields)
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

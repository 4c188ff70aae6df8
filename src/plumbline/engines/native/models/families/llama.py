"""Llama, Mistral, Qwen2 and Qwen3: gated feed-forward blocks, a norm before each block, rotary embeddings."""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    HeadNorm,
    LayerDescription,
    ModelDescription,
)
from plumbline.engines.native.models.families.family import (
    Family,
    alike,
    attention_bias,
    heads,
    layer_windows,
    model,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _llama(fields: Fields) -> ModelDescription:
    fields.without_effect("is_llama_config", "sliding_window")
    fields.refuse("rope_interleaved")
    mixer = Attention(**heads(fields), rope=read_rope(fields), **attention_bias(fields))
    return model(fields, alike(fields, mixer, dense(fields, bias=fields.flag("mlp_bias"))))


def _mistral(fields: Fields) -> ModelDescription:
    fields.refuse("attention_bias", "mlp_bias")
    mixer = Attention(**heads(fields), rope=read_rope(fields), window=fields.get("sliding_window"))
    return model(fields, alike(fields, mixer, dense(fields)))


def _qwen2(fields: Fields) -> ModelDescription:
    fields.refuse("use_mrope", "mlp_bias")
    shape, rope, feed_forward = heads(fields), read_rope(fields), dense(fields)
    return model(fields, tuple(
        LayerDescription(mixer=Attention(**shape, rope=rope, qkv_bias=True, window=window), feed_forward=feed_forward)
        for window in qwen_windows(fields)
    ))  # fmt: skip


def _qwen3(fields: Fields) -> ModelDescription:
    shape, rope, feed_forward = heads(fields, head_dim=128), read_rope(fields), dense(fields)
    bias = attention_bias(fields)
    return model(fields, tuple(
        LayerDescription(
            mixer=Attention(**shape, rope=rope, **bias, head_norm=HeadNorm(), window=window), feed_forward=feed_forward
        )
        for window in qwen_windows(fields)
    ))  # fmt: skip


def dense(fields: Fields, bias: bool = False) -> Dense:
    """Read the feed-forward block."""
    return Dense(width=fields.integer("intermediate_size"), activation=fields.activation(), bias=bias)


def qwen_windows(fields: Fields) -> tuple[int | None, ...]:
    """Read the window of each layer, which `use_sliding_window` turns on."""
    count, first = fields.integer("num_hidden_layers"), fields.get("max_window_layers", 28)
    types = ["sliding_attention" if layer >= first else "full_attention" for layer in range(count)]
    windows = layer_windows(fields, types)
    return windows if fields.flag("use_sliding_window") else (None,) * count


FAMILIES = {
    "llama": Family("Llama 2 and 3, Falcon 3, SmolLM2, DeepSeek-R1 distilled to Llama", _llama),
    "mistral": Family("Mistral 7B, Nemo, Small 3 (text)", _mistral),
    "qwen2": Family("Qwen 2 and 2.5, QwQ", _qwen2),
    "qwen3": Family("Qwen 3", _qwen3),
}

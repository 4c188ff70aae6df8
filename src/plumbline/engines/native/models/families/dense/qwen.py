"""Qwen 2 to 3, dense: a bias of q, k and v, or norms of heads."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, HeadNorm, ModelDescription
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    attention_bias,
    dense,
    heads,
    layer_types,
    model,
    stack,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES", "qwen3_mixers", "qwen_windows"]


def _qwen2(fields: Fields) -> ModelDescription:
    fields.refuse("use_mrope", "mlp_bias")
    shape, rope, feed_forward = heads(fields), read_rope(fields), dense(fields)
    mixers = (Attention(**shape, rope=rope, qkv_bias=True, window=window) for window in qwen_windows(fields))
    return model(fields, stack(mixers, feed_forward))


def _qwen3(fields: Fields) -> ModelDescription:
    fields.refuse("use_mrope", "mlp_bias")
    feed_forward = dense(fields)
    return model(fields, stack(qwen3_mixers(fields, qwen_windows(fields)), feed_forward))


def qwen3_mixers(
    fields: Fields, layer_windows: tuple[int | None, ...], head_dim: int | None = 128
) -> tuple[Attention, ...]:
    """Read the attention of Qwen 3 for layers with these windows; heads are normalised."""
    shape, rope, bias = heads(fields, head_dim), read_rope(fields), attention_bias(fields)
    return tuple(
        Attention(**shape, rope=rope, **bias, head_norm=HeadNorm(), window=window) for window in layer_windows
    )


def qwen_windows(fields: Fields) -> tuple[int | None, ...]:
    """Read the window of each layer, which `use_sliding_window` turns on."""
    count, first = fields.integer("num_hidden_layers"), fields.get("max_window_layers", 28)
    types = layer_types(fields, (SLIDING if layer >= first else FULL for layer in range(count)))
    found = windows(fields, types)
    return found if fields.flag("use_sliding_window") else (None,) * count


FAMILIES = {
    "qwen2": Family("Qwen 2 and 2.5, QwQ, DeepSeek-R1 distilled to Qwen", _qwen2),
    "qwen3": Family("Qwen 3", _qwen3),
}

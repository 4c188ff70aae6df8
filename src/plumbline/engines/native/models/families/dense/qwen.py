"""Qwen 2 to 3, dense, and the language models of Qwen-VL: a bias of q, k and v, or norms of heads."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, HeadNorm, ModelDescription, Norm, Rope
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    Wrapped,
    attention_bias,
    dense,
    heads,
    layer_types,
    model,
    rms,
    stack,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_mrope_axes, read_rope, rope_parameters
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES", "qwen3_mixers", "qwen3_vl_rope", "qwen_windows"]

_OF_IMAGES = "image_token_id video_token_id vision_end_token_id vision_start_token_id vision_token_id"
"""Fields that some configs of the language model also have."""


def _qwen2(fields: Fields) -> ModelDescription:
    fields.refuse("use_mrope", "mlp_bias")
    return _with_biases(fields, read_rope(fields), rms(fields, 1e-6))


def _qwen2_vl(fields: Fields) -> ModelDescription:
    fields.without_effect(_OF_IMAGES)
    parameters = rope_parameters(fields)
    axes = read_mrope_axes(parameters, (16, 24, 24), heads(fields)["head_dim"] // 2, alternate=False)
    return _with_biases(fields, read_rope(fields, 1e6, parameters=parameters, axes=axes), rms(fields, 1e-5))


def _with_biases(fields: Fields, rope: Rope, norm: Norm) -> ModelDescription:
    shape, feed_forward = heads(fields), dense(fields)
    mixers = (Attention(**shape, rope=rope, qkv_bias=True, window=window) for window in qwen_windows(fields))
    return model(fields, stack(mixers, feed_forward), norm)


def _qwen3(fields: Fields) -> ModelDescription:
    fields.refuse("use_mrope", "mlp_bias")
    feed_forward = dense(fields)
    return model(fields, stack(qwen3_mixers(fields, qwen_windows(fields)), feed_forward))


def _qwen3_vl(fields: Fields) -> ModelDescription:
    rope, feed_forward = qwen3_vl_rope(fields, 128), dense(fields)
    windows = (None,) * fields.integer("num_hidden_layers")
    return model(fields, stack(qwen3_mixers(fields, windows, rope=rope), feed_forward))


def qwen3_vl_rope(fields: Fields, head_dim: int | None) -> Rope:
    """Read the rotation of the text of Qwen3-VL, and leave fields of images alone."""
    fields.without_effect(_OF_IMAGES)
    parameters = rope_parameters(fields)
    pairs = heads(fields, head_dim)["head_dim"] // 2
    axes = read_mrope_axes(parameters, (24, 20, 20), pairs, alternate=True)
    return read_rope(fields, 5e5, parameters=parameters, axes=axes)


def qwen3_mixers(
    fields: Fields,
    layer_windows: tuple[int | None, ...],
    head_dim: int | None = 128,
    rope: Rope | None = None,
) -> tuple[Attention, ...]:
    """Read the attention of Qwen 3 for layers with these windows; heads are normalised."""
    shape, bias = heads(fields, head_dim), attention_bias(fields)
    rope = rope or read_rope(fields)
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
    "qwen2_vl_text": Family("Qwen2-VL", _qwen2_vl, Wrapped("qwen2_vl", "Qwen2-VL", {}, is_flat=True)),
    "qwen2_5_vl_text": Family("Qwen2.5-VL", _qwen2_vl, Wrapped("qwen2_5_vl", "Qwen2.5-VL", {}, is_flat=True)),
    "qwen3_vl_text": Family("Qwen3-VL", _qwen3_vl, Wrapped("qwen3_vl", "Qwen3-VL", {})),
}

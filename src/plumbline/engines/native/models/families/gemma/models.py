"""Describe what the models of Gemma 1 to 3 share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    HeadNorm,
    LayerDescription,
    ModelDescription,
    Placement,
    Rope,
)
from plumbline.engines.native.models.families.parts import attention_bias, heads, model, rms, stack, windows
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["AROUND", "gemma_model", "windowed_model"]

AROUND = Names(before_feed_forward="pre_feedforward_layernorm")
"""The names of norms around each block."""


def gemma_model(fields: Fields, layers: Iterable[LayerDescription], **changes: Any) -> ModelDescription:
    """Describe a model with scaled embeddings and with weights of norms around 0."""
    norm = rms(fields, 1e-6, offset=1.0)
    scale = fields.integer("hidden_size") ** 0.5
    return model(fields, layers, norm, tied=True, embedding_scale=scale, **changes)


def windowed_model(
    fields: Fields,
    types: tuple[str, ...],
    ropes: Mapping[str, Rope],
    *,
    caps: tuple[float | None, float | None] = (None, None),
    head_norm: HeadNorm | None = None,
    norms: Placement = "both",
) -> ModelDescription:
    """Describe a model in which some layers have a window.

    Args:
        fields: of the config.
        types: of the layers.
        ropes: the rotation of each type.
        caps: those of scores and of logits where the config has none.
        head_norm: of the attention.
        norms: where norms are.
    """
    fields.refuse("use_bidirectional_attention")
    # Released configs have these next to `hidden_activation` and `sliding_window`, which transformers reads.
    fields.without_effect("hidden_act", "sliding_window_size")
    shape, bias = heads(fields, head_dim=256), attention_bias(fields)
    scale = fields.number("query_pre_attn_scalar", 256) ** -0.5
    softcap = _cap(fields, "attn_logit_softcapping", caps[0])
    activation = fields.activation("hidden_activation", "gelu_pytorch_tanh")
    feed_forward = Dense(width=fields.integer("intermediate_size"), activation=activation)
    mixers = (
        Attention(
            **shape,
            **bias,
            rope=ropes[kind],
            head_norm=head_norm,
            window=window,
            softcap=softcap,
            scores_scale=scale,
        )
        for kind, window in zip(types, windows(fields, types), strict=True)
    )
    layers = stack(mixers, feed_forward, norms)
    cap = _cap(fields, "final_logit_softcapping", caps[1])
    return gemma_model(fields, layers, logits_softcap=cap, names=AROUND)


def _cap(fields: Fields, name: str, default: float | None) -> float | None:
    """Read a cap; null turns off that of Gemma 2."""
    if fields.has(name):
        return None if fields.get(name) is None else fields.number(name, 0.0)
    return default

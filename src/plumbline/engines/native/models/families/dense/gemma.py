"""Gemma 1 to 3, text: scaled embeddings, weights of norms around 0, norms around each block, capped scores."""

from __future__ import annotations

from typing import Any

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    HeadNorm,
    LayerDescription,
    ModelDescription,
    Norm,
    Placement,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    alike,
    attention_bias,
    every,
    heads,
    layer_types,
    model,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope, read_ropes, rope_theta
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["AROUND", "FAMILIES"]

AROUND = Names(before_feed_forward="pre_feedforward_layernorm")


def _gemma(fields: Fields) -> ModelDescription:
    fields.refuse("use_bidirectional_attention")
    fields.without_effect("hidden_activation")
    act = fields.get("hidden_act", "gelu_pytorch_tanh")
    # Releases say "gelu", and mean its approximation with tanh.
    if act not in ("gelu", "gelu_pytorch_tanh"):
        raise UnsupportedModelError(f"hidden_act {act!r} is not supported (gelu_pytorch_tanh is)")
    mixer = Attention(**heads(fields, head_dim=256), rope=read_rope(fields), **attention_bias(fields))
    feed_forward = Dense(width=fields.integer("intermediate_size"), activation="gelu_tanh")
    return model(fields, alike(fields, mixer, feed_forward), _norm(fields), **_shared(fields))


def _gemma2(fields: Fields) -> ModelDescription:
    types = layer_types(fields, every(fields, 2))
    rope = read_rope(fields)
    return _around(fields, types, {FULL: rope, SLIDING: rope}, caps=(50.0, 30.0), head_norm=None)


def _gemma3(fields: Fields) -> ModelDescription:
    pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    types = layer_types(fields, every(fields, pattern))
    local = fields.number("rope_local_base_freq", 10000.0)
    ropes = read_ropes(fields, {FULL: rope_theta(fields, 1000000.0), SLIDING: local})
    return _around(fields, types, ropes, caps=(None, None), head_norm=HeadNorm())


def _vaultgemma(fields: Fields) -> ModelDescription:
    types = layer_types(fields, every(fields, 2))
    rope = read_rope(fields)
    ropes = {FULL: rope, SLIDING: rope}
    return _around(fields, types, ropes, caps=(50.0, 30.0), head_norm=None, norms="before")


def _around(
    fields: Fields,
    types: tuple[str, ...],
    ropes: dict[str, Any],
    caps: tuple[float | None, float | None],
    head_norm: HeadNorm | None,
    norms: Placement = "both",
) -> ModelDescription:
    """Describe a model with norms around each block; `caps` are those of scores and logits where none are given."""
    fields.refuse("use_bidirectional_attention")
    # transformers reads the other one.
    fields.without_effect("hidden_act", "sliding_window_size")
    shape, bias = heads(fields, head_dim=256), attention_bias(fields)
    scale = fields.number("query_pre_attn_scalar", 256) ** -0.5
    softcap = _cap(fields, "attn_logit_softcapping", caps[0])
    activation = fields.activation("hidden_activation", "gelu_pytorch_tanh")
    feed_forward = Dense(width=fields.integer("intermediate_size"), activation=activation)
    layers = (
        LayerDescription(
            mixer=Attention(
                **shape, **bias, rope=ropes[kind], head_norm=head_norm,
                window=window, softcap=softcap, scores_scale=scale,
            ),
            feed_forward=feed_forward,
            norms=norms,
        )
        for kind, window in zip(types, windows(fields, types), strict=True)
    )  # fmt: skip
    cap = _cap(fields, "final_logit_softcapping", caps[1])
    return model(fields, layers, _norm(fields), logits_softcap=cap, names=AROUND, **_shared(fields))


def _cap(fields: Fields, name: str, default: float | None) -> float | None:
    """Read a cap; null turns off that of Gemma 2."""
    if fields.has(name):
        return None if fields.get(name) is None else fields.number(name, 0.0)
    return default


def _norm(fields: Fields) -> Norm:
    return Norm(eps=fields.number("rms_norm_eps", 1e-6), offset=1.0)


def _shared(fields: Fields) -> dict[str, Any]:
    return {"tied": True, "embedding_scale": fields.integer("hidden_size") ** 0.5}


FAMILIES = {
    "gemma": Family("Gemma 1", _gemma),
    "gemma2": Family("Gemma 2", _gemma2),
    "vaultgemma": Family("VaultGemma", _vaultgemma),
    "gemma3_text": Family("Gemma 3 (text)", _gemma3),
}

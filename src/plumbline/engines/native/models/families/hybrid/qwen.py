"""Qwen3-Next and Qwen 3.5: gated delta nets, and gated attention in every fourth layer; dense or with experts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from plumbline.engines.native.models.description import (
    Attention,
    DeltaNet,
    Dense,
    Experts,
    HeadNorm,
    LayerDescription,
    ModelDescription,
    Norm,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.experts.qwen import SHARED, expert_layers, experts
from plumbline.engines.native.models.families.parts import (
    FULL,
    Family,
    attention_bias,
    dense,
    heads,
    layer_types,
    model,
)
from plumbline.engines.native.models.families.rope_fields import read_rope, rope_parameters
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_LINEAR = "linear_attention"
_IGNORED = ("mtp.",)
"""Layers that predict further tokens."""
_NEXT = replace(SHARED, delta=("linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"), ignored=_IGNORED)
_DENSE = Names(ignored=_IGNORED)
_EXPERTS = replace(SHARED, ignored=_IGNORED)
Mixer = Attention | DeltaNet


def _qwen3_next(fields: Fields) -> ModelDescription:
    shared = dense(fields, width="shared_expert_intermediate_size")
    block = experts(fields, fields.integer("num_experts", 512), shared, normalised=True)
    return _model(fields, expert_layers(fields, _mixers(fields, by_key_head=True), block), _NEXT)


def _qwen3_5(fields: Fields) -> ModelDescription:
    fields.without_effect("mlp_only_layers")
    feed_forward = dense(fields)
    layers = (LayerDescription(mixer=mixer, feed_forward=feed_forward) for mixer in _mixers(fields))
    return _model(fields, layers, _DENSE)


def _qwen3_5_moe(fields: Fields) -> ModelDescription:
    fields.without_effect("intermediate_size")
    if plain := fields.get("mlp_only_layers"):
        raise UnsupportedModelError(f"mlp_only_layers {plain} are not supported")
    shared = dense(fields, width="shared_expert_intermediate_size")
    block: Dense | Experts = experts(fields, fields.integer("num_experts", 256), shared, normalised=True)
    layers = (LayerDescription(mixer=mixer, feed_forward=block) for mixer in _mixers(fields))
    return _model(fields, layers, _EXPERTS)


def _model(fields: Fields, layers: Iterable[LayerDescription], names: Names) -> ModelDescription:
    fields.without_effect("mtp_num_hidden_layers mtp_use_dedicated_embeddings mamba_ssm_dtype")
    fields.refuse("mlp_bias", "use_sliding_window", "sliding_window")
    return model(fields, layers, Norm(eps=fields.number("rms_norm_eps", 1e-6), offset=1.0), names=names)


def _mixers(fields: Fields, *, by_key_head: bool = False) -> list[Mixer]:
    """Read the mixer of each layer."""
    parameters = rope_parameters(fields)
    # A text has the same position on the three axes, so the parts of a head for each axis do not matter.
    for name in ("mrope_section", "mrope_interleaved"):
        parameters.pop(name, None)
    attention = Attention(
        **heads(fields, 256),
        **attention_bias(fields),
        rope=read_rope(fields, parameters=parameters, part=0.25),
        head_norm=HeadNorm(),
        gated=fields.flag("attn_output_gate", True),
    )
    net = DeltaNet(
        key_heads=fields.integer("linear_num_key_heads", 16),
        value_heads=fields.integer("linear_num_value_heads", 32),
        key_dim=fields.integer("linear_key_head_dim", 128),
        value_dim=fields.integer("linear_value_head_dim", 128),
        taps=fields.integer("linear_conv_kernel_dim", 4),
        by_key_head=by_key_head,
        eps=fields.number("rms_norm_eps", 1e-6),
    )
    mixers: dict[str, Mixer] = {FULL: attention, _LINEAR: net}
    count, interval = fields.integer("num_hidden_layers"), fields.integer("full_attention_interval", 4)
    by_default = (_LINEAR if (layer + 1) % interval else FULL for layer in range(count))
    types = layer_types(fields, by_default, (FULL, _LINEAR))
    if FULL not in types:
        # The cache is counted in the bytes of a token, which would be none.
        raise UnsupportedModelError(f"layer_types must have a {FULL!r} layer")
    return [mixers[kind] for kind in types]


FAMILIES = {
    "qwen3_next": Family("Qwen3-Next", _qwen3_next),
    "qwen3_5_text": Family("Qwen 3.5, dense", _qwen3_5),
    "qwen3_5_moe_text": Family("Qwen 3.5 with experts", _qwen3_5_moe),
}

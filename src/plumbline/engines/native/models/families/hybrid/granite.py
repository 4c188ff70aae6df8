"""Granite 4: state spaces of Mamba 2 in most layers, or in none; dense or with experts beside a shared one."""

from __future__ import annotations

import math
from dataclasses import replace

from plumbline.engines.native.models.description import (
    Attention,
    DeltaNet,
    Dense,
    Experts,
    LayerDescription,
    ModelDescription,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.dense.granite import factors, granite_mixer
from plumbline.engines.native.models.families.experts.granite import NAMES, experts
from plumbline.engines.native.models.families.parts import FULL, Family, dense, model
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]

_WITHOUT_EFFECT = (
    "init_method mamba_chunk_size normalization_function rope_theta time_step_floor time_step_max "
    "time_step_min"
)
_OF_STATE_SPACES = (
    "mamba_conv_bias mamba_d_conv mamba_d_head mamba_d_state mamba_expand mamba_n_groups mamba_n_heads "
    "mamba_proj_bias time_step_limit"
)
"""What a model without state spaces has for them, too."""
_KINDS = {FULL: FULL, "attention": FULL, "linear_attention": "mamba", "mamba": "mamba"}
"""The types of layers, as transformers 5 writes them and as releases do."""
_NAMES = replace(
    NAMES,
    gate_up=NAMES.shared_gate_up,
    down=NAMES.shared_down,
    delta=("mamba.in_proj",),
    delta_conv="mamba.conv1d",
    delta_rates="mamba.A_log",
    delta_shifts="mamba.dt_bias",
    delta_norm="mamba.norm",
    delta_o="mamba.out_proj",
)


def _granite_hybrid(fields: Fields) -> ModelDescription:
    fields.without_effect(_WITHOUT_EFFECT)
    count = fields.integer("num_hidden_layers")
    types = fields.get("layer_types") or fields.get("layers_block_type") or ["mamba"] * count
    if unknown := {*types} - _KINDS.keys():
        raise UnsupportedModelError(f"layer_types {sorted(unknown)} are not supported")
    if len(types) != count or FULL not in (kinds := [_KINDS[kind] for kind in types]):
        # The cache is counted in the bytes of a token, which would be none.
        raise UnsupportedModelError(f"layer_types must name every layer, and one of them {FULL!r}")
    shared = dense(fields, width="shared_intermediate_size")
    if fields.get("num_local_experts", 8):
        block: Dense | Experts = experts(fields, shared)
    else:
        block = shared
        fields.without_effect("num_experts_per_tok", "intermediate_size")
    mixers: dict[str, Attention | DeltaNet] = {FULL: _attention(fields)}
    if "mamba" in kinds:
        mixers["mamba"] = _state_space(fields)
    fields.without_effect(_OF_STATE_SPACES)
    layers = [LayerDescription(mixer=mixers[kind], feed_forward=block) for kind in kinds]
    return model(fields, layers, names=_NAMES, **factors(fields))


def _attention(fields: Fields) -> Attention:
    position, mixer = fields.get("position_embedding_type"), granite_mixer(fields)
    if position not in (None, "rope", "nope"):
        raise UnsupportedModelError(f"position_embedding_type {position!r} is not supported (rope is)")
    return mixer if position == "rope" else replace(mixer, rope=None)


def _state_space(fields: Fields) -> DeltaNet:
    fields.activation()
    width = fields.integer("mamba_expand", 2) * fields.integer("hidden_size")
    heads = fields.integer("mamba_n_heads", 128)
    stated = fields.get("mamba_d_head", "auto")
    if width % heads or stated not in ("auto", width // heads):
        raise UnsupportedModelError("mamba_d_head must be mamba_expand * hidden_size / mamba_n_heads")
    groups, taps = fields.integer("mamba_n_groups", 1), fields.integer("mamba_d_conv", 4)
    if heads % groups:
        raise UnsupportedModelError("mamba_n_heads must be a multiple of mamba_n_groups")
    if taps < 2:
        raise UnsupportedModelError("mamba_d_conv must be at least 2")
    limits = fields.get("time_step_limit")
    if limits not in (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}]):
        raise UnsupportedModelError(f"time_step_limit {limits!r} is not supported (0 to infinity is)")
    return DeltaNet(
        key_heads=groups,
        value_heads=heads,
        key_dim=fields.integer("mamba_d_state", 256),
        value_dim=width // heads,
        taps=taps,
        state_space=True,
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias"),
        eps=fields.number("rms_norm_eps", 1e-6),
    )


FAMILIES = {"granitemoehybrid": Family("Granite 4", _granite_hybrid)}

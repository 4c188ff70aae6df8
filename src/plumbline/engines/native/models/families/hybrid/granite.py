"""Granite 4: state spaces of Mamba 2 in most layers, or in none; dense or with experts beside a shared one."""

from __future__ import annotations

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
from plumbline.engines.native.models.families.hybrid.state_space import (
    OF_STATE_SPACES,
    state_space,
    state_space_names,
)
from plumbline.engines.native.models.families.parts import FULL, Family, dense, model
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]

_WITHOUT_EFFECT = "init_method normalization_function rope_theta time_step_floor time_step_max time_step_min"
_KINDS = {FULL: FULL, "attention": FULL, "linear_attention": "mamba", "mamba": "mamba"}
"""The types of layers, as transformers 5 writes them and as releases do."""
_NAMES = replace(
    NAMES,
    gate_up=NAMES.shared_gate_up,
    down=NAMES.shared_down,
    **state_space_names("mamba."),
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
        mixers["mamba"] = state_space(fields)
    fields.without_effect(OF_STATE_SPACES)
    layers = [LayerDescription(mixer=mixers[kind], feed_forward=block) for kind in kinds]
    return model(fields, layers, names=_NAMES, **factors(fields))


def _attention(fields: Fields) -> Attention:
    position, mixer = fields.get("position_embedding_type"), granite_mixer(fields)
    if position not in (None, "rope", "nope"):
        raise UnsupportedModelError(f"position_embedding_type {position!r} is not supported (rope is)")
    return mixer if position == "rope" else replace(mixer, rope=None)


FAMILIES = {"granitemoehybrid": Family("Granite 4", _granite_hybrid)}

"""Granite 3 with experts: the softmax of the chosen logits, sometimes a shared expert."""

from __future__ import annotations

from dataclasses import replace

from plumbline.engines.native.models.description import Dense, Experts, ModelDescription, Router
from plumbline.engines.native.models.families.dense.granite import factors, granite_mixer, swa_mixers
from plumbline.engines.native.models.families.parts import Family, alike, dense, model, stack
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES", "NAMES", "experts"]

NAMES = Names(
    router="block_sparse_moe.router.layer",
    expert_gate_up=("block_sparse_moe.input_linear.weight",),
    expert_down="block_sparse_moe.output_linear.weight",
    shared_gate_up=("shared_mlp.input_linear",),
    shared_down="shared_mlp.output_linear",
)
_LATER_NAMES = replace(
    NAMES,
    router="block_sparse_moe.router",
    expert_gate_up=("block_sparse_moe.experts.gate_up_proj",),
    expert_down="block_sparse_moe.experts.down_proj",
)


def _granite(fields: Fields) -> ModelDescription:
    return _describe(fields, None)


def _granite_shared(fields: Fields) -> ModelDescription:
    return _describe(fields, _shared(fields))


def _shared(fields: Fields) -> Dense | None:
    return dense(fields, width="shared_intermediate_size") if fields.get("shared_intermediate_size") else None


def _describe(fields: Fields, shared: Dense | None) -> ModelDescription:
    layers = alike(fields, granite_mixer(fields), experts(fields, shared))
    return model(fields, layers, names=NAMES, **factors(fields))


def _granite_swa(fields: Fields) -> ModelDescription:
    block = experts(fields, _shared(fields))
    layers = stack(swa_mixers(fields), block)
    return model(fields, layers, names=_LATER_NAMES, **factors(fields))


def experts(fields: Fields, shared: Dense | None) -> Experts:
    """Read the experts beside a shared one, if there is one."""
    return Experts(
        number=fields.integer("num_local_experts", 8),
        width=fields.integer("intermediate_size"),
        router=Router(top_k=fields.integer("num_experts_per_tok", 2), scores="softmax_of_chosen"),
        activation=fields.activation(),
        shared=shared,
    )


FAMILIES = {
    "granitemoe": Family("Granite 3 with experts", _granite),
    "granitemoeshared": Family("Granite 3 with shared experts", _granite_shared),
    "granitemoe_swa": Family("Granite SWA with experts", _granite_swa),
}

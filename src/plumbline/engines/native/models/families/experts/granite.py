"""Granite 3 with experts: the softmax of the chosen logits, sometimes a shared expert."""

from __future__ import annotations

from dataclasses import replace

from plumbline.engines.native.models.description import Dense, Experts, ModelDescription, Router
from plumbline.engines.native.models.families.dense.granite import factors, granite_mixer
from plumbline.engines.native.models.families.parts import Family, alike, dense, model
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_NAMES = Names(
    router="block_sparse_moe.router.layer",
    expert_gate_up=("block_sparse_moe.input_linear.weight",),
    expert_down="block_sparse_moe.output_linear.weight",
    shared_gate_up=("shared_mlp.input_linear",),
    shared_down="shared_mlp.output_linear",
)


def _granite(fields: Fields) -> ModelDescription:
    return _describe(fields, None)


def _granite_shared(fields: Fields) -> ModelDescription:
    shared = (
        dense(fields, width="shared_intermediate_size") if fields.get("shared_intermediate_size") else None
    )
    return _describe(fields, shared)


def _describe(fields: Fields, shared: Dense | None) -> ModelDescription:
    experts = Experts(
        number=fields.integer("num_local_experts", 8),
        width=fields.integer("intermediate_size"),
        router=Router(top_k=fields.integer("num_experts_per_tok", 2), scores="softmax_of_chosen"),
        activation=fields.activation(),
        shared=shared,
    )
    layers = alike(fields, granite_mixer(fields), replace(experts, shared=shared))
    return model(fields, layers, names=_NAMES, **factors(fields))


FAMILIES = {
    "granitemoe": Family("Granite 3 with experts", _granite),
    "granitemoeshared": Family("Granite 3 with shared experts", _granite_shared),
}

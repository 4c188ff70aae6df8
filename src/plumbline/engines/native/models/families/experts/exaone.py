"""K-EXAONE: the experts of DeepSeek V3 with the attention of EXAONE 4."""

from __future__ import annotations

from plumbline.engines.native.models.description import Dense, Experts, ModelDescription, Router
from plumbline.engines.native.models.families.dense.exaone import exaone_mixers
from plumbline.engines.native.models.families.parts import Family, dense, model, rms
from plumbline.engines.native.models.families.routed import layers_by_type
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]


def _exaone(fields: Fields) -> ModelDescription:
    fields.without_effect("scoring_func", "topk_method", "num_nextn_predict_layers", "num_mtp_layers")
    mixers, plain, experts = exaone_mixers(fields), dense(fields), _experts(fields)
    first = fields.get("first_k_dense_replace", 1)
    layers = layers_by_type(fields, mixers, plain, experts, first)
    names = Names(correction="mlp.e_score_correction_bias", ignored=("mtp.",))
    return model(fields, layers, rms(fields), names=names)


def _experts(fields: Fields) -> Experts:
    width, shared = fields.integer("moe_intermediate_size"), fields.get("num_shared_experts", 1)
    router = Router(
        top_k=fields.integer("num_experts_per_tok", 8),
        scores="sigmoid",
        correction=True,
        groups=fields.integer("n_group", 1),
        chosen_groups=fields.integer("topk_group", 1),
        normalised=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 2.5),
    )
    return Experts(
        number=fields.integer("num_experts", 64),
        width=width,
        router=router,
        activation=fields.activation(),
        shared=Dense(width=width * shared, activation=fields.activation()) if shared else None,
    )


FAMILIES = {"exaone_moe": Family("K-EXAONE", _exaone)}

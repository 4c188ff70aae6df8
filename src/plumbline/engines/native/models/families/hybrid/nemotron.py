"""Nemotron-H and Nemotron 3 Nano: state spaces of Mamba 2 and few layers of attention, most with a block after them.

Each mixer and each feed-forward block is a layer of the checkpoint. transformers gives prompts, and not decodes, steps
of `time_step_min` at least; here, as in vLLM, steps have no limit.
"""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Attention,
    DeltaNet,
    ModelDescription,
    Norm,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.hybrid.nemotron_blocks import (
    SPACE,
    feed_forwards,
    kinds_of_layers,
    paired_layers,
    state_space_of_nemotron,
)
from plumbline.engines.native.models.families.hybrid.state_space import state_space_names
from plumbline.engines.native.models.families.parts import FULL, Family, heads, model
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_WITHOUT_EFFECT = (
    "attention_head_dim chunk_size expand hybrid_override_pattern mamba_ssm_cache_dtype moe_shared_expert_overlap "
    "mtp_hybrid_override_pattern mtp_layers_block_type n_shared_experts norm_eps num_hidden_layers num_logits_to_keep "
    "num_nextn_predict_layers partial_rotary_factor rescale_prenorm_residual rms_norm_eps rope_theta time_step_floor "
    "time_step_max time_step_min time_step_rank use_mamba_kernels "
    "moe_intermediate_size moe_shared_expert_intermediate_size n_group n_routed_experts norm_topk_prob "
    "num_experts_per_tok routed_scaling_factor topk_group"
)
"""Among them fields of rotary embeddings, which no model has, and of experts, which other models also have."""
_NAMES = Names(
    embedding="backbone.embeddings",
    norm="backbone.norm_f",
    layer="backbone.layers.{}.",
    before_mixer="norm",
    before_feed_forward="norm",
    qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
    o="mixer.o_proj",
    gate_up=("mixer.up_proj",),
    down="mixer.down_proj",
    router="mixer.gate",
    correction="mixer.gate.e_score_correction_bias",
    expert_gate_up=("mixer.experts.{}.up_proj",),
    expert_down="mixer.experts.{}.down_proj",
    shared_gate_up=("mixer.shared_experts.up_proj",),
    shared_down="mixer.shared_experts.down_proj",
    ignored=("mtp.",),
    **state_space_names("mixer."),
)


def _nemotron_h(fields: Fields) -> ModelDescription:
    kinds = kinds_of_layers(fields)
    mixers: dict[str, Attention | DeltaNet] = {
        SPACE: state_space_of_nemotron(fields),
        FULL: Attention(**heads(fields, 128), rope=None),
    }
    blocks = feed_forwards(fields, kinds)
    fields.without_effect(_WITHOUT_EFFECT)
    fields.refuse(
        "attention_bias", "mamba_proj_bias", "moe_latent_size", "residual_in_fp32", "sliding_window"
    )
    layers = paired_layers(kinds, mixers, blocks)
    if FULL not in kinds:
        # The cache is counted in the bytes of a token, which would be none.
        raise UnsupportedModelError(f"layers_block_type must have a {FULL!r} layer")
    return model(fields, layers, Norm(eps=fields.number("layer_norm_epsilon", 1e-5)), names=_NAMES)


FAMILIES = {"nemotron_h": Family("Nemotron-H, Nemotron Nano 2 and 3", _nemotron_h)}

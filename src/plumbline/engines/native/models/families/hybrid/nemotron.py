"""Nemotron-H and Nemotron 3 Nano: state spaces of Mamba 2 and few layers of attention, most with a block after them.

Each mixer and each feed-forward block is a layer of the checkpoint. transformers gives prompts, and not decodes, steps
of `time_step_min` at least; here, as in vLLM, steps have no limit.
"""

from __future__ import annotations

from dataclasses import replace

from plumbline.engines.native.models.description import (
    Attention,
    DeltaNet,
    Dense,
    Experts,
    LayerDescription,
    ModelDescription,
    Norm,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.experts.glm import corrected_router
from plumbline.engines.native.models.families.hybrid.state_space import space, state_space_names
from plumbline.engines.native.models.families.parts import FULL, Family, heads, model
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_WITHOUT_EFFECT = (
    "attention_head_dim chunk_size expand hybrid_override_pattern mamba_ssm_cache_dtype moe_shared_expert_overlap "
    "mtp_hybrid_override_pattern mtp_layers_block_type n_shared_experts norm_eps num_hidden_layers num_logits_to_keep "
    "num_nextn_predict_layers partial_rotary_factor rescale_prenorm_residual rms_norm_eps rope_theta time_step_floor "
    "time_step_max time_step_min time_step_rank use_mamba_kernels"
)
"""Among them fields of rotary embeddings, which releases have and the model does not."""
_OF_EXPERTS = (
    "moe_intermediate_size moe_shared_expert_intermediate_size n_group n_routed_experts norm_topk_prob "
    "num_experts_per_tok routed_scaling_factor topk_group"
)
"""What a model without experts has for them, too."""
_SPACE, _DENSE, _EXPERTS = "linear_attention", "mlp", "moe"
_KINDS = {"M": _SPACE, "mamba": _SPACE, "*": FULL, "attention": FULL, "-": _DENSE, "E": _EXPERTS}
"""The kinds of layers, as releases write them."""
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
    kinds = (
        fields.get("layers_block_type")
        or fields.get("layer_types")
        or fields.get("hybrid_override_pattern", "")
    )
    kinds = [_KINDS.get(kind, kind) for kind in kinds]
    mixers: dict[str, Attention | DeltaNet] = {
        _SPACE: _space(fields),
        FULL: Attention(**heads(fields, 128), rope=None),
    }
    blocks: dict[str, Dense | Experts] = {_DENSE: _dense(fields, "intermediate_size")}
    if _EXPERTS in kinds:
        blocks[_EXPERTS] = _experts(fields)
    fields.without_effect(_WITHOUT_EFFECT, _OF_EXPERTS)
    fields.refuse(
        "attention_bias", "mamba_proj_bias", "moe_latent_size", "residual_in_fp32", "sliding_window"
    )
    layers: list[LayerDescription] = []
    for number, kind in enumerate(kinds):
        if kind in mixers:
            layers.append(LayerDescription(mixer=mixers[kind], feed_forward=None, numbers=(number, number)))
        elif kind in blocks and layers and layers[-1].feed_forward is None:
            layers[-1] = replace(layers[-1], feed_forward=blocks[kind], numbers=(number - 1, number))
        else:
            raise UnsupportedModelError(
                f"layers_block_type has {kind!r:.80} at {number}, which must be a mixer, or a block after one"
            )
    if FULL not in kinds:
        # The cache is counted in the bytes of a token, which would be none.
        raise UnsupportedModelError(f"layers_block_type must have a {FULL!r} layer")
    return model(fields, layers, Norm(eps=fields.number("layer_norm_epsilon", 1e-5)), names=_NAMES)


def _space(fields: Fields) -> DeltaNet:
    return space(
        fields,
        ("mamba_num_heads", "n_groups", "conv_kernel"),
        activation="mamba_hidden_act",
        key_dim=fields.integer("ssm_state_size", 128),
        value_dim=fields.integer("mamba_head_dim", 64),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias"),
        eps=fields.number("layer_norm_epsilon", 1e-5),
    )


def _dense(fields: Fields, width: str) -> Dense:
    activation = fields.activation("mlp_hidden_act", "relu2")
    return Dense(
        width=fields.integer(width), activation=activation, gated=False, bias=fields.flag("mlp_bias")
    )


def _experts(fields: Fields) -> Experts:
    return Experts(
        number=fields.integer("n_routed_experts"),
        width=fields.integer("moe_intermediate_size"),
        router=corrected_router(fields),
        activation=fields.activation("mlp_hidden_act", "relu2"),
        gated=False,
        shared=_dense(fields, "moe_shared_expert_intermediate_size"),
    )


FAMILIES = {"nemotron_h": Family("Nemotron-H, Nemotron Nano 2 and 3", _nemotron_h)}

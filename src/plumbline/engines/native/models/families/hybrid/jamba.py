"""Jamba: state spaces of Mamba 1 and few layers of attention, dense or with experts, none of which is rotated."""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    Experts,
    LayerDescription,
    ModelDescription,
    Router,
    Selective,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.parts import Family, dense, heads, model, rms
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_NAMES = Names(
    norm="model.final_layernorm",
    before_feed_forward="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    router="feed_forward.router",
    expert_gate_up=("feed_forward.experts.{}.gate_proj", "feed_forward.experts.{}.up_proj"),
    expert_down="feed_forward.experts.{}.down_proj",
)


def _jamba(fields: Fields) -> ModelDescription:
    # They choose among implementations; releases carry `calc_logits_for_entire_prompt` and `num_logits_to_keep`.
    fields.without_effect("calc_logits_for_entire_prompt num_logits_to_keep use_associative_scan")
    fields.without_effect("use_mamba_kernels use_mambapy")
    fields.refuse("sliding_window")
    if not fields.flag("mamba_inner_layernorms", True):
        raise UnsupportedModelError("mamba_inner_layernorms must be true")
    count = fields.integer("num_hidden_layers")
    attends = _layers(fields, "attn_layer", 8, 4)
    if not attends & set(range(count)):
        # The cache is counted in the bytes of a token, which would be none.
        raise UnsupportedModelError("attn_layer_offset must be that of a layer")
    attention, space, plain = Attention(**heads(fields), rope=None), _space(fields), dense(fields)
    if plain.activation != "silu":
        raise UnsupportedModelError("hidden_act must be silu: state spaces have no other")
    number = fields.integer("num_experts", 16)
    chosen = fields.integer("num_experts_per_tok", 2)
    sparse = _layers(fields, "expert_layer", 2, 1)
    layers = []
    for layer in range(count):
        block: Dense | Experts = plain
        if layer in sparse and number > 1:
            block = Experts(number=number, width=plain.width, router=Router(top_k=chosen, normalised=False))
        layers.append(LayerDescription(mixer=attention if layer in attends else space, feed_forward=block))
    return model(fields, layers, rms(fields, 1e-6), names=_NAMES)


def _layers(fields: Fields, name: str, period: int, offset: int) -> set[int]:
    """Read which layers are of a kind: every so many ones, from one on."""
    period, first = fields.integer(f"{name}_period", period), fields.get(f"{name}_offset", offset)
    return {layer for layer in range(fields.integer("num_hidden_layers")) if layer % period == first}


def _space(fields: Fields) -> Selective:
    hidden = fields.integer("hidden_size")
    rank = fields.get("mamba_dt_rank", "auto")
    return Selective(
        width=fields.integer("mamba_expand", 2) * hidden,
        state_dim=fields.integer("mamba_d_state", 16),
        step_rank=-(-hidden // 16) if rank == "auto" else fields.integer("mamba_dt_rank"),
        taps=fields.integer("mamba_d_conv", 4),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias"),
        eps=fields.number("rms_norm_eps", 1e-6),
    )


FAMILIES = {"jamba": Family("Jamba", _jamba)}

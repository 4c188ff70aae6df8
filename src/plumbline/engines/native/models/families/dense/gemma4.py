"""Gemma 4, text: wider heads in layers with full attention, norms of values, a factor after each layer.

E2B and E4B give every layer a part of a second embedding of the token, and their last layers attend to the keys of
earlier ones. In 26B-A4B experts stand beside the dense block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    Experts,
    HeadNorm,
    LayerDescription,
    ModelDescription,
    Router,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.dense.gemma import AROUND
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    every,
    layer_types,
    model,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]

_ROPES: dict[str, dict[str, Any]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    FULL: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
}
"""The rotations of a config that has none."""
_NAMES = replace(
    AROUND,
    router="router.proj",
    expert_gate_up=("experts.gate_up_proj",),
    expert_down="experts.down_proj",
    shared_gate_up=AROUND.gate_up,
    shared_down=AROUND.down,
)


def _gemma4(fields: Fields) -> ModelDescription:
    fields.refuse("use_bidirectional_attention")
    count, vocab = fields.integer("num_hidden_layers"), fields.integer("vocab_size")
    width = fields.get("hidden_size_per_layer_input", 256)
    if width and fields.integer("vocab_size_per_layer_input", vocab) != vocab:
        raise UnsupportedModelError("vocab_size_per_layer_input must be vocab_size")
    fields.without_effect("vocab_size_per_layer_input use_double_wide_mlp")
    types = list(layer_types(fields, every(fields, 6)))
    types[-1] = FULL
    shared = fields.get("num_kv_shared_layers", 0)
    own = count - shared
    if shared < 0:
        raise UnsupportedModelError(f"num_kv_shared_layers must not be negative, got {shared}")
    if missing := {*types} - {*types[:own]}:
        raise UnsupportedModelError(f"num_kv_shared_layers leaves no layer of {sorted(missing)} with keys")
    dense = Dense(
        width=fields.integer("intermediate_size"),
        activation=fields.activation("hidden_activation", "gelu_pytorch_tanh"),
    )
    block, wide = _block(fields, dense), dense
    if fields.flag("use_double_wide_mlp"):
        wide = replace(dense, width=2 * dense.width)
    if block is not dense and wide is not dense and own < count:
        raise UnsupportedModelError("use_double_wide_mlp with experts is not supported")
    layers = (
        LayerDescription(
            mixer=mixer,
            feed_forward=block if layer < own or block is not dense else wide,
            norms="both",
            scaled=True,
        )
        for layer, mixer in enumerate(_mixers(fields, types, own))
    )
    return model(
        fields,
        layers,
        tied=True,
        embedding_scale=fields.integer("hidden_size") ** 0.5,
        token_inputs=width,
        logits_softcap=fields.get("final_logit_softcapping"),
        names=_NAMES,
    )


def _block(fields: Fields, dense: Dense) -> Dense | Experts:
    if not fields.flag("enable_moe_block"):
        fields.without_effect("num_experts top_k_experts moe_intermediate_size")
        return dense
    number, top_k = fields.integer("num_experts"), fields.integer("top_k_experts")
    if top_k > number:
        raise UnsupportedModelError("top_k_experts must be at most num_experts")
    return Experts(
        number=number,
        width=fields.integer("moe_intermediate_size"),
        router=Router(top_k=top_k, by_expert=True),
        activation=dense.activation,
        shared=dense,
        apart=True,
    )


def _mixers(fields: Fields, types: list[str], own: int) -> list[Attention]:
    """Read the mixer of each layer; those from layer `own` on attend to keys of the last one of their type before."""
    ropes = {**_ROPES, **(fields.get("rope_parameters") or {})}
    rotations = {kind: read_rope(fields, parameters=ropes[kind], part=1.0) for kind in (FULL, SLIDING)}
    bias, shares = fields.flag("attention_bias"), fields.flag("attention_k_eq_v")
    kv_heads = fields.integer("num_key_value_heads", 4)
    wide = {"head_dim": fields.integer("global_head_dim", 512)}
    if shares and fields.get("num_global_key_value_heads"):
        wide["num_key_value_heads"] = fields.integer("num_global_key_value_heads")
    by_default = {str(layer): wide for layer, kind in enumerate(types) if kind == FULL}
    special = {int(layer): changes for layer, changes in fields.get("per_layer_config", by_default).items()}
    mixers = []
    for layer, (kind, window) in enumerate(zip(types, windows(fields, types), strict=True)):
        changes = Fields({"num_key_value_heads": kv_heads, **special.get(layer, {})})
        head_dim = changes.integer("head_dim", fields.integer("head_dim", 256))
        layer_kv_heads = changes.integer("num_key_value_heads")
        changes.finish()
        is_own = layer < own
        mixers.append(
            Attention(
                heads=fields.integer("num_attention_heads"),
                kv_heads=layer_kv_heads,
                head_dim=head_dim,
                rope=rotations[kind],
                qkv_bias=bias,
                o_bias=bias,
                head_norm=HeadNorm(),
                value_norm=is_own,
                values_are_keys=is_own and shares and kind == FULL,
                window=window,
                scores_scale=1.0,
                keys_of=None if is_own else own - 1 - types[:own][::-1].index(kind),
            )
        )
    return mixers


FAMILIES = {"gemma4_text": Family("Gemma 4 (text)", _gemma4)}

"""GPT-Neo: learned positions, scores without a factor, windows in every other layer."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, ModelDescription, UnsupportedModelError
from plumbline.engines.native.models.families.classic.gpt2 import four_times, learned_positions
from plumbline.engines.native.models.families.parts import Family, heads, layer_norm, model, stack
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_NAMES = Names(
    base="transformer.",
    embedding="transformer.wte",
    positions="transformer.wpe",
    norm="transformer.ln_f",
    layer="transformer.h.{}.",
    before_mixer="ln_1",
    before_feed_forward="ln_2",
    qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
    o="attn.attention.out_proj",
    gate_up=("mlp.c_fc",),
    down="mlp.c_proj",
    ignored_ends=(".attn.attention.bias", ".attn.attention.masked_bias"),
)


def _neo(fields: Fields) -> ModelDescription:
    fields.rename({"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"})
    fields.without_effect(
        "attention_layers classifier_dropout embed_dropout resid_dropout gradient_checkpointing"
    )
    fields.without_effect("summary_activation summary_first_dropout summary_proj_to_labels summary_type")
    fields.without_effect("summary_use_proj task_specific_params")
    types = [
        kind
        for kinds, times in fields.get("attention_types", [[["global", "local"], 12]])
        for _ in range(times)
        for kind in kinds
    ]
    if len(types) != fields.integer("num_hidden_layers") or {*types} - {"global", "local"}:
        raise UnsupportedModelError("attention_types must be global or local for every layer")
    shape, window = heads(fields), fields.integer("window_size", 256)
    mixers = (
        Attention(
            **shape, rope=None, o_bias=True, scores_scale=1.0, window=window if kind == "local" else None
        )
        for kind in types
    )
    block = four_times(fields, "gelu_new", "activation_function")
    norm = layer_norm(fields, "layer_norm_epsilon")
    positions = learned_positions(fields)
    return model(fields, stack(mixers, block), norm, tied=True, positions=positions, names=_NAMES)


FAMILIES = {"gpt_neo": Family("GPT-Neo", _neo)}

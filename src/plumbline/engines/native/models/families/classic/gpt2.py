"""GPT-2 and its StarCoder descendant: learned positions, merged projections, blocks without a gate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from plumbline.engines.native.models.description import Attention, Dense, ModelDescription, Positions
from plumbline.engines.native.models.families.parts import Family, heads, layer_norm, model, stack
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES", "OF_GPT", "four_times", "learned_positions"]

OF_GPT = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}
"""Fields that families of GPT have under names of their own."""
_WITHOUT_EFFECT = (
    "attn_pdrop n_ctx summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj "
    "reorder_and_upcast_attn task_specific_params"
)
_NAMES = Names(
    base="transformer.",
    embedding="transformer.wte",
    positions="transformer.wpe",
    norm="transformer.ln_f",
    layer="transformer.h.{}.",
    before_mixer="ln_1",
    before_feed_forward="ln_2",
    qkv=("attn.c_attn",),
    o="attn.c_proj",
    gate_up=("mlp.c_fc",),
    down="mlp.c_proj",
    transposed=True,
    ignored_ends=(".attn.bias", ".attn.masked_bias"),
)


def learned_positions(fields: Fields, offset: int = 0) -> Positions:
    """Read the embeddings of positions, whose table has `offset` rows before the first one."""
    return Positions(number=fields.integer("max_position_embeddings"), offset=offset)


def four_times(fields: Fields, default: str, name: str, *, bias: bool = True) -> Dense:
    """Read a block without a gate that is four times as wide as the model where the config does not say so."""
    width = fields.integer("intermediate_size", 4 * fields.integer("hidden_size"))
    return Dense(width=width, activation=fields.activation(name, default), gated=False, bias=bias)


def _gpt2(fields: Fields) -> ModelDescription:
    fields.rename(OF_GPT)
    fields.without_effect(_WITHOUT_EFFECT)
    fields.refuse("add_cross_attention")
    shape = heads(fields)
    scale = shape["head_dim"] ** -0.5 if fields.flag("scale_attn_weights", True) else 1.0
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx")
    mixers = (
        Attention(
            **shape,
            rope=None,
            qkv_bias=True,
            o_bias=True,
            scores_scale=scale / (layer + 1) if by_layer else scale,
        )
        for layer in range(fields.integer("num_hidden_layers"))
    )
    return _model(fields, mixers, "gelu_new", _NAMES)


def _bigcode(fields: Fields) -> ModelDescription:
    fields.rename(OF_GPT)
    fields.without_effect(_WITHOUT_EFFECT)
    # They change the precision of scores, which is fp32 here.
    fields.without_effect(
        "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "num_key_value_heads"
    )
    # Earlier versions of transformers read these for inference alone.
    fields.without_effect("inference_runner", "max_batch_size", "max_sequence_length", "pad_key_length")
    fields.without_effect("pre_allocate_kv_cache", "validate_runner_input")
    fields.refuse("add_cross_attention")
    shape, several = heads(fields), not fields.flag("multi_query", True)
    mixer = Attention(
        heads=shape["heads"],
        kv_heads=shape["heads"] if several else 1,
        head_dim=shape["head_dim"],
        rope=None,
        layout="by_key_head" if several else "apart",
        qkv_bias=True,
        o_bias=True,
        scores_scale=None if fields.flag("scale_attn_weights", True) else 1.0,
    )
    mixers = (mixer,) * fields.integer("num_hidden_layers")
    return _model(fields, mixers, "gelu_pytorch_tanh", replace(_NAMES, transposed=False))


def _model(fields: Fields, mixers: Iterable[Attention], activation: str, names: Names) -> ModelDescription:
    block = four_times(fields, activation, "activation_function")
    norm = layer_norm(fields, "layer_norm_epsilon")
    positions = learned_positions(fields)
    return model(fields, stack(mixers, block), norm, tied=True, positions=positions, names=names)


FAMILIES = {
    "gpt2": Family("GPT-2", _gpt2),
    "gpt_bigcode": Family("StarCoder, SantaCoder", _bigcode),
}

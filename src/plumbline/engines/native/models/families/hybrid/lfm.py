"""LFM2: gated short convolutions in most layers, attention in the others; dense or with experts."""

from __future__ import annotations

from collections.abc import Iterable

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    Experts,
    HeadNorm,
    LayerDescription,
    ModelDescription,
    Norm,
    Router,
    ShortConv,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.parts import FULL, Family, heads, layer_types, model
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_CONV = "conv"
_OF_RELEASES = (
    "block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu block_use_xavier_init "
    "conv_dim conv_dim_out conv_use_xavier_init num_heads theta use_pos_enc"
)
"""Further fields of released configs; transformers ignores them."""
_NAMES = Names(
    norm="model.embedding_norm",
    before_mixer="operator_norm",
    before_feed_forward="ffn_norm",
    o="self_attn.out_proj",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    gate_up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
    router="feed_forward.gate",
    correction="feed_forward.expert_bias",
    expert_gate_up=("feed_forward.experts.{}.w1", "feed_forward.experts.{}.w3"),
    expert_down="feed_forward.experts.{}.w2",
)


def _lfm2(fields: Fields) -> ModelDescription:
    fields.rename({"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"})
    count = fields.integer("num_hidden_layers")
    attends = {*fields.get("full_attn_idxs", range(count))}
    mixers = _mixers(fields, (FULL if layer in attends else _CONV for layer in range(count)))
    block = Dense(width=_width(fields))
    return _model(fields, [LayerDescription(mixer=mixer, feed_forward=block) for mixer in mixers])


def _lfm2_moe(fields: Fields) -> ModelDescription:
    fields.rename({"tie_embedding": "tie_word_embeddings"})
    mixers = _mixers(fields, ())
    plain, first = Dense(width=fields.integer("intermediate_size")), fields.get("num_dense_layers", 2)
    experts = Experts(
        number=fields.integer("num_experts", 32),
        width=fields.integer("moe_intermediate_size", 1792),
        router=Router(
            top_k=fields.integer("num_experts_per_tok", 4),
            scores="sigmoid",
            correction=fields.flag("use_expert_bias", True),
            normalised=fields.flag("norm_topk_prob", True),
            scale=fields.number("routed_scaling_factor", 1.0),
        ),
    )
    layers = [
        LayerDescription(mixer=mixer, feed_forward=plain if layer < first else experts)
        for layer, mixer in enumerate(mixers)
    ]
    return _model(fields, layers)


def _mixers(fields: Fields, by_default: Iterable[str]) -> list[Attention | ShortConv]:
    fields.without_effect(_OF_RELEASES)
    types = layer_types(fields, by_default, (FULL, _CONV))
    if FULL not in types:
        # The cache is counted in the bytes of a token, which would be none.
        raise UnsupportedModelError(f"layer_types must have a {FULL!r} layer")
    attention = Attention(**heads(fields), rope=read_rope(fields, 1000000.0), head_norm=HeadNorm())
    conv = ShortConv(
        width=fields.integer("hidden_size"),
        taps=fields.integer("conv_L_cache", 3),
        bias=fields.flag("conv_bias"),
    )
    return [attention if kind == FULL else conv for kind in types]


def _width(fields: Fields) -> int:
    """Return the width of a dense block, which most configs give before it is adjusted."""
    width, factor = fields.integer("intermediate_size"), fields.number("block_ffn_dim_multiplier", 1.0)
    multiple = fields.integer("block_multiple_of", 256)
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return width
    adjusted = int(factor * int(2 * width / 3))
    return -(-adjusted // multiple) * multiple


def _model(fields: Fields, layers: list[LayerDescription]) -> ModelDescription:
    norm = Norm(eps=fields.number("norm_eps", 1e-5))
    return model(fields, layers, norm, tied=True, names=_NAMES)


FAMILIES = {
    "lfm2": Family("LFM2", _lfm2),
    "lfm2_moe": Family("LFM2 with experts", _lfm2_moe),
}

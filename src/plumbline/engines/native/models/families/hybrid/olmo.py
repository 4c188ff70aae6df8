"""OLMo Hybrid: gated delta nets with norms before blocks, and the attention of OLMo 2 with norms after them."""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Attention,
    DeltaNet,
    HeadNorm,
    LayerDescription,
    ModelDescription,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.parts import (
    FULL,
    Family,
    attention_bias,
    dense,
    heads,
    layer_types,
    model,
    rms,
)
from plumbline.engines.native.models.families.rope_fields import read_rope, rope_parameters
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_LINEAR = "linear_attention"
_OF_TRAINING = "linear_a_log_max linear_a_log_min linear_dt_init_floor linear_dt_max linear_dt_min"
_NAMES = Names(
    before_mixer="attention_layer_norm",
    before_feed_forward="feedforward_layer_norm",
    delta=tuple(f"linear_attn.{part}_proj" for part in "qkvgba"),
    delta_convs=tuple(f"linear_attn.{part}_conv1d" for part in "qkv"),
    delta_norm="linear_attn.o_norm",
    delta_o="linear_attn.o_proj",
)


def _olmo_hybrid(fields: Fields) -> ModelDescription:
    fields.without_effect(_OF_TRAINING)
    count, block = fields.integer("num_hidden_layers"), dense(fields)
    if block.activation != "silu":
        raise UnsupportedModelError("hidden_act must be silu: delta nets have no other")
    types = layer_types(
        fields, [FULL if layer % 4 == 3 else _LINEAR for layer in range(count)], (FULL, _LINEAR)
    )
    if FULL not in types:
        # The cache is counted in the bytes of a token, which would be none.
        raise UnsupportedModelError(f"layer_types must have a {FULL!r} layer")
    attention = LayerDescription(
        mixer=Attention(
            **heads(fields),
            **attention_bias(fields),
            rope=None if _is_still(fields) else read_rope(fields),
            head_norm=HeadNorm(weights="each", whole=True),
        ),
        feed_forward=block,
        norms="after",
    )
    linear = LayerDescription(mixer=_delta_net(fields), feed_forward=block)
    layers = [attention if kind == FULL else linear for kind in types]
    return model(fields, layers, rms(fields, 1e-6), names=_NAMES)


def _is_still(fields: Fields) -> bool:
    """Return whether heads are not rotated: null in the place of the base says so."""
    parameters = rope_parameters(fields)
    return "rope_theta" in parameters and parameters["rope_theta"] is None


def _delta_net(fields: Fields) -> DeltaNet:
    number = fields.integer("num_attention_heads")
    width = fields.integer("hidden_size") // number
    return DeltaNet(
        key_heads=fields.integer("linear_num_key_heads", number),
        value_heads=fields.integer("linear_num_value_heads", number),
        key_dim=fields.integer("linear_key_head_dim", int(0.75 * width)),
        value_dim=fields.integer("linear_value_head_dim", int(1.5 * width)),
        taps=fields.integer("linear_conv_kernel_dim", 4),
        strength=2.0 if fields.flag("linear_allow_neg_eigval", True) else 1.0,
        eps=1e-5,
    )


FAMILIES = {"olmo_hybrid": Family("OLMo Hybrid", _olmo_hybrid)}

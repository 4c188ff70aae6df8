"""Read the mixers of Qwen3-Next and Qwen 3.5: gated delta nets, and gated attention in every fourth layer."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, DeltaNet, HeadNorm, UnsupportedModelError
from plumbline.engines.native.models.families.parts import FULL, attention_bias, heads, layer_types
from plumbline.engines.native.models.families.rope_fields import read_mrope_axes, read_rope, rope_parameters
from plumbline.engines.native.models.fields import Fields

__all__ = ["gated_delta_mixers"]

_LINEAR = "linear_attention"


def gated_delta_mixers(
    fields: Fields, *, by_key_head: bool = False, turned: bool = False
) -> list[Attention | DeltaNet]:
    """Read the mixer of each layer.

    Args:
        fields: of the config.
        by_key_head: how rows of projections are grouped (`DeltaNet.by_key_head`).
        turned: whether positions of images have three axes.

    Raises:
        UnsupportedModelError: no layer has attention.
    """
    shape, parameters = heads(fields, 256), rope_parameters(fields)
    axes: tuple[int, ...] = ()
    if turned:
        part = parameters.get("partial_rotary_factor") or fields.number("partial_rotary_factor", 0.25)
        axes = read_mrope_axes(parameters, (11, 11, 10), int(shape["head_dim"] * part) // 2, alternate=True)
    attention = Attention(
        **shape,
        **attention_bias(fields),
        rope=read_rope(fields, parameters=parameters, part=0.25, axes=axes),
        head_norm=HeadNorm(),
        gated=fields.flag("attn_output_gate", True),
    )
    net = DeltaNet(
        key_heads=fields.integer("linear_num_key_heads", 16),
        value_heads=fields.integer("linear_num_value_heads", 32),
        key_dim=fields.integer("linear_key_head_dim", 128),
        value_dim=fields.integer("linear_value_head_dim", 128),
        taps=fields.integer("linear_conv_kernel_dim", 4),
        by_key_head=by_key_head,
        eps=fields.number("rms_norm_eps", 1e-6),
    )
    mixers: dict[str, Attention | DeltaNet] = {FULL: attention, _LINEAR: net}
    count, interval = fields.integer("num_hidden_layers"), fields.integer("full_attention_interval", 4)
    by_default = (_LINEAR if (layer + 1) % interval else FULL for layer in range(count))
    types = layer_types(fields, by_default, (FULL, _LINEAR))
    if FULL not in types:
        # The cache is counted in the bytes of a token, which would be none.
        raise UnsupportedModelError(f"layer_types must have a {FULL!r} layer")
    return [mixers[kind] for kind in types]

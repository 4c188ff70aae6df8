"""Read the blocks of Nemotron-H, each of which is a layer of the checkpoint, and make layers of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from plumbline.engines.native.models.description import (
    DeltaNet,
    Dense,
    Experts,
    FeedForward,
    LayerDescription,
    Mixer,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.hybrid.state_space import space
from plumbline.engines.native.models.families.parts import FULL, ungated
from plumbline.engines.native.models.families.routed import corrected_router
from plumbline.engines.native.models.fields import Fields

__all__ = ["SPACE", "feed_forwards", "kinds_of_layers", "paired_layers", "state_space_of_nemotron"]

SPACE, _DENSE, _EXPERTS = "linear_attention", "mlp", "moe"
_KINDS = {"M": SPACE, "mamba": SPACE, "*": FULL, "attention": FULL, "-": _DENSE, "E": _EXPERTS}
"""The kinds of layers, as releases write them."""


def kinds_of_layers(fields: Fields) -> list[str]:
    """Read the kind of each layer of the checkpoint; kinds that are not known stay as they are."""
    found = (
        fields.get("layers_block_type")
        or fields.get("layer_types")
        or fields.get("hybrid_override_pattern", "")
    )
    return [_KINDS.get(kind, kind) for kind in found]


def paired_layers(
    kinds: Sequence[str], mixers: Mapping[str, Mixer], blocks: Mapping[str, FeedForward]
) -> list[LayerDescription]:
    """Return layers of a mixer and the feed-forward block after it, if there is one.

    Args:
        kinds: of the layers of the checkpoint.
        mixers: the mixer of each kind that is one.
        blocks: the feed-forward block of each kind that is one.

    Raises:
        UnsupportedModelError: there is another kind, or a block without a mixer before it.
    """
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
    return layers


def feed_forwards(fields: Fields, kinds: Sequence[str]) -> dict[str, Dense | Experts]:
    """Read the feed-forward block of each of these kinds that is one; none has a gate."""
    blocks: dict[str, Dense | Experts] = {_DENSE: _dense(fields, "intermediate_size")}
    if _EXPERTS in kinds:
        blocks[_EXPERTS] = _experts(fields)
    return blocks


def _dense(fields: Fields, width: str) -> Dense:
    bias = fields.flag("mlp_bias")
    return ungated(fields, "relu2", name="mlp_hidden_act", width=width, bias=bias)


def state_space_of_nemotron(fields: Fields) -> DeltaNet:
    """Read the state space."""
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


def _experts(fields: Fields) -> Experts:
    return Experts(
        number=fields.integer("n_routed_experts"),
        width=fields.integer("moe_intermediate_size"),
        router=corrected_router(fields),
        activation=fields.activation("mlp_hidden_act", "relu2"),
        gated=False,
        shared=_dense(fields, "moe_shared_expert_intermediate_size"),
    )

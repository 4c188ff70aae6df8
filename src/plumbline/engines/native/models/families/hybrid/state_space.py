"""Read the state spaces of Mamba 2 that several families have."""

from __future__ import annotations

import math
from typing import Any

from plumbline.engines.native.models.description import DeltaNet, UnsupportedModelError
from plumbline.engines.native.models.fields import Fields

__all__ = ["OF_STATE_SPACES", "space", "state_space", "state_space_names"]

OF_STATE_SPACES = (
    "mamba_chunk_size mamba_conv_bias mamba_d_conv mamba_d_head mamba_d_state mamba_expand mamba_n_groups "
    "mamba_n_heads mamba_proj_bias time_step_limit"
)
"""The fields of `state_space`, which models without one may also have."""


def state_space_names(prefix: str) -> dict[str, Any]:
    """Return the names of its tensors, for `Names`; they begin with `prefix`."""
    return {
        "delta": (f"{prefix}in_proj",),
        "delta_conv": f"{prefix}conv1d",
        "delta_rates": f"{prefix}A_log",
        "delta_shifts": f"{prefix}dt_bias",
        "delta_skip": f"{prefix}D",
        "delta_norm": f"{prefix}norm",
        "delta_o": f"{prefix}out_proj",
    }


def state_space(fields: Fields) -> DeltaNet:
    """Read a state space from fields that begin with `mamba_`."""
    width, heads = (
        fields.integer("mamba_expand", 2) * fields.integer("hidden_size"),
        fields.integer("mamba_n_heads", 128),
    )
    if width % heads or fields.get("mamba_d_head", "auto") not in ("auto", width // heads):
        raise UnsupportedModelError("mamba_d_head must be mamba_expand * hidden_size / mamba_n_heads")
    return space(
        fields,
        ("mamba_n_heads", "mamba_n_groups", "mamba_d_conv"),
        activation="hidden_act",
        key_dim=fields.integer("mamba_d_state", 256),
        value_dim=width // heads,
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias"),
        eps=fields.number("rms_norm_eps", 1e-6),
    )


def space(fields: Fields, names: tuple[str, str, str], *, activation: str, **shape: Any) -> DeltaNet:
    """Return a state space.

    Args:
        fields: of the config.
        names: of the fields with the numbers of heads, of groups and of taps.
        activation: the name of the field with its activation, which must be silu.
        shape: further fields of the mixer.

    Raises:
        UnsupportedModelError: a field has a value that the operations do not have.
    """
    heads, groups, taps = (
        fields.integer(name, default) for name, default in zip(names, (128, 1, 4), strict=True)
    )
    if heads % groups:
        raise UnsupportedModelError(f"{names[0]} must be a multiple of {names[1]}")
    if taps < 2:
        raise UnsupportedModelError(f"{names[2]} must be at least 2")
    if fields.activation(activation) != "silu":
        raise UnsupportedModelError(f"{activation} must be silu: state spaces have no other")
    limits = fields.get("time_step_limit")
    if limits not in (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}]):
        raise UnsupportedModelError(f"time_step_limit {limits!r} is not supported (0 to infinity is)")
    return DeltaNet(key_heads=groups, value_heads=heads, taps=taps, state_space=True, **shape)

"""Read the settings of rotary embeddings, as transformers 5 writes them (`rope_parameters`) and as earlier ones did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from plumbline.engines.native.models.description import LayerDescription, Rope, UnsupportedModelError
from plumbline.engines.native.models.fields import Fields, Json

__all__ = ["context_length", "read_rope"]

_FIELDS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
    "yarn": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        }
    ),
}


def read_rope(fields: Fields, theta: float = 10000.0) -> Rope:
    """Read `rope_parameters`, or `rope_theta` with `rope_scaling`; `theta` is the family's default.

    Raises:
        UnsupportedModelError: the type or one of its fields is not supported.
    """
    scaling = fields.get("rope_scaling", {})
    parameters = dict(fields.get("rope_parameters", scaling))
    kind = parameters.pop("rope_type", None) or parameters.pop("type", None) or "default"
    parameters.pop("type", None)
    theta = float(parameters.pop("rope_theta", None) or fields.number("rope_theta", theta))
    fields.without_effect("rope_theta")
    partial = parameters.pop("partial_rotary_factor", None) or fields.number("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise UnsupportedModelError("partial_rotary_factor other than 1 is not supported")
    if kind not in _FIELDS:
        raise UnsupportedModelError(f"rope_type {kind!r} is not supported ({', '.join(sorted(_FIELDS))} are)")
    return Rope(theta=theta, kind=kind, **_scaling(fields, kind, parameters))


def _scaling(fields: Fields, kind: str, parameters: Json) -> dict[str, Any]:
    """Check the fields of a scaling; `parameters` may have those of other scalings as null."""
    found = {name: value for name, value in parameters.items() if value is not None}
    # transformers writes the original length for every type; linear scaling does not use it.
    length = fields.integer("max_position_embeddings")
    original = found.pop("original_max_position_embeddings", None) or length
    if unknown := found.keys() - _FIELDS[kind]:
        raise UnsupportedModelError(f"rope_parameters of type {kind!r} has unknown fields: {sorted(unknown)}")
    if kind == "default":
        return {}
    if "factor" not in found:
        if kind != "yarn":
            raise UnsupportedModelError(f"rope_parameters of type {kind!r} needs a factor")
        found["factor"] = length / original
    for name in ("low_freq_factor", "high_freq_factor"):
        if kind == "llama3" and name not in found:
            raise UnsupportedModelError(f"rope_parameters of type 'llama3' needs a {name}")
    return {"original_max_positions": int(original), **found}


def context_length(fields: Fields, layers: Iterable[LayerDescription]) -> int:
    """Return the longest sequence that a model was made for; yarn multiplies the original length by its factor."""
    ropes = {layer.mixer.rope for layer in layers}
    stretched = [
        int(rope.original_max_positions * rope.factor)
        for rope in ropes
        if rope is not None and rope.kind == "yarn"
    ]
    return max([fields.integer("max_position_embeddings"), *stretched])

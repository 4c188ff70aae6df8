"""Read the settings of rotary embeddings, as transformers 5 writes them (`rope_parameters`) and as earlier ones did."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from plumbline.engines.native.models.description import LayerDescription, Rope, UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields, Json

__all__ = ["context_length", "read_mrope_axes", "read_rope", "read_ropes", "rope_parameters", "rope_theta"]

_FACTORS = frozenset({"factor", "original_max_position_embeddings", "attention_factor"})
_FIELDS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
    "yarn": _FACTORS | {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    "longrope": _FACTORS | {"short_factor", "long_factor"},
    "proportional": frozenset({"factor"}),
}
_NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
_RENAMED = {
    "original_max_position_embeddings": "original_max_positions",
    "short_factor": "short_factors",
    "long_factor": "long_factors",
    "llama_4_scaling_beta": "temperature",
    "short_mscale": "short_scale",
    "long_mscale": "long_scale",
}

_LISTS = ("short_factor", "long_factor")
_POSITIVE = (
    *_LISTS,
    *("factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor"),
    "original_max_position_embeddings",
)

_MOST_PAIRS = 512
"""Rotated pairs of a head that M-RoPE may assign to axes."""


def rope_parameters(fields: Fields) -> dict[str, Any]:
    """Return `rope_parameters`, or `rope_scaling` of earlier configs.

    If a config has both, `rope_scaling` wins, as in transformers: model cards ask users to add it for long contexts,
    also to configs that have `rope_parameters`. Base and rotated part are then still those of `rope_parameters`, unless
    the scaling has its own.
    """
    parameters, scaling = dict(fields.get("rope_parameters", {})), dict(fields.get("rope_scaling", {}))
    kept = ("rope_theta", "partial_rotary_factor") if scaling else parameters
    return {name: parameters[name] for name in kept if name in parameters} | scaling


def rope_theta(fields: Fields, default: float = 10000.0) -> float:
    """Return `rope_theta`, which transformers 5 writes into the parameters instead."""
    return fields.number("rope_theta", default)


def read_rope(
    fields: Fields,
    theta: float = 10000.0,
    *,
    parameters: Json | None = None,
    part: float | None = None,
    interleaved: bool = False,
    further: frozenset[str] = frozenset(),
    axes: tuple[int, ...] = (),
) -> Rope:
    """Read one rotary embedding.

    Args:
        fields: of the config.
        theta: the base where the config has none.
        parameters: those of `rope_parameters` or of a part of it; None reads them.
        part: the default of `partial_rotary_factor`; None for families that always rotate whole heads.
        interleaved: whether the family rotates neighbouring numbers, see `Rope`.
        further: fields of the parameters that the family has besides those of the type.
        axes: see `Rope.axes`.

    Raises:
        UnsupportedModelError: the type or one of its fields is not supported.
    """
    found = rope_parameters(fields) if parameters is None else dict(parameters)
    kind = found.pop("rope_type", None) or found.pop("type", None) or "default"
    found.pop("type", None)
    theta = float(found.pop("rope_theta", None) or rope_theta(fields, theta))
    fields.without_effect("rope_theta")
    if not 1 < theta < math.inf:
        raise UnsupportedModelError(f"rope_theta must be a number larger than 1, not {theta}")
    # transformers up to 5.17 writes it in both places.
    rotated = fields.number("partial_rotary_factor", part or 1.0)
    rotated = float(found.pop("partial_rotary_factor", None) or rotated)
    if rotated != 1.0 and part is None:
        raise UnsupportedModelError(
            f"partial_rotary_factor must be 1 for model_type {fields.model_type!r}, not {rotated}"
        )
    if not 0 <= rotated <= 1:
        raise UnsupportedModelError(f"the rotated part of a head must be between 0 and 1, not {rotated}")
    if kind not in _FIELDS:
        raise UnsupportedModelError(f"rope_type {kind!r} is not supported ({', '.join(sorted(_FIELDS))} are)")
    scaling = _scaling(fields, kind, found, further)
    return Rope(theta=theta, kind=kind, part=rotated, interleaved=interleaved, axes=axes, **scaling)


def read_mrope_axes(
    parameters: dict[str, Any], sections: tuple[int, int, int], pairs: int, *, alternate: bool
) -> tuple[int, ...]:
    """Read the multimodal rotary embedding (M-RoPE), which rotates each pair by time, height or width.

    Args:
        parameters: of the rotary embedding; the fields that are read are removed.
        sections: the default of `mrope_section`: pairs that rotate by time, by height and by width.
        pairs: rotated pairs of a head.
        alternate: whether the axes alternate from pair to pair (Qwen3-VL), or have a block of pairs each (Qwen2-VL).

    Returns:
        The axis of each pair, for `Rope.axes`.

    Raises:
        UnsupportedModelError: the sections do not fit the head, or the family arranges them differently.
    """
    if parameters.get("rope_type", parameters.get("type")) == "mrope":
        parameters |= {"rope_type": "default"}
    counts = parameters.pop("mrope_section", None) or sections
    if parameters.pop("mrope_interleaved", None) not in (None, alternate):
        raise UnsupportedModelError(f"mrope_interleaved must be {str(alternate).lower()} for this model_type")
    if len(counts) != 3 or any(type(count) is not int or count < 0 for count in counts):
        raise UnsupportedModelError(f"mrope_section must have three numbers, not {counts!r:.{MOST_SHOWN}}")
    if pairs > _MOST_PAIRS:
        raise UnsupportedModelError(f"heads with {pairs} rotated pairs are not supported ({_MOST_PAIRS} are)")
    if alternate:
        # An axis that has used up its pairs leaves the rest to time.
        return tuple(pair % 3 if pair < 3 * counts[pair % 3] else 0 for pair in range(pairs))
    if sum(counts) != pairs:
        raise UnsupportedModelError(
            f"mrope_section {counts!r:.{MOST_SHOWN}} does not fit the {pairs} pairs of a head"
        )
    return tuple(axis for axis, count in enumerate(counts) for _ in range(count))


def _scaling(fields: Fields, kind: str, parameters: Json, further: frozenset[str]) -> dict[str, Any]:
    """Check the fields of a scaling; `parameters` may have those of other scalings as null."""
    found = {name: value for name, value in parameters.items() if value is not None}
    # transformers writes the original length for every type; linear scaling does not use it.
    length = fields.integer("max_position_embeddings")
    original = found.pop("original_max_position_embeddings", None)
    original = fields.get("original_max_position_embeddings") or original or length
    if unknown := found.keys() - _FIELDS[kind] - further:
        raise UnsupportedModelError(f"rope_parameters of type {kind!r} has unknown fields: {sorted(unknown)}")
    for name, value in found.items():
        _check_number(name, value)
    for name in _NEEDED.get(kind, ()):
        if name not in found:
            raise UnsupportedModelError(f"rope_parameters of type {kind!r} needs a {name}")
    if kind == "default" and not further:
        return {}
    if kind in ("yarn", "longrope"):
        found.setdefault("factor", length / original)
    _check_number("original_max_position_embeddings", original)
    found["original_max_position_embeddings"] = int(original)
    values = {_RENAMED.get(name, name): value for name, value in found.items()}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _check_number(name: str, value: Any) -> None:
    """Refuse a field of a scaling with which no frequencies can be computed."""
    numbers = value if isinstance(value, list) and name in _LISTS else [value]
    if not all(isinstance(each, int | float) and abs(each) < math.inf for each in numbers):
        raise UnsupportedModelError(
            f"{name} of rope_parameters must be a number, not {value!r:.{MOST_SHOWN}}"
        )
    if name in _POSITIVE and not all(1e-9 < each < 1e9 for each in numbers):
        raise UnsupportedModelError(
            f"{name} of rope_parameters must be positive and below 1e9, not {value!r:.{MOST_SHOWN}}"
        )


def read_ropes(
    fields: Fields, thetas: Mapping[str, float], *, scaled: str = "full_attention"
) -> dict[str, Rope]:
    """Read the rotary embedding of each type of layers; earlier configs had one scaling, for the type `scaled`.

    Args:
        fields: of the config.
        thetas: the base of each type where the config has none.
        scaled: the type that `rope_theta` and `rope_scaling` are for.
    """
    nested = fields.get("rope_parameters", {})
    earlier = fields.get("rope_scaling", {})
    if unknown := nested.keys() - thetas.keys():
        raise UnsupportedModelError(f"rope_parameters have unknown fields: {sorted(unknown)}")
    found = {}
    for kind, theta in thetas.items():
        parameters = {"rope_theta": theta} | (earlier if kind == scaled else {}) | (nested.get(kind) or {})
        found[kind] = read_rope(fields, parameters=parameters)
    return found


def context_length(fields: Fields, layers: Iterable[LayerDescription]) -> int:
    """Return the longest sequence that a model was made for; yarn multiplies the original length by its factor."""
    ropes = {layer.mixer.rope for layer in layers}
    stretched = [
        int(rope.original_max_positions * rope.factor)
        for rope in ropes
        if rope is not None and rope.kind == "yarn"
    ]
    return max([fields.integer("max_position_embeddings"), *stretched])

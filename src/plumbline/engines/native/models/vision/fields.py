"""Read fields that configs of several kinds of towers have."""

from __future__ import annotations

from typing import Any, TypedDict

from plumbline.engines.native.models.description import ModelDescription, UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields
from plumbline.engines.native.models.vision.layers import Activation

__all__ = [
    "TowerSizes",
    "check_scale",
    "chosen_layers",
    "read_activation",
    "read_axial_theta",
    "read_epsilon",
    "read_sizes",
    "read_token",
]

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
}


def read_activation(fields: Fields, name: str, default: str) -> Activation:
    """Read the activation of a tower or a projector.

    Raises:
        UnsupportedModelError: it is not known.
    """
    value = fields.get(name, default)
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{name} {value!r:.{MOST_SHOWN}} is not supported ({', '.join(_ACTIVATIONS)} are)"
        )
    return _ACTIVATIONS[value]


class TowerSizes(TypedDict):
    """The fields of `Tower` that all configs of one style name equally."""

    hidden_size: int
    width: int
    layers: int
    heads: int
    head_dim: int
    patch_size: int


def read_sizes(
    fields: Fields, hidden_size: int, width: int, layers: int, heads: int, patch_size: int
) -> TowerSizes:
    """Read the sizes of a tower of three colours, which have these defaults.

    Raises:
        UnsupportedModelError: the width is not divided evenly among the heads.
    """
    if fields.integer("num_channels", 3) != 3:
        raise UnsupportedModelError("num_channels must be 3")
    hidden_size, heads = (
        fields.integer("hidden_size", hidden_size),
        fields.integer("num_attention_heads", heads),
    )
    if hidden_size % heads:
        raise UnsupportedModelError("hidden_size must be a multiple of num_attention_heads")
    return TowerSizes(
        hidden_size=hidden_size,
        width=fields.integer("intermediate_size", width),
        layers=fields.integer("num_hidden_layers", layers),
        heads=heads,
        head_dim=hidden_size // heads,
        patch_size=fields.integer("patch_size", patch_size),
    )


def read_axial_theta(fields: Fields, default: float) -> float:
    """Read the base of a rotation by line and column, whose type older configs call default.

    Raises:
        UnsupportedModelError: the rotation is of another type, or the base is not positive.
    """
    found = fields.part("rope_parameters", {})
    if (kind := found.get("rope_type", "axial")) not in ("axial", "default"):
        raise UnsupportedModelError(f"rope_type {kind!r:.{MOST_SHOWN}} is not supported (axial is)")
    theta = found.number("rope_theta", fields.number("rope_theta", default))
    if theta <= 0:
        raise UnsupportedModelError(f"rope_theta must be positive, not {theta}")
    found.finish()
    return theta


def read_epsilon(fields: Fields, name: str, default: float) -> float:
    """Read what a norm adds to a variance.

    Raises:
        UnsupportedModelError: it is not a number, or less than 0.
    """
    if (found := fields.number(name, default)) < 0:
        raise UnsupportedModelError(f"{name} must not be less than 0, and is {found}")
    return found


def read_token(fields: Fields, name: str, default: int, text: ModelDescription) -> int:
    """Read the id of a token of an image, such as `image_token_id`; older configs call it `image_token_index`.

    Raises:
        UnsupportedModelError: it is not a positive integer, or not in the vocabulary of the text.
    """
    found = fields.integer(f"{name}_token_id", fields.integer(f"{name}_token_index", default))
    if found >= text.vocab_size:
        raise UnsupportedModelError(
            f"{name}_token_id (or {name}_token_index) is {found}, and the vocabulary has {text.vocab_size} tokens"
        )
    return found


def chosen_layers(value: Any, layers: int) -> tuple[int, ...]:
    """Return the layers of a tower that a projector reads, counted from the embedded patches.

    Raises:
        UnsupportedModelError: the tower does not have them.
    """
    chosen = value if isinstance(value, list) else [value]
    total = layers + 1
    if not chosen or any(type(layer) is not int or not -total <= layer < total for layer in chosen):
        raise UnsupportedModelError(
            f"vision_feature_layer must name layers from {-total} to {total - 1}, not {value!r:.{MOST_SHOWN}}"
        )
    return tuple(layer % total for layer in chosen)


def check_scale(text: ModelDescription) -> None:
    """Refuse a text that scales its embeddings, as transformers scales the rows of images with them for some families.

    Raises:
        UnsupportedModelError: it does.
    """
    if text.embedding_scale != 1.0:
        raise UnsupportedModelError(
            f"the text, {text.model_type}, scales its embeddings, and those of images with them"
        )

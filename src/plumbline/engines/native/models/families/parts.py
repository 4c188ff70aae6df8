"""What model families share: their entry in the registry, and readers of fields that many of them have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypedDict

from plumbline.engines.native.models.description import (
    Dense,
    FeedForward,
    LayerDescription,
    Mixer,
    ModelDescription,
    Norm,
    Placement,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.rope_fields import context_length
from plumbline.engines.native.models.fields import Fields, Json

__all__ = [
    "FULL",
    "SLIDING",
    "Family",
    "HeadShape",
    "Wrapped",
    "alike",
    "attention_bias",
    "dense",
    "every",
    "heads",
    "layer_norm",
    "layer_types",
    "model",
    "rms",
    "stack",
    "ungated",
    "windows",
]

FULL, SLIDING = "full_attention", "sliding_attention"


class Wrapped(NamedTuple):
    """A type of vision-language models, whose config contains that of a family."""

    model_type: str
    title: str
    defaults: Json
    """Fields of the text that configs of earlier versions of transformers leave out."""
    is_flat: bool = False
    """Whether releases have the fields of the text beside those of images."""


class Family(NamedTuple):
    """A model family: the releases that it stands for, and its reader."""

    title: str
    describe: Callable[[Fields], ModelDescription]
    wrapped: Wrapped | None = None
    """The vision-language models whose language model is of this family unless their config names another."""


class HeadShape(TypedDict):
    """The shape of an attention."""

    heads: int
    kv_heads: int
    head_dim: int


class Biases(TypedDict):
    """Which projections of an attention have a bias."""

    qkv_bias: bool
    o_bias: bool


def heads(fields: Fields, head_dim: int | None = None, number: int | None = None) -> HeadShape:
    """Read the number and width of heads.

    Args:
        fields: of the config.
        head_dim: the family's default; None for the width divided by the number of heads.
        number: the family's default; None for none.
    """
    number = fields.integer("num_attention_heads", number)
    kv_heads = fields.integer("num_key_value_heads", number)
    width = fields.integer("head_dim", head_dim or fields.integer("hidden_size") // number)
    return {"heads": number, "kv_heads": kv_heads, "head_dim": width}


def attention_bias(fields: Fields) -> Biases:
    """Read the flag that gives all projections of an attention a bias."""
    bias = fields.flag("attention_bias")
    return {"qkv_bias": bias, "o_bias": bias}


def stack(
    mixers: Iterable[Mixer], feed_forward: FeedForward, norms: Placement = "before"
) -> tuple[LayerDescription, ...]:
    """Return layers of these mixers that have the same feed-forward block."""
    return tuple(LayerDescription(mixer=mixer, feed_forward=feed_forward, norms=norms) for mixer in mixers)


def alike(
    fields: Fields, mixer: Mixer, feed_forward: FeedForward, norms: Placement = "before"
) -> tuple[LayerDescription, ...]:
    """Return the layers of a model whose layers are alike."""
    return stack((mixer,), feed_forward, norms) * fields.integer("num_hidden_layers")


def rms(fields: Fields, eps: float = 1e-5, **changes: Any) -> Norm:
    """Read an RMS norm; `eps` is `rms_norm_eps` where the config has none, `changes` are further fields."""
    return Norm(eps=fields.number("rms_norm_eps", eps), **changes)


def layer_norm(fields: Fields, name: str = "layer_norm_eps", **changes: Any) -> Norm:
    """Read a layer norm with weights and biases, whose eps is the field `name`; `changes` are further fields."""
    return Norm(**{"kind": "layer", "eps": fields.number(name, 1e-5), "bias": True, **changes})


def layer_types(
    fields: Fields, default: Iterable[str], known: Sequence[str] = (FULL, SLIDING)
) -> tuple[str, ...]:
    """Read the type of each layer.

    Args:
        fields: of the config.
        default: the types where `layer_types` is missing.
        known: the types that there are.

    Raises:
        UnsupportedModelError: a type is not supported, or there is not one for each layer.
    """
    found = fields.get("layer_types") or default
    types = tuple(found) if isinstance(found, Iterable) else (found,)
    if unknown := [str(kind) for kind in types if kind not in known]:
        raise UnsupportedModelError(f"layer_types {sorted({*unknown})} are not supported")
    if len(types) != fields.integer("num_hidden_layers"):
        raise UnsupportedModelError("layer_types must name every layer")
    return types


def every(fields: Fields, pattern: int, *, first: bool = False) -> list[str]:
    """Return layer types where every `pattern`-th layer has full attention, counted from the first or to the last."""
    count, rest = fields.integer("num_hidden_layers"), 0 if first else pattern - 1
    return [FULL if layer % pattern == rest else SLIDING for layer in range(count)]


def windows(fields: Fields, types: Iterable[str]) -> tuple[int | None, ...]:
    """Return the attention window of layers of these types: `sliding_window` for those with one."""
    window = fields.optional("sliding_window")
    return tuple(window if kind == SLIDING else None for kind in types)


def dense(fields: Fields, *, bias: bool = False, width: str = "intermediate_size") -> Dense:
    """Read a gated feed-forward block."""
    return Dense(width=fields.integer(width), activation=fields.activation(), bias=bias)


def ungated(
    fields: Fields, default: str, *, name: str = "hidden_act", width: str = "intermediate_size", bias: bool
) -> Dense:
    """Read a feed-forward block without a gate, whose activation is the field `name`."""
    activation = fields.activation(name, default)
    return Dense(width=fields.integer(width), activation=activation, gated=False, bias=bias)


def model(
    fields: Fields,
    layers: Iterable[LayerDescription],
    norm: Norm | None = None,
    *,
    tied: bool = False,
    **changes: Any,
) -> ModelDescription:
    """Describe a model of these layers, with the fields that all families have.

    Args:
        fields: of the config.
        layers: of the model.
        norm: an RMS norm of `rms_norm_eps` by default.
        tied: whether the output layer is the embedding where the config does not say so.
        changes: further fields of the description.
    """
    layers = tuple(layers)
    if (positions := changes.get("positions")) is not None:
        changes |= {"longest": positions.number, "longest_field": "max_position_embeddings"}
    return ModelDescription(
        **{
            "model_type": fields.model_type,
            "vocab_size": fields.integer("vocab_size"),
            "hidden_size": fields.integer("hidden_size"),
            "layers": layers,
            "norm": norm or rms(fields, 1e-6),
            "tied": fields.flag("tie_word_embeddings", tied),
            "context_length": context_length(fields, layers),
            "dtype": fields.dtype(),
            "eos_token_ids": fields.token_ids("eos_token_id"),
            **changes,
        }
    )

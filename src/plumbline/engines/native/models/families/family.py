"""What model families share: their entry in the registry, and readers of fields that many of them have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypedDict

from plumbline.engines.native.models.description import (
    Attention,
    Dense,
    LayerDescription,
    ModelDescription,
    Norm,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.rope_fields import context_length
from plumbline.engines.native.models.fields import Fields

__all__ = ["Family", "Heads", "alike", "attention_bias", "heads", "layer_windows", "model"]


class Family(NamedTuple):
    """A model family: the releases that it stands for, and its reader."""

    title: str
    describe: Callable[[Fields], ModelDescription]


class Heads(TypedDict):
    """The shape of an attention."""

    heads: int
    kv_heads: int
    head_dim: int


class Biases(TypedDict):
    """Which projections of an attention have a bias."""

    qkv_bias: bool
    o_bias: bool


def heads(fields: Fields, head_dim: int | None = None) -> Heads:
    """Read the number and width of heads; `head_dim` is the family's default, None for the width divided by them."""
    number = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", number)
    width = fields.integer("head_dim", head_dim or fields.integer("hidden_size") // number)
    return {"heads": number, "kv_heads": kv_heads, "head_dim": width}


def attention_bias(fields: Fields) -> Biases:
    """Read the flag that gives all projections of an attention a bias."""
    bias = fields.flag("attention_bias")
    return {"qkv_bias": bias, "o_bias": bias}


def alike(fields: Fields, mixer: Attention, feed_forward: Dense) -> tuple[LayerDescription, ...]:
    """Return the layers of a model whose layers are alike."""
    layer = LayerDescription(mixer=mixer, feed_forward=feed_forward)
    return (layer,) * fields.integer("num_hidden_layers")


def layer_windows(fields: Fields, default: Iterable[str]) -> tuple[int | None, ...]:
    """Read the attention window of each layer from `layer_types` and `sliding_window`.

    Args:
        fields: of the config.
        default: the type of each layer where `layer_types` is missing.
    """
    window = fields.get("sliding_window")
    windows = {"full_attention": None, "sliding_attention": window}
    types = fields.get("layer_types") or list(default)
    if unknown := set(types) - windows.keys():
        raise UnsupportedModelError(f"layer_types {sorted(unknown)} are not supported")
    if len(types) != fields.integer("num_hidden_layers"):
        raise UnsupportedModelError("layer_types must name every layer")
    return tuple(windows[kind] for kind in types)


def model(
    fields: Fields, layers: tuple[LayerDescription, ...], norm: Norm | None = None, **changes: Any
) -> ModelDescription:
    """Describe a model of these layers, with the fields that all families have; `changes` are those of a family."""
    return ModelDescription(
        **{
            "model_type": fields.model_type,
            "vocab_size": fields.integer("vocab_size"),
            "hidden_size": fields.integer("hidden_size"),
            "layers": layers,
            "norm": norm or Norm(eps=fields.number("rms_norm_eps", 1e-6)),
            "tied": fields.flag("tie_word_embeddings"),
            "context_length": context_length(fields, layers),
            "dtype": fields.dtype(),
            "eos_token_ids": fields.token_ids("eos_token_id"),
            **changes,
        }
    )

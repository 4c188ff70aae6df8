"""What stands for an architecture of GGUF files, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.families.parts import FULL, SLIDING
from plumbline.engines.native.models.fields import MOST_SHOWN, readable

__all__ = [
    "EPS",
    "EXPERTS",
    "WIDTH",
    "Architecture",
    "Keys",
    "Tensors",
    "expert_width",
    "layers_with_windows",
    "partial_rotation",
    "rope",
]


class Keys(Mapping[str, Any]):
    """The metadata of an architecture, without its name."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._latest = ""

    def __getitem__(self, key: str) -> Any:
        self._latest = key
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def readable(self) -> AbstractContextManager[None]:
        """Refuse a value with which an architecture's fields cannot be computed; see `fields.readable`."""
        return readable("the metadata have", lambda: self._latest)


Tensors = Collection[str]
"""The names of a file's tensors."""


def _nothing(_: Keys, __: Tensors) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a `general.architecture` stands for."""

    model_type: str
    keys: Mapping[str, str] = field(default_factory=dict)
    """Fields of its own keys."""
    fields: Callable[[Keys, Tensors], dict[str, Any]] = _nothing
    """Returns fields that no key has: llama.cpp computes them from others, or from the tensors that there are."""
    names: Mapping[str, Any] = field(default_factory=dict)
    """Changes of `Names`, where files have a tensor in another shape than checkpoints."""
    interleaved: bool | None = None
    """Whether rows of q and k are stored in the order in which neighbours are rotated together; None as by the family.
    """
    tiled: bool = False
    """Whether value heads of delta nets are in an order of their own (`DeltaNet.tiled`)."""
    norms_with_offset: bool = False
    """Whether the weights of norms contain the offset that the family adds."""
    needed: str = ""
    """Keys that must be there, besides those that the family reads."""
    rotated: bool = True
    """Whether heads are rotated."""
    partial: bool = False
    """Whether `rope.dimension_count` may be a part of a head."""
    gating: int = 1
    """How experts are chosen: 1 by a softmax, 2 by sigmoids."""
    biases: bool = True
    """Whether the config says which projections have a bias, and so the tensors here."""
    numbers: Mapping[str, str] = field(default_factory=dict)
    """Metadata with a number for each layer, by the names that checkpoints have for it in a layer, as tensors."""


EXPERTS = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
WIDTH = {"expert_feed_forward_length": "moe_intermediate_size"}
EPS = {"attention.layer_norm_epsilon": "layer_norm_epsilon"}


def partial_rotation(keys: Keys, _: Tensors) -> dict[str, Any]:
    """Return which part of a head is rotated."""
    head_dim = keys.get("attention.key_length") or keys["embedding_length"] // keys["attention.head_count"]
    # Half a number more, so that the product with the width is not rounded below it.
    turned = keys.get("rope.dimension_count", head_dim) + 0.5
    return {"partial_rotary_factor": min(1.0, turned / head_dim)}


def layers_with_windows(keys: Keys, _: Tensors) -> dict[str, Any]:
    """Return the kinds of layers by `attention.sliding_window_pattern`, if the file has one."""
    pattern = keys.get("attention.sliding_window_pattern")
    if pattern is None:
        return {}
    count = keys["block_count"]
    if not isinstance(pattern, list):  # Every so many layers one is full; 0 has all full.
        pattern = pattern or 1
        pattern = [(layer + 1) % pattern != 0 for layer in range(count)]
    return {"layer_types": [SLIDING if slides else FULL for slides in pattern[:count]]}


def expert_width(keys: Keys, _: Tensors) -> dict[str, Any]:
    """Return the width of experts, which files of the first converters lack."""
    width = keys.get("expert_feed_forward_length") or keys["feed_forward_length"] // keys["expert_used_count"]
    return {"moe_intermediate_size": width}


def rope(keys: Keys) -> dict[str, Any]:
    """Return the parameters of the rotary embedding."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base", 10000.0)}
    # The same defaults as in llama.cpp.
    kind = keys.get("rope.scaling.type", "linear")
    factor = keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 1.0)) or 1.0
    # The first files of OLMo 3 have the factor of YaRN by its first name.
    attention = keys.get("rope.scaling.yarn_attn_factor", keys.get("rope.scaling.attn_factor", 1.0))
    if attention != 1.0 and kind != "yarn":
        raise UnsupportedModelError("rope.scaling.attn_factor is supported for yarn only (1 is for others)")
    if keys.get("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        raise UnsupportedModelError("rope.scaling.yarn_ext_factor must be 1")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(
            f"rope.scaling.type {kind!r:.{MOST_SHOWN}} is not supported (linear and yarn are)"
        )
    if kind == "none" or factor == 1.0:
        return found
    found |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        found |= {
            "original_max_position_embeddings": keys.get("rope.scaling.original_context_length"),
            "beta_fast": keys.get("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys.get("rope.scaling.yarn_beta_slow", 1.0),
        }
        if "rope.scaling.yarn_attn_factor" in keys or attention != 1.0:
            found["attention_factor"] = attention
    return found

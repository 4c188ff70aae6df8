"""Read a Hugging Face `config.json` into one frozen value.

Four families share one architecture and differ by flags: Llama, Qwen2, Qwen3 and Mistral. Both formats of the
rotary settings are read (`rope_parameters` of transformers 5, `rope_theta` with `rope_scaling` before it). What
the transformer does not support is refused here by the name of the field, so that no model runs almost right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

__all__ = ["ModelConfig", "RopeConfig", "UnsupportedModelError", "load_config"]

Json = Mapping[str, Any]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ROPE_FIELDS = {
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


class UnsupportedModelError(ValueError):
    """The model needs something that the transformer does not support; the message names the field."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """The base of the rotary embedding and how its frequencies are scaled."""

    theta: float = 10000.0
    kind: str = "default"
    """`default`, `linear`, `llama3` or `yarn`."""
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shapes and arithmetic of a model."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    rope: RopeConfig = field(default_factory=RopeConfig)
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_windows: tuple[int | None, ...] = ()
    """Per layer, None for full attention; empty means full attention everywhere."""
    dtype: torch.dtype = torch.float32
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Check what the rest of the code assumes."""
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError("num_attention_heads must be a multiple of num_key_value_heads")
        if self.head_dim % 2:
            raise UnsupportedModelError("head_dim must be even")
        if self.sliding_windows and len(self.sliding_windows) != self.num_layers:
            raise UnsupportedModelError("layer_types must name every layer")

    @property
    def max_model_len(self) -> int:
        """The longest sequence that the model supports; yarn multiplies the original length by its factor."""
        if self.rope.kind == "yarn":
            return max(self.max_position_embeddings, int(self.rope.original_max_positions * self.rope.factor))
        return self.max_position_embeddings

    def sliding_window(self, layer: int) -> int | None:
        """The window of a layer, None for full attention."""
        return self.sliding_windows[layer] if self.sliding_windows else None

    @classmethod
    def from_hf(cls, config: Json, eos_token_ids: frozenset[int] | None = None) -> ModelConfig:
        """Read the contents of a `config.json`.

        Raises:
            UnsupportedModelError: the model is of another family or uses a feature that is not implemented.
        """
        model_type = config.get("model_type", "")
        if model_type not in ("llama", "qwen2", "qwen3", "mistral"):
            raise UnsupportedModelError(
                f"model_type {model_type!r} is not supported (llama, mistral, qwen2 and qwen3 are); "
                "the transformers engine runs other models"
            )
        if config.get("hidden_act", "silu") not in ("silu", "swish"):
            raise UnsupportedModelError(f"hidden_act {config['hidden_act']!r} is not supported (silu is)")
        if config.get("quantization_config") is not None:
            raise UnsupportedModelError("quantization_config is not supported: use unquantised weights")
        num_heads = _integer(config, "num_attention_heads")
        hidden_size = _integer(config, "hidden_size")
        attention_bias = bool(config.get("attention_bias", False)) and model_type in ("llama", "qwen3")
        return cls(
            model_type=model_type,
            vocab_size=_integer(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_integer(config, "intermediate_size"),
            num_layers=_integer(config, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=config.get("num_key_value_heads") or num_heads,
            head_dim=config.get("head_dim") or (128 if model_type == "qwen3" else hidden_size // num_heads),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            max_position_embeddings=_integer(config, "max_position_embeddings"),
            rope=_read_rope(config),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=model_type == "qwen2" or attention_bias,
            o_bias=attention_bias,
            mlp_bias=bool(config.get("mlp_bias", False)) and model_type == "llama",
            qk_norm=model_type == "qwen3",
            sliding_windows=_read_windows(config, model_type),
            dtype=_read_dtype(config),
            eos_token_ids=_ids(config.get("eos_token_id")) if eos_token_ids is None else eos_token_ids,
        )


def load_config(path: Path) -> ModelConfig:
    """Read `config.json` of a model folder; end-of-sequence ids come from `generation_config.json` if it is there."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    eos = None
    generation = path / "generation_config.json"
    if generation.exists():
        eos = _ids(json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id")) or None
    return ModelConfig.from_hf(config, eos)


def _integer(config: Json, name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value <= 0:
        raise UnsupportedModelError(f"{name} must be a positive integer in config.json, not {value!r}")
    return value


def _ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)


def _read_dtype(config: Json) -> torch.dtype:
    name = config.get("dtype") or config.get("torch_dtype") or "float32"
    if name not in _DTYPES:
        raise UnsupportedModelError(f"dtype {name!r} is not supported")
    return _DTYPES[name]


def _read_rope(config: Json) -> RopeConfig:
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = parameters.pop("rope_type", None) or parameters.pop("type", None) or "default"
    parameters.pop("type", None)
    theta = parameters.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    partial = parameters.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise UnsupportedModelError("partial_rotary_factor other than 1 is not supported")
    if kind not in _ROPE_FIELDS:
        raise UnsupportedModelError(
            f"rope_type {kind!r} is not supported ({', '.join(sorted(_ROPE_FIELDS))} are)"
        )
    if kind == "default":
        return RopeConfig(theta=float(theta))
    return _read_scaled_rope(config, kind, float(theta), parameters)


def _read_scaled_rope(config: Json, kind: str, theta: float, parameters: Json) -> RopeConfig:
    """Read the fields of a scaling; `parameters` may have those of other scalings as null."""
    parameters = {name: value for name, value in parameters.items() if value is not None}
    # transformers writes the original length for every type; linear scaling does not use it.
    original = parameters.pop("original_max_position_embeddings", None) or config["max_position_embeddings"]
    if unknown := parameters.keys() - _ROPE_FIELDS[kind]:
        raise UnsupportedModelError(f"rope_parameters of type {kind!r} has unknown fields: {sorted(unknown)}")
    if "factor" not in parameters:
        if kind != "yarn":
            raise UnsupportedModelError(f"rope_parameters of type {kind!r} needs a factor")
        parameters["factor"] = config["max_position_embeddings"] / original
    for name in ("low_freq_factor", "high_freq_factor"):
        if kind == "llama3" and name not in parameters:
            raise UnsupportedModelError(f"rope_parameters of type 'llama3' needs a {name}")
    return RopeConfig(theta=theta, kind=kind, original_max_positions=int(original), **parameters)


def _read_windows(config: Json, model_type: str) -> tuple[int | None, ...]:
    """Return the sliding window of each layer, or an empty tuple if all layers have full attention."""
    num_layers = _integer(config, "num_hidden_layers")
    window = config.get("sliding_window")
    if model_type == "llama" or window is None:
        return ()
    if model_type == "mistral":
        return (window,) * num_layers
    if not config.get("use_sliding_window", False):
        return ()
    layer_types = config.get("layer_types")
    if layer_types is None:
        first = config.get("max_window_layers", 28)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    windows = {"full_attention": None, "sliding_attention": window}
    unknown = set(layer_types) - windows.keys()
    if unknown:
        raise UnsupportedModelError(f"layer_types {sorted(unknown)} are not supported")
    return tuple(windows[kind] for kind in layer_types)

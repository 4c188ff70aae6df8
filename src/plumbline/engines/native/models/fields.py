"""Read the fields of a `config.json`, so that none is overlooked.

A family reads fields by name and lists those that are without effect here. `finish` refuses the rest: a field that is
not known may change what the model computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from plumbline.base.end_tokens import EndTokenError, token_ids
from plumbline.engines.native.models.description import Activation, UnsupportedModelError

__all__ = ["MOST_LAYERS", "MOST_SHOWN", "Fields", "Json", "readable"]

Json = Mapping[str, Any]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
}
MOST_LAYERS = 10_000
_MOST_OF_HEADS = 2**13
_MOST = {
    "num_hidden_layers": MOST_LAYERS,
    "hidden_size": 2**20,
    **dict.fromkeys(
        (
            "head_dim",
            "num_attention_heads",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            "kv_lora_rank",
            "linear_num_key_heads",
            "linear_num_value_heads",
            "linear_key_head_dim",
            "linear_value_head_dim",
        ),
        _MOST_OF_HEADS,
    ),
}
"""Layers, and rows of heads, are listed one by one: a config of 300 bytes with 2**31 of them would take 16 GB."""
_MOST_OF_ANY = 2**31 - 1
"""What the kernels index with."""
MOST_SHOWN = 80
"""Characters of a value in an error."""
_FROM_TRANSFORMERS = (
    "_attn_implementation _attn_implementation_autoset _name_or_path _num_labels architectures attn_implementation "
    "auto_map chunk_size_feed_forward id2label is_composition is_decoder is_encoder_decoder label2id model_type "
    "output_attentions output_hidden_states problem_type return_dict transformers.js_config transformers_version "
    "unsloth_fixed unsloth_version use_cache"
)
"""What transformers writes for every model, and what its users and tools add."""
_OF_TRAINING = (
    "attention_dropout embd_pdrop hidden_dropout initializer_range output_router_logits pretraining_tp resid_pdrop "
    "residual_dropout router_aux_loss_coef router_jitter_noise"
)
_OF_GENERATION = "bos_token_id cache_implementation pad_token_id temperature tokenizer_class top_k top_p"
"""What the tokenizer and the generation config decide."""


@contextmanager
def readable(what: str, latest: Callable[[], str]) -> Iterator[None]:
    """Refuse a value with which a reader cannot compute, such as a string where it expects a list.

    Args:
        what: has the value, with its verb.
        latest: returns the name that was read last.

    Raises:
        UnsupportedModelError: the block failed; the message names what was read last.
    """
    try:
        yield
    except UnsupportedModelError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"{what} a value that cannot be read, probably of {latest()}: "
            f"{type(error).__name__}: {str(error)[:MOST_SHOWN]!r}"
        ) from error


class Fields:
    """The fields of a `config.json`."""

    def __init__(self, values: Json) -> None:
        """Take the fields, with null for those that are not set."""
        self._values = values
        self._latest = ""
        self._known = set(f"{_FROM_TRANSFORMERS} {_OF_TRAINING} {_OF_GENERATION}".split())
        self.model_type = str(values.get("model_type") or "")
        self.refused: set[str] = set()
        """The fields that must not be set."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or `default` where it is missing or null."""
        self._known.add(name)
        self._latest = name
        value = self._values.get(name)
        return default if value is None else value

    def readable(self) -> AbstractContextManager[None]:
        """Refuse a value with which a family's reader cannot compute; see `readable`."""
        return readable("config.json has", lambda: self._latest or "model_type")

    def rename(self, names: Mapping[str, str]) -> None:
        """Give fields the names that other families have for them.

        Raises:
            UnsupportedModelError: one is there by both names, with different values.
        """
        for name, common in names.items():
            if (value := self._values.get(name)) is None:
                continue
            if self._values.get(common) not in (None, value):
                raise UnsupportedModelError(f"{name} and {common} differ in config.json")
            self._values = {**self._values, common: value}
            self._known.add(name)

    def fill(self, name: str, value: Any) -> None:
        """Set a field that is missing or null."""
        if self._values.get(name) is None:
            self._values = {**self._values, name: value}

    def has(self, name: str) -> bool:
        """Return whether a field is there, null or not."""
        return name in self._values

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a positive integer.

        Raises:
            UnsupportedModelError: it is something else, or missing without a default.
        """
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise UnsupportedModelError(
                f"{name} must be a positive integer in config.json, not {value!r:.{MOST_SHOWN}}"
            )
        if value > (most := _MOST.get(name, _MOST_OF_ANY)):
            raise UnsupportedModelError(f"{name} is larger than {most}, the most that is supported")
        return value

    def optional(self, name: str) -> int | None:
        """Return a positive integer, or None where the field is missing or null.

        0 also counts as None: transformers writes it for windows that are not used.

        Raises:
            UnsupportedModelError: see `integer`.
        """
        return None if self.get(name) in (None, 0) else self.integer(name)

    def number(self, name: str, default: float) -> float:
        """Return a finite number.

        Raises:
            UnsupportedModelError: it is something else.
        """
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise UnsupportedModelError(
                f"{name} must be a number in config.json, not {value!r:.{MOST_SHOWN}}"
            )
        if not abs(value) < math.inf:
            raise UnsupportedModelError(f"{name} must be a finite number in config.json, not {value}")
        return float(value)

    def part(self, name: str, default: Json | None = None) -> Fields:
        """Return the fields of an object inside.

        Raises:
            UnsupportedModelError: it is something else, or missing without a default.
        """
        value = self.get(name, default)
        if not isinstance(value, Mapping):
            raise UnsupportedModelError(
                f"{name} must be an object in config.json, not {value!r:.{MOST_SHOWN}}"
            )
        return Fields(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return whether a field is set."""
        return bool(self.get(name, default))

    def activation(self, name: str = "hidden_act", default: str = "silu") -> Activation:
        """Return the activation of the feed-forward blocks.

        Raises:
            UnsupportedModelError: there is no operation for it.
        """
        value = self.get(name, default)
        if value not in _ACTIVATIONS:
            raise UnsupportedModelError(
                f"{name} {value!r:.{MOST_SHOWN}} is not supported ({', '.join(_ACTIVATIONS)} are)"
            )
        return _ACTIVATIONS[value]

    def dtype(self) -> torch.dtype:
        """Return the type of the weights.

        Raises:
            UnsupportedModelError: it is not one of fp32, bf16 and fp16.
        """
        name = self.get("torch_dtype", "float32")
        name = self.get("dtype", name)
        if isinstance(name, str):
            name = "float32" if name == "auto" else name.removeprefix("torch.")
        if name not in _DTYPES:
            raise UnsupportedModelError(
                f"dtype {name!r:.{MOST_SHOWN}} is not supported ({', '.join(_DTYPES)} are)"
            )
        return _DTYPES[name]

    def token_ids(self, name: str) -> frozenset[int]:
        """Return a field that is one token id, a list of them or null; see `end_tokens.token_ids`.

        Raises:
            UnsupportedModelError: it is something else.
        """
        try:
            return token_ids(self.get(name), name)
        except EndTokenError as error:
            raise UnsupportedModelError(str(error)) from error

    def without_effect(self, *names: str) -> None:
        """Accept fields that do not change what the model computes; a string may name several, with spaces."""
        self._known.update(" ".join(names).split())

    def take_rest(self) -> dict[str, Any]:
        """Return the fields that nothing has read yet, for another reader."""
        rest = {name: value for name, value in self._values.items() if name not in self._known}
        self._known.update(rest)
        return rest

    def refuse(self, *names: str) -> None:
        """Refuse fields that turn on something that is not supported.

        Raises:
            UnsupportedModelError: one of them is neither null nor false.
        """
        self.refused.update(names)
        for name in names:
            if (value := self.get(name)) is not None and value is not False:
                raise UnsupportedModelError(f"{name} {value!r:.{MOST_SHOWN}} is not supported")

    def finish(self) -> None:
        """Refuse what nothing has read.

        Raises:
            UnsupportedModelError: a field is not known.
        """
        unknown = sorted(
            name for name, value in self._values.items() if value is not None and name not in self._known
        )
        if unknown:
            names = ", ".join(f"{name!r:.{MOST_SHOWN}}"[1:-1] for name in unknown[:20])
            raise UnsupportedModelError(
                f"config.json has fields that are not known for model_type {self.model_type!r:.{MOST_SHOWN}}: "
                f"{names}; remove them if they have no effect"
            )

"""Read the configuration of a LoRA adapter, as PEFT writes it: every field is honoured, without effect, or refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

__all__ = ["AdapterConfig", "AdapterError"]

Number = TypeVar("Number", int, float)

_WITHOUT_EFFECT = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
}
"""About training, or about what the tensors show; `fan_in_fan_out` says that a layer is stored as [in, out]."""
_READ = {
    "alpha_pattern",
    "bias",
    "init_lora_weights",
    "layers_to_transform",
    "lora_alpha",
    "peft_type",
    "r",
    "rank_pattern",
    "target_modules",
    "task_type",
    "use_rslora",
}
_PLAIN_INITS = (None, True, False, "gaussian", "eva", "orthogonal")
"""What tensors of a new adapter are; the other ways (PiSSA, OLoRA, LoftQ, CorDA) change the weights of the model."""
_MAX_PATTERNS, _MAX_PATTERN, _MAX_REPEATS = 2048, 256, 2
"""Patterns of module names, their characters, and how many parts of one may repeat: more could take hours to match."""
_LARGEST = 1e15
_LAYER = re.compile(r"\.(\d+)\.")


class AdapterError(ValueError):
    """The adapter cannot be used; the message names the field or the tensor."""


class AdapterConfig:
    """What the configuration says about each module.

    Args:
        fields: of `adapter_config.json`.

    Raises:
        AdapterError: a field has a value that is not supported, or is not known.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._refuse(fields)
        self._rank = _integer("r", fields.get("r"))
        self._alpha = _real("lora_alpha", fields.get("lora_alpha"))
        self._ranks = _patterns("rank_pattern", fields.get("rank_pattern"), _integer)
        self._alphas = _patterns("alpha_pattern", fields.get("alpha_pattern"), _real)
        self._by_root = _flag("use_rslora", fields.get("use_rslora"))
        self._targets = _targets(fields.get("target_modules"))
        self._layers = _layers(fields.get("layers_to_transform"))

    @staticmethod
    def _refuse(fields: Mapping[str, Any]) -> None:
        """Refuse fields whose values are not supported or not known."""
        for name, expected in (
            ("peft_type", ("LORA",)),
            ("task_type", (None, "CAUSAL_LM")),
            ("bias", (None, "none")),
            ("init_lora_weights", _PLAIN_INITS),
        ):
            if fields.get(name) not in expected:
                shown = " or ".join(repr(value) for value in expected)
                raise AdapterError(
                    f"{name} must be {shown} in adapter_config.json, not {fields.get(name)!r:.60}"
                )
        for name, value in fields.items():
            if name not in _READ | _WITHOUT_EFFECT and value not in (None, False, [], {}, ""):
                raise AdapterError(f"{name:.60} {value!r:.60} in adapter_config.json is not supported")

    def rank(self, module: str) -> int:
        """Return the rank of a module's adapter."""
        return _found(self._ranks, module, self._rank)

    def scale(self, module: str) -> float:
        """Return the factor on the product of a module's tensors."""
        rank = self.rank(module)
        return _found(self._alphas, module, self._alpha) / (math.sqrt(rank) if self._by_root else rank)

    def check_target(self, module: str) -> None:
        """Check that the adapter is one of this module.

        Raises:
            AdapterError: `target_modules` or `layers_to_transform` leave the module out.
        """
        parts = module.split(".")
        endings = {".".join(parts[start:]) for start in range(len(parts))}
        if self._targets is not None and not endings & self._targets:
            raise AdapterError(
                f"target_modules in adapter_config.json does not name {module}, which has tensors"
            )
        layer = _LAYER.search(module)
        if self._layers is not None and (layer is None or int(layer[1]) not in self._layers):
            raise AdapterError(
                f"layers_to_transform in adapter_config.json does not name {module}, which has tensors"
            )


def _integer(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LARGEST:
        return value
    raise AdapterError(f"{name} must be a positive integer in adapter_config.json, not {value!r:.60}")


def _real(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST:
        return float(value)
    raise AdapterError(f"{name} must be a finite number in adapter_config.json, not {value!r:.60}")


def _flag(name: str, value: Any) -> bool:
    if value not in (None, True, False):
        raise AdapterError(f"{name} must be true or false in adapter_config.json, not {value!r:.60}")
    return bool(value)


def _patterns(
    name: str, value: object, read: Callable[[str, object], Number]
) -> list[tuple[re.Pattern[str], Number]]:
    """Compile the patterns of module names, which PEFT matches with the end of a name, in their order."""
    if value is None:
        return []
    if not isinstance(value, dict):
        raise AdapterError(f"{name} must be an object in adapter_config.json, not {value!r:.60}")
    if len(value) > _MAX_PATTERNS:
        raise AdapterError(f"{name} has {len(value)} patterns, and at most {_MAX_PATTERNS} are read")
    found = []
    for pattern, number in value.items():
        repeats = sum(map(pattern.count, "*+{?")) - pattern.count("(?:")
        if len(pattern) > _MAX_PATTERN or repeats > _MAX_REPEATS or re.search(r"\)\s*[*+{]", pattern):
            raise AdapterError(f"{name} has a pattern that is too complex: {pattern[:60]!r}")
        try:
            compiled = re.compile(rf"(.*\.)?({pattern})$")
        except (re.error, OverflowError, RecursionError) as error:
            raise AdapterError(
                f"{name} has a pattern that is not valid: {pattern[:60]!r} ({error})"
            ) from None
        found.append((compiled, read(f"{name}[{pattern[:60]!r}]", number)))
    return found


def _found(patterns: list[tuple[re.Pattern[str], Number]], module: str, default: Number) -> Number:
    return next((number for pattern, number in patterns if pattern.match(module)), default)


def _targets(value: Any) -> set[str] | None:
    """Return the modules that a list names; a pattern has been matched by who wrote the tensors."""
    if value is None or isinstance(value, str):
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise AdapterError(
            f"target_modules must be a list of names in adapter_config.json, not {value!r:.60}"
        )
    return set(value)


def _layers(value: Any) -> set[int] | None:
    if value is None or value == []:
        return None
    layers = value if isinstance(value, list) else [value]
    if not all(isinstance(layer, int) for layer in layers):
        raise AdapterError(f"layers_to_transform must be integers in adapter_config.json, not {value!r:.60}")
    return set(layers)

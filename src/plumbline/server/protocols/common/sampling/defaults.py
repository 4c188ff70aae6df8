"""Define the sampling values of requests that set none, and read them from a generation config or a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from plumbline.port.engine import SAMPLER_ORDER

__all__ = ["GGUF_KEYS", "Defaults", "defaults_of_config", "defaults_of_gguf", "replaced"]

GGUF_KEYS = "general.sampling."
"""What the keys of a GGUF file with sampling values begin with."""
_OF_GGUF = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "penalty_last_n": "repeat_last_n",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}
"""The fields of requests by the names of llama.cpp."""
_OF_CONFIG = {
    name: name
    for name in (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "typical_p",
        "max_new_tokens",
    )
} | {"max_new_tokens": "max_tokens"}
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (-math.inf, 1e6),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (1e-6, 1.0),
    "repetition_penalty": (1e-6, 1e6),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "mirostat_tau": (0.0, 100.0),
    "mirostat_eta": (0.0, 1.0),
}
_WHOLE: dict[str, tuple[int, int]] = {
    "top_k": (-1, 2**31 - 1),
    "repeat_last_n": (-1, 2**31 - 1),
    "mirostat": (0, 2),
    "max_tokens": (-1, 2**31 - 1),
}
_USUAL = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "max_tokens",
)
_NAMES = {"typ_p": "typ_p", "typical_p": "typ_p", "typical": "typ_p", "temp": "temperature"} | {
    name: name for name in SAMPLER_ORDER
}
"""The names of samplers, which llama.cpp spells in several ways."""


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling values for fields that a request leaves out: the model's own, or OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    max_tokens: int | None = None
    """Most tokens of a chat or Responses answer; None as many as the context holds. The road applies it, because only
    there the length of the prompt is known."""
    samplers: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Further fields of requests by their names, such as `xtc_probability`."""
    vocab_size: int = 0
    """Token ids in requests must be below it."""
    ignored: tuple[str, ...] = ()
    """What the model's file says and cannot be used, in words."""

    @property
    def set_values(self) -> dict[str, Any]:
        """The values that are not OpenAI's, by the names of the fields."""
        neutral = Defaults()
        found = {
            name: getattr(self, name) for name in _USUAL if getattr(self, name) != getattr(neutral, name)
        }
        return {**found, **self.samplers}


def defaults_of_config(config: Mapping[str, Any]) -> Defaults:
    """Read a `generation_config.json`.

    >>> defaults_of_config({"temperature": 0.6, "top_k": 20}).set_values
    {'temperature': 0.6, 'top_k': 20}
    """
    given = {_OF_CONFIG[name]: value for name, value in config.items() if name in _OF_CONFIG}
    if config.get("do_sample") is False:
        given = {name: given[name] for name in ("repetition_penalty", "max_tokens") if name in given}
        given["temperature"] = 0.0
    return _defaults(given, {name: name for name in _OF_CONFIG.values()} | {"max_tokens": "max_new_tokens"})


def defaults_of_gguf(metadata: Mapping[str, Any]) -> Defaults:
    """Read the keys `general.sampling.*` of a GGUF file, as llama.cpp does.

    >>> defaults_of_gguf({"general.sampling.temp": 0.5, "general.sampling.xtc_probability": 0.1}).set_values
    {'temperature': 0.5, 'xtc_probability': 0.1}
    """
    values = {
        key.removeprefix(GGUF_KEYS): value for key, value in metadata.items() if key.startswith(GGUF_KEYS)
    }
    order = values.pop("sequence", None)
    unknown = tuple(f"{GGUF_KEYS}{name} is not known" for name in sorted(values.keys() - _OF_GGUF.keys())[:8])
    given = {_OF_GGUF[name]: _as_written(value) for name, value in values.items() if name in _OF_GGUF}
    keys = {field: GGUF_KEYS + name for name, field in _OF_GGUF.items()}
    found = _defaults(given, keys)
    samplers, ignored = dict(found.samplers), [*found.ignored, *unknown]
    if order is not None:
        names = [name.strip() for name in order.split(";")] if isinstance(order, str) else [repr(order)]
        known = tuple(_NAMES[name] for name in names if name in _NAMES)
        ignored += [f"{GGUF_KEYS}sequence has {name!r:.40}" for name in names if name not in _NAMES][:8]
        if known and not samplers.get("mirostat"):
            samplers["samplers"] = list(dict.fromkeys(known))
    return msgspec.structs.replace(found, samplers=samplers, ignored=tuple(ignored))


def replaced(base: Defaults, given: Mapping[str, Any]) -> Defaults:
    """Return defaults with some replaced by the operator's.

    Raises:
        ValueError: a name is not known, or a value is out of its range.

    >>> replaced(Defaults(top_k=20), {"temperature": 0.7, "typical_p": 0.9}).set_values
    {'temperature': 0.7, 'top_k': 20, 'typical_p': 0.9}
    """
    known = sorted(_RANGES.keys() | _WHOLE.keys())
    if unknown := sorted(given.keys() - set(known)):
        raise ValueError(f"has no {unknown[0]!r:.60}; it has {', '.join(known)}")
    found = _defaults(given, {name: name for name in known})
    if found.ignored:
        raise ValueError(f"cannot be used: {found.ignored[0]}")
    changed = {name: getattr(found, name) for name in _USUAL if name in given}
    kept = {name: value for name, value in base.samplers.items() if name not in given}
    return msgspec.structs.replace(base, **changed, samplers={**kept, **found.samplers})


def _defaults(given: Mapping[str, Any], keys: Mapping[str, str]) -> Defaults:
    """Check values by the names of fields; `keys` are their names in the file."""
    found: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in given.items():
        if value is None:
            continue
        checked = _checked(name, value)
        if checked is None:
            ignored.append(f"{keys[name]} is {value!r:.40}")
        else:
            found[name] = checked
    usual = {name: value for name, value in found.items() if name in _USUAL}
    neutral = {"repeat_last_n": -1, "typical_p": 1.0, "xtc_probability": 0.0, "mirostat": 0}
    samplers = {
        name: value for name, value in found.items() if name not in _USUAL and neutral.get(name) != value
    }
    if usual.get("max_tokens", 1) <= 0:
        del usual["max_tokens"]
    return Defaults(**usual, samplers=samplers, ignored=tuple(ignored))


def _checked(name: str, value: Any) -> float | int | None:
    """Return a value in its type, or None if it cannot be one of the field."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if name in _WHOLE:
        low, high = _WHOLE[name]
        if value != int(value) or not value <= high:
            return None
        whole = max(low, int(value))
        return max(0, whole) if name == "top_k" else whole
    least, most = _RANGES[name]
    if not least <= value <= most:
        return None
    return max(0.0, float(value)) if name == "temperature" else float(value)


def _as_written(value: Any) -> Any:
    """Return a number of 32 bits as its author wrote it: 0.6, and not 0.6000000238418579."""
    return float(f"{value:.7g}") if isinstance(value, float) and math.isfinite(value) else value

"""Read the parameters of llama.cpp that a user may give, and find llama-cpp-python."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

__all__ = ["LlamaCppError", "load_llama", "quiet", "read_options"]

_MISSING = "GGUF files need llama.cpp: install Plumbline with the extra [llama-cpp], or `pip install llama-cpp-python`"
_CACHE_TYPES: Mapping[str, int] = MappingProxyType(
    {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}
)
"""Values of `ggml_type` that a cache of keys and values may have."""
_OURS = frozenset({"n_ctx", "n_batch", "n_seq_max", "kv_unified", "embeddings", "vocab_only", "no_alloc"})
"""Parameters that the engine sets itself."""
_NUMBERS = (ctypes.c_int32, ctypes.c_uint32, ctypes.c_int, ctypes.c_float, ctypes.c_bool)


class LlamaCppError(ValueError):
    """llama.cpp is missing or cannot load the file, or an option is wrong; the message states what to do."""


def load_llama() -> Any:
    """Return the module `llama_cpp`.

    Raises:
        LlamaCppError: it is not installed.
    """
    try:
        return importlib.import_module("llama_cpp")
    except ModuleNotFoundError as error:
        # Another module that is missing is named: the user has installed llama.cpp, but not whole.
        why = "" if error.name == "llama_cpp" else f" ({error})"
        raise LlamaCppError(_MISSING + why) from error
    except ImportError as error:
        raise LlamaCppError(f"llama-cpp-python cannot be imported: {error}") from error


def read_options(given: Sequence[str]) -> dict[str, Any]:
    """Read `KEY=VALUE` texts: numeric parameters of llama.cpp's model and context, and the types of the cache.

    Raises:
        LlamaCppError: llama.cpp has no such parameter, or the value is invalid for it.
    """
    lib = load_llama()
    structs = (lib.llama_model_params, lib.llama_context_params)
    known = {
        name: kind
        for each in structs
        for name, kind in each._fields_
        if kind in _NUMBERS and name not in _OURS
    }
    found: dict[str, Any] = {}
    for item in given:
        name, _, text = item.partition("=")
        if name not in known:
            raise LlamaCppError(
                f"--engine-args {name!r} is not a parameter of llama.cpp; give one of {', '.join(sorted(known))}"
            )
        found[name] = _value(name, text, known[name])
    return found


def _value(name: str, text: str, kind: Any) -> Any:
    if name in ("type_k", "type_v"):
        if text not in _CACHE_TYPES:
            raise LlamaCppError(
                f"--engine-args {name} must be one of {', '.join(_CACHE_TYPES)}, got {text!r}"
            )
        return _CACHE_TYPES[text]
    try:
        if kind is ctypes.c_bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return float(text) if kind is ctypes.c_float else int(text)
    except (KeyError, ValueError):
        wanted = {ctypes.c_bool: "true or false", ctypes.c_float: "a number"}.get(kind, "an integer")
        raise LlamaCppError(f"--engine-args {name} must be {wanted}, got {text!r}") from None


_kept_callbacks: list[Any] = []


def quiet(lib: Any) -> None:
    """Keep llama.cpp from writing to standard error; its failures come back as values."""
    if _kept_callbacks:
        return

    @lib.llama_log_callback  # type: ignore[untyped-decorator]
    def ignore(*_: Any) -> None:
        pass

    _kept_callbacks.append(ignore)
    lib.llama_log_set(ignore, ctypes.c_void_p(0))

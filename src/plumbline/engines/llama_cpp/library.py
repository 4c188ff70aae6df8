"""Call llama.cpp: load a GGUF file, compute batches of several sequences, copy and remove their keys and values.

This is the only module that knows llama-cpp-python. It uses the low-level functions, which mirror `llama.h`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Library", "LlamaCppError", "read_options"]

Status = Literal["done", "no room"]

_MISSING = "GGUF files need llama.cpp: install Plumbline with the extra [llama-cpp], or `pip install llama-cpp-python`"
_CACHE_TYPES: Mapping[str, int] = MappingProxyType(
    {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}
)
"""Values of `ggml_type` that a cache of keys and values may have."""
_OURS = frozenset({"n_ctx", "n_batch", "n_seq_max", "embeddings", "vocab_only", "no_alloc"})
"""Parameters that the engine sets itself."""
_KEPT = 2
"""Sequences for each request that may run: half of them hold what finished requests have computed."""
_NUMBERS = (ctypes.c_int32, ctypes.c_uint32, ctypes.c_int, ctypes.c_float, ctypes.c_bool)


class LlamaCppError(ValueError):
    """llama.cpp is missing or cannot load the file, or an option is wrong; the message states what to do."""


def _llama() -> Any:
    try:
        return importlib.import_module("llama_cpp")
    except ImportError as error:
        raise LlamaCppError(_MISSING) from error


def read_options(given: Sequence[str]) -> dict[str, Any]:
    """Read `KEY=VALUE` texts: numeric parameters of llama.cpp's model and context, and the types of the cache.

    Raises:
        LlamaCppError: llama.cpp has no such parameter, or the value is invalid for it.
    """
    lib = _llama()
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


class Library:
    """A model in llama.cpp with one cache for all sequences. Only one thread may use it.

    Args:
        file: the GGUF file; of a split one the first part.
        num_running: sequences that run at a time. There are twice as many, or one more at least, for what others left.
        max_batch: tokens of a batch at most.
        max_model_len: tokens of a sequence; None takes what the model was trained for, if the cache holds that.
        cache_bytes: keys and values at most, but one sequence of `max_model_len` in any case.
        options: parameters by their name, from `read_options`.
        markers: the added tokens. llama.cpp takes every token that looks like an end for one, such as `</s>` in Qwen's
            vocabulary, where it is text. None takes llama.cpp's.

    Attributes:
        vocab_size: tokens of the model.
        max_model_len: tokens of a sequence.
        num_sequences: how many sequences the cache can hold.
        num_cells: tokens in the cache.
        has_streams: whether each sequence has cells of its own, for `max_model_len` tokens.
        eos_token_ids: tokens that end an answer, of those that `markers` names.
        can_share: whether the beginning of one sequence can be copied to another.

    Raises:
        LlamaCppError: the file cannot be loaded, or its cache needs more memory than is free.
    """

    def __init__(
        self,
        file: Path,
        *,
        num_running: int,
        max_batch: int,
        max_model_len: int | None,
        cache_bytes: int,
        options: Mapping[str, Any],
        markers: frozenset[int] | None = None,
    ) -> None:
        lib = self._lib = _llama()
        _quiet(lib)
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        _set(params, options)
        self._model = lib.llama_model_load_from_file(os.fsencode(file), params)
        if not self._model:
            raise LlamaCppError(
                f"llama.cpp cannot load {file.name}: it is not a GGUF file, or its model is not supported"
            )
        self._check_kind(file.name)
        self._vocab = lib.llama_model_get_vocab(self._model)
        self.vocab_size = int(lib.llama_vocab_n_tokens(self._vocab))
        self.max_batch = max_batch
        self.num_sequences = min(_KEPT * num_running, int(lib.llama_max_parallel_sequences()))
        self.max_model_len = 0
        # A window or a recurrent state forgets, so a beginning cannot be cut out of it.
        self.can_share = not (
            lib.llama_model_is_recurrent(self._model)
            or lib.llama_model_is_hybrid(self._model)
            or lib.llama_model_n_swa(self._model) > 0
        )
        self.has_streams = False
        self._context = self._new_context(num_running, max_model_len, cache_bytes, options)
        self._memory = lib.llama_get_memory(self._context)
        self.num_cells = int(lib.llama_n_ctx(self._context))
        self._batch = lib.llama_batch_init(max_batch, 0, 1)
        tokens = range(self.vocab_size) if markers is None else markers & set(range(self.vocab_size))
        self.eos_token_ids = frozenset(
            token for token in tokens if lib.llama_vocab_is_eog(self._vocab, token)
        )

    def _check_kind(self, name: str) -> None:
        lib, model = self._lib, self._model
        if lib.llama_model_has_encoder(model) or not lib.llama_model_has_decoder(model):
            lib.llama_model_free(model)
            raise LlamaCppError(f"{name} has an encoder; give a model that only continues text")

    def _new_context(
        self, num_running: int, max_model_len: int | None, cache_bytes: int, options: Mapping[str, Any]
    ) -> Any:
        params = self._lib.llama_context_default_params()
        # An engine thread and the event loop share the cores, and llama.cpp's threads spin while they wait.
        threads = max(1, len(os.sched_getaffinity(0)) - 1)
        _set(params, {"n_threads": threads, "n_threads_batch": threads, **options})
        bits = {0: 32, 1: 16, 30: 16, 8: 8.5}
        per_token = self._cache_values() * bits.get(params.type_k, 6) / 8
        trained = int(self._lib.llama_model_n_ctx_train(self._model))
        cells = int(cache_bytes // per_token) if per_token else max_model_len or trained
        self.max_model_len = max_model_len or min(trained, cells)
        streams = self._num_streams(num_running, cells, options.get("kv_unified"))
        if streams:
            self.has_streams, self.num_sequences = True, streams
            params.n_ctx = streams * _padded(self.max_model_len)
        else:
            params.n_ctx = min(max(self.max_model_len, cells), self.max_model_len * self.num_sequences)
        params.n_batch = self.max_batch
        params.n_ubatch = min(params.n_ubatch, self.max_batch)
        params.n_seq_max = self.num_sequences
        params.kv_unified = not streams
        context = self._lib.llama_init_from_model(self._model, params)
        if not context:
            raise LlamaCppError(
                f"llama.cpp has too little memory for a cache of {params.n_ctx} tokens; "
                "give a smaller --max-model-len or --kv-cache-bytes"
            )
        return context

    def _num_streams(self, num_running: int, cells: int, unified: bool | None) -> int:
        """Return how many sequences have cells of their own: 0 if the cache is one pool.

        Attention is cheaper with streams, but each needs room for the longest context.
        """
        if unified or not self.can_share:
            return 0
        most = min(cells // _padded(self.max_model_len), self.num_sequences)
        if most > num_running:
            return most
        if unified is None:
            return 0
        raise LlamaCppError(
            f"kv_unified=false needs {num_running + 1} times {self.max_model_len} tokens, and the cache has {cells}; "
            "give a smaller --max-num-seqs or --max-model-len, or more --kv-cache-bytes"
        )

    def _cache_values(self) -> int:
        """Return how many numbers the keys and values of a token are, by the file's metadata."""
        arch = self.metadata("general.architecture")
        heads = int(self.metadata(f"{arch}.attention.head_count") or 1)
        width = int(self.metadata(f"{arch}.embedding_length") or 0)
        key = int(self.metadata(f"{arch}.attention.key_length") or width // heads)
        value = int(self.metadata(f"{arch}.attention.value_length") or key)
        num_kv_heads = int(self._lib.llama_model_n_head_kv(self._model))
        return int(self._lib.llama_model_n_layer(self._model)) * num_kv_heads * (key + value)

    def metadata(self, key: str) -> str:
        """Return an entry of the file's metadata, or an empty text."""
        buffer = ctypes.create_string_buffer(1024)
        length = self._lib.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else ""

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Return the tokens of a text.

        Args:
            text: the text.
            special: whether it begins with the sequence start and has special tokens; else their texts are ordinary.
        """
        data = text.encode("utf-8")
        buffer = (ctypes.c_int32 * (len(data) + 8))()
        count = self._lib.llama_tokenize(self._vocab, data, len(data), buffer, len(buffer), special, special)
        return list(buffer[:count])

    def decode(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        wanted: Sequence[bool],
    ) -> Status:
        """Compute a batch; the cache of each token's sequence gets it at its position.

        Args:
            token_ids: at most `max_batch`.
            positions: of each token in its sequence.
            sequences: the sequence of each token.
            wanted: whether its logits are wanted.

        Returns `no room`, and changes nothing, if the cache is full.

        Raises:
            RuntimeError: llama.cpp failed; the cache may hold a part of the batch.
        """
        batch = self._batch
        for i, (token, position, sequence, want) in enumerate(
            zip(token_ids, positions, sequences, wanted, strict=True)
        ):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = want
        batch.n_tokens = len(token_ids)
        status = self._lib.llama_decode(self._context, batch)
        if status == 1:
            return "no room"
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        return "done"

    def logits(self, count: int) -> NDArray[np.float32]:
        """Return the wanted logits [count, vocab_size] of the last batch; the next one overwrites them."""
        pointer = self._lib.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(count, self.vocab_size))

    def copy(self, source: int, target: int, length: int) -> None:
        """Let a sequence have the first `length` tokens of another one, and nothing else."""
        if not self.has_streams:
            self._lib.llama_memory_seq_cp(self._memory, source, target, 0, length)
            return
        # Between streams llama.cpp copies all cells, before the next batch is computed.
        self._lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        self.truncate(target, length)

    def truncate(self, sequence: int, length: int) -> None:
        """Drop the tokens of a sequence from position `length` on."""
        self._lib.llama_memory_seq_rm(self._memory, sequence, length, -1)

    def remove(self, sequence: int) -> None:
        """Drop a sequence from the cache."""
        self._lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def clear(self) -> None:
        """Drop all sequences."""
        self._lib.llama_memory_clear(self._memory, True)

    def close(self) -> None:
        """Free the model and its cache. Idempotent."""
        if self._context is not None:
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = None


def _padded(length: int) -> int:
    """Return the cells that llama.cpp takes for a sequence."""
    return -(-length // 256) * 256


def _set(params: Any, values: Mapping[str, Any]) -> None:
    """Set those values that a struct of parameters has."""
    for name, value in values.items():
        if hasattr(params, name):
            setattr(params, name, value)


_kept_callbacks: list[Any] = []


def _quiet(lib: Any) -> None:
    """Keep llama.cpp from writing to standard error; its failures come back as values."""
    if _kept_callbacks:
        return

    @lib.llama_log_callback  # type: ignore[untyped-decorator]
    def ignore(*_: Any) -> None:
        pass

    _kept_callbacks.append(ignore)
    lib.llama_log_set(ignore, ctypes.c_void_p(0))

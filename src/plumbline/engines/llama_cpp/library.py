"""Call llama.cpp: load a GGUF file, compute batches of several sequences, copy and remove their keys and values.

This is the only module that knows llama-cpp-python. It uses the low-level functions, which mirror `llama.h`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.base.end_tokens import file_ends, is_end_key
from plumbline.base.gguf_file import read_metadata
from plumbline.engines.llama_cpp.moving import cut_cells, state_of
from plumbline.engines.llama_cpp.options import LlamaCppError, load_llama, quiet
from plumbline.engines.llama_cpp.shape import CacheShape, Shapes
from plumbline.engines.llama_cpp.threads import Threads
from plumbline_kernels.cpu.library import usable_cores

__all__ = ["LlamaLibrary"]

Status = Literal["done", "no room"]


class LlamaLibrary:
    """A model in llama.cpp with one cache for all sequences. Only one thread may use it.

    Args:
        file: the GGUF file; of a split one the first part.
        num_running: requests that run at a time.
        max_batch: tokens of a batch at most.
        max_model_len: tokens of a sequence; None takes what the model was trained for, if the cache holds that.
        cache_bytes: keys and values at most, but one sequence of `max_model_len` in any case.
        options: parameters by their name, from `read_options`.

    Attributes:
        vocab_size: tokens of the model.
        max_model_len: tokens of a sequence.
        max_running: requests that run at a time, at most what llama.cpp can do.
        shapes: the shapes that the cache may have.
        shape: the one that it has.
        eos_token_ids: tokens that end an answer, as on all engines. llama.cpp takes every token that looks like an end
            for one, such as `</s>` in Qwen's vocabulary, where it is text.
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
    ) -> None:
        lib = self._lib = load_llama()
        quiet(lib)
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        _set(params, options)
        self._model = lib.llama_model_load_from_file(os.fsencode(file), params)
        if not self._model:
            raise LlamaCppError(
                f"llama.cpp cannot load {file.name}: it is not a GGUF file, or its model is not supported"
            )
        self._check_kind(file.name)
        self.vocab_size = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model)))
        self.max_batch = max_batch
        # A window or a recurrent state forgets, so a beginning cannot be cut out of it.
        self.can_share = not (
            lib.llama_model_is_recurrent(self._model)
            or lib.llama_model_is_hybrid(self._model)
            or lib.llama_model_n_swa(self._model) > 0
        )
        self._params = lib.llama_context_default_params()
        _set(self._params, {"n_threads_batch": usable_cores(), **options})
        # llama.cpp computes single tokens with `n_threads`.
        self._threads = None if "n_threads" in options else Threads(self._params.n_threads_batch)
        self._params.n_batch = max_batch
        self._params.n_ubatch = min(self._params.n_ubatch, max_batch)
        trained, cells = int(lib.llama_model_n_ctx_train(self._model)), self._cells(cache_bytes)
        self.max_model_len = max_model_len or min(trained, cells)
        most = int(lib.llama_max_parallel_sequences())
        self.max_running = min(num_running, most)
        self.shapes = Shapes(
            num_cells=cells,
            max_model_len=self.max_model_len,
            max_running=self.max_running,
            max_sequences=most,
            streams=self.can_share,
        )
        self._context: Any = None
        self._batch = lib.llama_batch_init(max_batch, 0, 1)
        self.shape = self.shapes.first()
        self.reshape(self.shape)
        self.eos_token_ids = file_ends(read_metadata(file, is_end_key))

    def _check_kind(self, name: str) -> None:
        lib, model = self._lib, self._model
        if lib.llama_model_has_encoder(model) or not lib.llama_model_has_decoder(model):
            lib.llama_model_free(model)
            raise LlamaCppError(f"{name} has an encoder; give a model that only continues text")

    def reshape(self, shape: CacheShape) -> None:
        """Divide the cache anew; it is empty then.

        Raises:
            LlamaCppError: the memory does not suffice.
        """
        if self._context is not None:
            self._lib.llama_free(self._context)
        params = self._params
        params.n_ctx, params.n_seq_max = shape.num_cells, shape.num_sequences
        params.kv_unified = not shape.streams
        self._context = self._lib.llama_init_from_model(self._model, params)
        if not self._context:
            self.shapes.num_cells = min(self.shapes.num_cells, self.shape.num_cells)
            raise LlamaCppError(
                f"llama.cpp has too little memory for a cache of {shape.num_cells} tokens; "
                "give a smaller --max-model-len or --kv-cache-bytes"
            )
        self._memory = self._lib.llama_get_memory(self._context)
        self.shape = shape

    def save(self, sequence: int, length: int) -> NDArray[np.uint8] | None:
        """Return the keys and values of a sequence of so many tokens; None if this llama.cpp does not give them."""
        size = self._lib.llama_state_seq_get_size(self._context, sequence)
        state = np.empty(size, np.uint8)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        size = self._lib.llama_state_seq_get_data(self._context, pointer, size, sequence)
        streams = self.shape.num_sequences if self.shape.streams else 1
        return cut_cells(state[:size], streams, sequence if self.shape.streams else 0, length)

    def restore(self, sequence: int, saved: NDArray[np.uint8]) -> bool:
        """Give an empty sequence what `save` has returned; False if it has no room for it."""
        state = state_of(saved, self.shape.num_sequences if self.shape.streams else 1)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        done = self._lib.llama_state_seq_set_data(self._context, pointer, len(state), sequence)
        return int(done) == len(state)

    def _cells(self, cache_bytes: int) -> int:
        """Return how many tokens fit into so many bytes."""
        bits = {0: 32, 1: 16, 30: 16, 8: 8.5}
        per_token = self._cache_values() * bits.get(self._params.type_k, 6) / 8
        return (
            int(cache_bytes // per_token)
            if per_token
            else int(self._lib.llama_model_n_ctx_train(self._model))
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
        if self._threads is not None:
            threads = self._threads.choose(len(token_ids))
            self._lib.llama_set_n_threads(self._context, threads, self._params.n_threads_batch)
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
        if not self.shape.streams:
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
        if self._context:
            self._lib.llama_memory_clear(self._memory, True)
        else:  # The memory did not suffice for another shape.
            self.reshape(self.shape)

    def close(self) -> None:
        """Free the model and its cache. Idempotent."""
        if self._context is not None:
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = None


def _set(params: Any, values: Mapping[str, Any]) -> None:
    """Set those values that a struct of parameters has."""
    for name, value in values.items():
        if hasattr(params, name):
            setattr(params, name, value)

"""Call llama.cpp's tokenizer, of a model or of a vocabulary that is loaded alone."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from plumbline.engines.llama_cpp.options import LlamaCppError, load_llama

__all__ = ["opened", "quiet", "tokenize"]


class Tokenize(Protocol):
    """Encodes a text; with `special` from the sequence start, and with special tokens."""

    def __call__(self, text: str, *, special: bool = False) -> list[int]:
        """Return the tokens."""


@contextmanager
def opened(file: Path) -> Iterator[Tokenize]:
    """Load the vocabulary of a GGUF file, without its weights, until the block ends.

    Raises:
        LlamaCppError: llama.cpp is missing, or cannot load the file.
    """
    lib = load_llama()
    quiet(lib)
    lib.llama_backend_init()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(os.fsencode(file), params)
    if not model:
        raise LlamaCppError(f"llama.cpp cannot load the vocabulary of {file.name}")
    vocab = lib.llama_model_get_vocab(model)

    def encode(text: str, *, special: bool = False) -> list[int]:
        return tokenize(lib, vocab, text, special=special)

    try:
        yield encode
    finally:
        lib.llama_model_free(model)


def tokenize(lib: Any, vocab: Any, text: str, *, special: bool) -> list[int]:
    """Return the tokens of a text.

    Args:
        lib: llama-cpp-python.
        vocab: of a model.
        text: the text.
        special: whether it begins with the sequence start and has special tokens; else their texts are ordinary.
    """
    data = text.encode("utf-8")
    buffer = (ctypes.c_int32 * (len(data) + 8))()
    count = lib.llama_tokenize(vocab, data, len(data), buffer, len(buffer), special, special)
    return list(buffer[:count])


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

"""Encode texts without our tokenizer: by llama.cpp where llama-cpp-python is installed, and by the definition."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex
from support.weights.gguf_vocabularies import encode_byte_level, encode_sentencepiece
from transformers.convert_slow_tokenizer import bytes_to_unicode

from plumbline.answer.text.gguf.splitting import SPLITS

__all__ = ["by_definition", "by_llama_cpp"]

Encode = Callable[[str], list[int]]
_ALPHABET = bytes_to_unicode()


def by_definition(metadata: Mapping[str, Any]) -> Encode | None:
    """Return an encoder of texts without added tokens; None for a kind that has no such encoder here."""
    match metadata["tokenizer.ggml.model"]:
        case "llama":
            return encode_sentencepiece(metadata)
        case "gpt2":
            splitting = SPLITS[metadata.get("tokenizer.ggml.pre", "")]
            compiled = [regex.compile(pattern, regex.V1) for pattern in splitting.patterns]
            encode = encode_byte_level(metadata, _ALPHABET, whole_words=splitting.whole_words)
            return lambda text: encode(_split(compiled, text))
        case _:
            return None


def _split(patterns: list[regex.Pattern[str]], text: str) -> list[str]:
    found = [text]
    for pattern in patterns:
        pieces = []
        for piece in found:
            ends = [0, *(end for match in pattern.finditer(piece) for end in match.span()), len(piece)]
            pieces += [piece[start:end] for start, end in pairwise(ends) if start < end]
        found = pieces
    return found


@contextmanager
def by_llama_cpp(file: Path) -> Iterator[Encode | None]:
    """Yield llama.cpp's encoder of prompts, with the sequence start and added tokens; None if it is not installed."""
    if find_spec("llama_cpp") is None:
        yield None
        return
    import llama_cpp as lib

    @lib.llama_log_callback  # type: ignore[untyped-decorator]
    def ignore(*_: Any) -> None:
        pass

    lib.llama_log_set(ignore, ctypes.c_void_p(0))
    lib.llama_backend_init()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(os.fsencode(file), params)
    vocab = lib.llama_model_get_vocab(model)

    def encode(text: str) -> list[int]:
        data = text.encode("utf-8")
        buffer = (ctypes.c_int32 * (len(data) + 8))()
        return list(buffer[: lib.llama_tokenize(vocab, data, len(data), buffer, len(buffer), True, True)])

    try:
        yield encode
    finally:
        lib.llama_model_free(model)

"""Encode texts and compute logits without our code: by llama.cpp where llama-cpp-python is installed, and exactly."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import regex
import torch
from numpy.typing import NDArray
from support.weights.adapters import merge, write_adapter
from support.weights.gguf_vocabularies import encode_byte_level, encode_sentencepiece
from transformers.convert_slow_tokenizer import bytes_to_unicode

from plumbline.answer.text.gguf.splitting import SPLITS

__all__ = ["ExactLogits", "Logits", "by_definition", "by_llama_cpp", "logits_by_llama_cpp", "logits_in_fp32"]

Encode = Callable[[str], list[int]]
Logits = Callable[[list[int]], NDArray[np.float32]]
_ADAPTER = 0.02
"""Half of what an adapter adds to weights of size 1: more than the rounding of activations changes, but no other model.

Of one size for all models it was 0.04 times the weights of SmolLM2 and 0.25 to 0.7 times those of Qwen2.5.
"""
_ALPHABET = bytes_to_unicode()
_GROUP = 32
"""Inputs of a linear layer that engines round with one scale."""


class ExactLogits:
    """The logits of each token of a text by a model of transformers, in fp32."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._rounds = False
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.register_forward_pre_hook(self._inputs)

    def _inputs(self, _: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        if not self._rounds:
            return inputs
        groups = inputs[0].unflatten(-1, (-1, _GROUP))
        scales = groups.abs().amax(-1, keepdim=True) / 127
        return ((groups / scales.clamp(min=torch.finfo().tiny)).round().mul(scales).flatten(-2),)

    @torch.inference_mode()
    def __call__(self, ids: list[int]) -> NDArray[np.float32]:
        """Return the logits."""
        found: NDArray[np.float32] = self._model(torch.tensor([ids])).logits[0].numpy()
        return found

    def rounded(self, ids: list[int]) -> NDArray[np.float32]:
        """Return the logits if inputs of linear layers are rounded to 8 bits, as engines do that multiply bytes."""
        self._rounds = True
        try:
            return self(ids)
        finally:
            self._rounds = False


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
    with _loaded(file, vocab_only=True) as found:
        if found is None:
            yield None
            return
        lib, model = found
        vocab = lib.llama_model_get_vocab(model)

        def encode(text: str) -> list[int]:
            data = text.encode("utf-8")
            buffer = (ctypes.c_int32 * (len(data) + 8))()
            return list(buffer[: lib.llama_tokenize(vocab, data, len(data), buffer, len(buffer), True, True)])

        yield encode


@contextmanager
def logits_by_llama_cpp(file: Path) -> Iterator[Logits | None]:
    """Yield a function that returns llama.cpp's logits of each token of a text of up to 1,024; None without it."""
    with _loaded(file, vocab_only=False) as found:
        if found is None:
            yield None
            return
        lib, model = found
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 1024
        params.n_threads = params.n_threads_batch = 1  # More wait for each other beside a server.
        context = lib.llama_init_from_model(model, params)
        size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))

        def logits(ids: list[int]) -> NDArray[np.float32]:
            lib.llama_memory_clear(lib.llama_get_memory(context), True)
            batch = lib.llama_batch_init(len(ids), 0, 1)
            batch.n_tokens = len(ids)
            for place, number in enumerate(ids):
                batch.token[place], batch.pos[place], batch.logits[place] = number, place, 1
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            assert lib.llama_decode(context, batch) == 0
            rows = [
                np.ctypeslib.as_array(lib.llama_get_logits_ith(context, place), (size,)).copy()
                for place in range(len(ids))
            ]
            lib.llama_batch_free(batch)
            return np.stack(rows)

        yield logits
        lib.llama_free(context)


@contextmanager
def logits_in_fp32(file: Path, adapter: Path | None = None) -> Iterator[ExactLogits]:
    """Yield the logits of a model by transformers, with dequantised weights.

    Args:
        file: the model.
        adapter: a folder to write a random adapter into, which is merged into the weights.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    # By hand, because `from_pretrained` needs accelerate for files.
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    weights = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    missing = model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    left = [*missing.unexpected_keys, *(name for name in missing.missing_keys if name != "lm_head.weight")]
    assert not left, left

    if adapter is not None:
        targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        merge(model, write_adapter(adapter, model, targets, rank=8, alpha=16, size=_ADAPTER, of_weights=True))

    yield ExactLogits(model)


@contextmanager
def _loaded(file: Path, *, vocab_only: bool) -> Iterator[tuple[Any, Any] | None]:
    """Yield the library and the model of a file; None if llama-cpp-python is not installed."""
    if find_spec("llama_cpp") is None:
        yield None
        return
    import llama_cpp as lib

    @lib.llama_log_callback  # type: ignore[untyped-decorator]
    def ignore(*_: Any) -> None:
        pass

    lib.llama_log_set(ignore, ctypes.c_void_p(0))
    lib.llama_backend_init()
    folder = Path(lib.__file__).with_name("lib")
    for ggml in folder.glob(
        "libggml.so"
    ):  # Builds with a library for each kind of processor load none themselves.
        ctypes.CDLL(str(ggml)).ggml_backend_load_all_from_path(os.fsencode(folder))
    params = lib.llama_model_default_params()
    params.vocab_only = vocab_only
    model = lib.llama_model_load_from_file(os.fsencode(file), params)
    assert model, f"llama.cpp cannot load {file}"
    try:
        yield lib, model
    finally:
        lib.llama_model_free(model)

"""Small trained tokenizers of each kind that models have, as the `tokenizers` library trains and saves them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from plumbline.answer.text.tokenizer import TextTokenizer

__all__ = ["KINDS", "reference", "tokenizer"]

KINDS = ("byte-level", "llama2", "mistral", "gemma", "unigram")

_TEXT = ["hello world, hello there", "the thing is here. the end", "stop it, stop", "ab aab aaab"] * 20
_SPECIAL = ["<unk>", "<s>", "</s>"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@cache
def reference(kind: str) -> Tokenizer:
    """The library's own tokenizer of this kind: GPT-2 and Llama-3 style bytes, or SentencePiece with byte fallback."""
    if kind == "byte-level":
        return _byte_level()
    if kind == "unigram":
        return _unigram()
    return _sentencepiece_bpe(kind)


@cache
def tokenizer(kind: str) -> TextTokenizer:
    """Ours, from the definition that the library saves."""
    definition: dict[str, Any] = json.loads(reference(kind).to_str())
    return TextTokenizer(definition, config={"bos_token": "<s>", "eos_token": "</s>"})


def _byte_level() -> Tokenizer:
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    found.train_from_iterator(_TEXT, trainer)
    return found


def _sentencepiece_bpe(kind: str) -> Tokenizer:
    """Llama 2 prepends the mark of a word with a normaliser, Mistral with the pre-tokenizer, Gemma never."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trained.train_from_iterator(_TEXT, trainers.BpeTrainer(vocab_size=80, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    pieces = [*_SPECIAL, *_BYTES, *sorted(model["vocab"], key=model["vocab"].get)]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    merges = [tuple(merge) for merge in model["merges"]]
    found = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    strip = [decoders.Strip(" ", 1, 0)]
    if kind == "llama2":
        found.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    elif kind == "mistral":
        found.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        found.normalizer = normalizers.Replace(" ", "\u2581")
        strip = []
    found.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    found.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIAL])
    return found


def _unigram() -> Tokenizer:
    words = [
        "\u2581hello",
        "\u2581world",
        "\u2581the",
        "stop",
        "he",
        "ll",
        "o",
        "\u2581",
        "a",
        "b",
        "ab",
        "lo",
    ]
    scores = [(piece, -1.0 - 0.01 * index) for index, piece in enumerate([*_SPECIAL, *words])]
    scores += [(piece, -20.0) for piece in _BYTES]
    found = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    found.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    found.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always", split=True)]
    )
    found.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIAL])
    return found

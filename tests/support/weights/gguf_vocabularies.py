"""Encode texts with the vocabulary of a GGUF file by its definition, step by step: slow, and nothing of ours or theirs.

The pair of neighbours that comes first is merged, until no pair is left. In a SentencePiece vocabulary that is the pair
whose token has the highest score, of several the leftmost one; in a byte-level one it is the pair that the merges name
first. What is no token then is spelled in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

__all__ = ["encode_byte_level", "encode_sentencepiece"]


def encode_sentencepiece(metadata: Mapping[str, Any]) -> Callable[[str], list[int]]:
    """Return the encoder of texts without added tokens."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    kinds = metadata["tokenizer.ggml.token_type"]
    ids = {token: number for number, token in enumerate(tokens) if kinds[number] in (1, 4)}
    bytes_of = {token: number for number, token in enumerate(tokens) if kinds[number] == 6}
    prefix = " " if metadata.get("tokenizer.ggml.add_space_prefix", True) else ""

    def rank(first: str, second: str) -> float | None:
        number = ids.get(first + second)
        return None if number is None else -scores[number]

    def encode(text: str) -> list[int]:
        symbols = _merged(list((prefix + text if text else "").replace(" ", "\u2581")), rank)
        return [
            number
            for symbol in symbols
            for number in (
                [ids[symbol]] if symbol in ids else [bytes_of[f"<0x{byte:02X}>"] for byte in symbol.encode()]
            )
        ]

    return encode


def encode_byte_level(
    metadata: Mapping[str, Any], alphabet: Mapping[int, str], *, whole_words: bool
) -> Callable[[Sequence[str]], list[int]]:
    """Return the encoder of texts that are split into words already.

    Args:
        metadata: of the file.
        alphabet: the character of each byte.
        whole_words: whether a word that is a token is not taken apart.
    """
    ids = {token: number for number, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    ranks = {merge: rank for rank, merge in enumerate(merges)}

    def symbols_of(word: str) -> list[str]:
        # Falcon's vocabulary lacks some control characters: they are left out.
        symbols = [alphabet[byte] for byte in word.encode() if alphabet[byte] in ids]
        if whole_words and "".join(symbols) in ids:
            return ["".join(symbols)]
        return _merged(symbols, lambda first, second: ranks.get((first, second)))

    def encode(words: Sequence[str]) -> list[int]:
        return [ids[symbol] for word in words for symbol in symbols_of(word)]

    return encode


def _merged(symbols: list[str], rank: Callable[[str, str], float | None]) -> list[str]:
    while True:
        ranked = [
            (found, at)
            for at, (first, second) in enumerate(pairwise(symbols))
            if (found := rank(first, second)) is not None
        ]
        if not ranked:
            return symbols
        at = min(ranked)[1]
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]

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


def encode_sentencepiece(metadata: Mapping[str, Any], text: str) -> list[int]:
    """Return the ids of a text without added tokens."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    kinds = metadata["tokenizer.ggml.token_type"]
    ids = {token: number for number, token in enumerate(tokens) if kinds[number] in (1, 4)}
    if metadata.get("tokenizer.ggml.add_space_prefix", True) and text:
        text = " " + text

    def rank(pair: str) -> float | None:
        return -scores[ids[pair]] if pair in ids else None

    symbols = _merged(list(text.replace(" ", "\u2581")), lambda first, second: rank(first + second))
    bytes_of = {token: number for number, token in enumerate(tokens) if kinds[number] == 6}
    return [
        number
        for symbol in symbols
        for number in (
            [ids[symbol]] if symbol in ids else [bytes_of[f"<0x{b:02X}>"] for b in symbol.encode()]
        )
    ]


def encode_byte_level(
    metadata: Mapping[str, Any], words: Sequence[str], alphabet: Mapping[int, str], *, whole_words: bool
) -> list[int]:
    """Return the ids of the words of a text, which are split already.

    Args:
        metadata: of the file.
        words: of the text.
        alphabet: the character of each byte.
        whole_words: whether a word that is a token is not taken apart.
    """
    ids = {token: number for number, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    found: list[int] = []
    for word in words:
        symbols = [alphabet[byte] for byte in word.encode()]
        if not (whole_words and "".join(symbols) in ids):
            symbols = _merged(symbols, lambda first, second: ranks.get((first, second)))
        else:
            symbols = ["".join(symbols)]
        found += [ids[symbol] for symbol in symbols]
    return found


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

"""Look up the bytes of every token of a vocabulary, by the decoder of its `tokenizer.json`."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from typing import Any

__all__ = ["UnsupportedTokenizerError", "byte_table"]

_SEPARATOR = "\0"


class UnsupportedTokenizerError(ValueError):
    """The folder's tokenizer is not supported; the message names what is missing."""


def byte_table(
    vocab: Mapping[str, int], decoder: Any, vocab_size: int, added: Mapping[str, int]
) -> list[bytes]:
    """Return the bytes of every id, by the rule of the tokenizer's decoder.

    Args:
        vocab: the ids of the tokens by their texts.
        decoder: of `tokenizer.json`.
        vocab_size: how many ids there are.
        added: the ids of the added tokens, whose texts are their bytes.

    Raises:
        UnsupportedTokenizerError: the decoder is of another kind.
    """
    table = [b""] * vocab_size
    for token_id, data in zip(vocab.values(), _token_decoder(decoder)([*vocab]), strict=True):
        table[token_id] = data
    for text, token_id in added.items():
        table[token_id] = text.encode()
    return table


def _token_decoder(decoder: Any) -> Callable[[list[str]], list[bytes]]:
    """Return the function that maps the texts of tokens to their bytes.

    All texts are mapped at once: a vocabulary has up to 262,144, and a server starts when it has their bytes.
    """
    kinds = set(_decoder_kinds(decoder))
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return _sentencepiece
    raise UnsupportedTokenizerError(
        f"The tokenizer's decoder {sorted(kinds) or None} is neither byte-level nor of the SentencePiece kind."
    )


def _byte_level(texts: list[str]) -> list[bytes]:
    alphabet = _byte_alphabet()
    by_byte = {byte: char for char, byte in alphabet.items()}
    encoding = codecs.charmap_build("".join(by_byte[byte] for byte in range(256)))

    def to_bytes(text: str) -> bytes:
        try:
            return codecs.charmap_encode(text, "strict", encoding)[0]
        except UnicodeEncodeError:
            return b"".join(bytes([alphabet[char]]) if char in alphabet else char.encode() for char in text)

    try:
        data, _ = codecs.charmap_encode("".join(texts), "strict", encoding)
    except UnicodeEncodeError:  # Some characters are not of the alphabet, most often those of added tokens.
        return [*map(to_bytes, texts)]
    # Each character was one byte.
    return [data[start:end] for start, end in pairwise(accumulate(map(len, texts), initial=0))]


def _decoder_kinds(decoder: Any) -> list[str]:
    if not isinstance(decoder, Mapping):
        return []
    if decoder.get("type") == "Sequence":
        return [kind for part in decoder.get("decoders", []) for kind in _decoder_kinds(part)]
    return [str(decoder.get("type"))]


def _sentencepiece(texts: list[str]) -> list[bytes]:
    # The separator is one that no text has, or texts are mapped one by one.
    found = _SEPARATOR.join(texts).replace("\u2581", " ").encode().split(_SEPARATOR.encode())
    if len(found) != len(texts):
        found = [text.replace("\u2581", " ").encode() for text in texts]
    for index, text in enumerate(texts):
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            found[index] = bytes([int(text[3:5], 16)])
    return found


def _byte_alphabet() -> dict[str, int]:
    """Return the printable character for each byte in byte-level BPE (GPT-2); printable Latin-1 maps to itself."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}

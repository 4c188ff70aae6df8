"""Look up the bytes of every token of a vocabulary, by the decoder of its `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["UnsupportedTokenizerError", "byte_table"]


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
    to_bytes = _token_decoder(decoder)
    table = [b""] * vocab_size
    for text, token_id in vocab.items():
        table[token_id] = to_bytes(text)
    for text, token_id in added.items():
        table[token_id] = text.encode()
    return table


def _token_decoder(decoder: Any) -> Callable[[str], bytes]:
    kinds = set(_decoder_kinds(decoder))
    if "ByteLevel" in kinds:
        return _byte_level_decoder()
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return _sentencepiece_bytes
    raise UnsupportedTokenizerError(
        f"The tokenizer's decoder {sorted(kinds) or None} is neither byte-level nor of the SentencePiece kind."
    )


def _byte_level_decoder() -> Callable[[str], bytes]:
    alphabet = _byte_alphabet()
    # Texts of the alphabet, which are nearly all, become bytes as Latin-1; characters outside of it fail there.
    outside = {byte: "\uffff" for byte in range(256) if chr(byte) not in alphabet}
    to_latin = str.maketrans(outside | {ord(char): chr(byte) for char, byte in alphabet.items()})

    def to_bytes(text: str) -> bytes:
        try:
            return text.translate(to_latin).encode("latin-1")
        except UnicodeEncodeError:
            return b"".join(bytes([alphabet[char]]) if char in alphabet else char.encode() for char in text)

    return to_bytes


def _decoder_kinds(decoder: Any) -> list[str]:
    if not isinstance(decoder, Mapping):
        return []
    if decoder.get("type") == "Sequence":
        return [kind for part in decoder.get("decoders", []) for kind in _decoder_kinds(part)]
    return [str(decoder.get("type"))]


def _sentencepiece_bytes(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """Return the printable character for each byte in byte-level BPE (GPT-2); printable Latin-1 maps to itself."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}

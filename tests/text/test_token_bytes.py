"""Laws of the bytes of tokens: all texts of a vocabulary are mapped at once as each is alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from transformers.convert_slow_tokenizer import bytes_to_unicode

from plumbline.answer.text.token_bytes import byte_table

ALPHABET = {char: bytes([byte]) for byte, char in bytes_to_unicode().items()}
CHARS = st.sampled_from([*ALPHABET, "\0", " ", "\u2581", "\uff5c", "世", "😀", "<0x0A>"])
VOCABULARIES = st.lists(st.lists(CHARS, max_size=8).map("".join), unique=True, max_size=20)


def table(texts: list[str], kind: str) -> list[bytes]:
    # Ids are not in the order of the texts, and some have no token.
    ids = {text: 2 * (len(texts) - number) for number, text in enumerate(texts)}
    found = byte_table(ids, {"type": kind}, 2 * len(texts) + 1, {})
    assert all(not found[number] for number in set(range(len(found))) - {*ids.values()})
    return [found[number] for number in ids.values()]


@given(VOCABULARIES)
def test_byte_level_characters_are_bytes_and_others_are_themselves(texts: list[str]) -> None:
    expected = [b"".join(ALPHABET.get(char, char.encode()) for char in text) for text in texts]
    assert table(texts, "ByteLevel") == expected


@given(VOCABULARIES)
def test_pieces_have_spaces_and_byte_tokens_are_bytes(texts: list[str]) -> None:
    expected = [b"\n" if text == "<0x0A>" else text.replace("\u2581", " ").encode() for text in texts]
    assert table(texts, "Metaspace") == expected

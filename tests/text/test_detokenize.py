"""Tokens to text (SSE-09)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import TOKENIZER
from support.strategies import cuts, texts

from plumbline.answer.text.detokenize import Detokenizer

tokens = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=24)


@given(tokens, st.data())
def test_any_run_of_tokens_is_the_decoding_of_all_of_them(ids: list[int], data: st.DataObject) -> None:
    """SSE-09: U+FFFD only where the bytes are truly invalid, however many tokens come at once."""
    pieces = data.draw(cuts(ids))
    detokenizer = Detokenizer(TOKENIZER.table)
    text = "".join(detokenizer.push(piece) for piece in pieces) + detokenizer.flush()

    assert b"".join(TOKENIZER.table[i] for i in ids).decode("utf-8", "replace") == text


@given(texts, st.data())
def test_any_cutting_of_bytes_gives_whole_characters(text: str, data: st.DataObject) -> None:
    """SSE-09: a character appears with its last byte, never a part of it."""
    table = data.draw(cuts(text.encode()))
    detokenizer = Detokenizer(table)
    seen, bytes_seen = "", b""
    for index, raw in enumerate(table):
        seen += detokenizer.push([index])
        bytes_seen += raw
        assert bytes_seen.decode("utf-8", "ignore") == seen

    assert detokenizer.flush() == ""
    assert seen == text


@given(tokens, st.frozensets(st.integers(0, TOKENIZER.vocab_size - 1)), st.data())
def test_hidden_tokens_have_no_text(ids: list[int], hidden: frozenset[int], data: st.DataObject) -> None:
    pieces = data.draw(cuts(ids))
    detokenizer = Detokenizer(TOKENIZER.table, hidden)
    text = "".join(detokenizer.push(piece) for piece in pieces) + detokenizer.flush()

    assert TOKENIZER.decode([i for i in ids if i not in hidden]) == text


def test_an_unfinished_character_ends_as_one_replacement() -> None:
    detokenizer = Detokenizer([b"\xf0\x9f", b"\x8e"])

    assert (detokenizer.push([0]), detokenizer.push([1]), detokenizer.flush()) == ("", "", "\ufffd")


def test_an_id_outside_the_table_is_an_error() -> None:
    with pytest.raises(IndexError):
        Detokenizer([b"a"]).push([1])

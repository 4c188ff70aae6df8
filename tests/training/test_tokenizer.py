"""The tokenizer: reversible for any text, the same under both pre-tokenizers, words alike everywhere."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from plumbline_training import tokenizer
from plumbline_training.texts import corpus
from plumbline_training.texts.words import Lexicon

SHIPPED = tokenizer.load()
FINE = tokenizer.with_fine_pretokenizer(SHIPPED)


def back(tok: Tokenizer, text: str) -> str:
    return tok.decode(tok.encode(text).ids, skip_special_tokens=False)


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert back(SHIPPED, text) == text


@given(st.text(alphabet=st.sampled_from("aeZ09 _-{}\":,'\n\t.é中🙂sS")))
def test_the_shipped_pre_tokenizer_gives_the_tokens_of_the_one_trained_with(text: str) -> None:
    assert SHIPPED.encode(text).ids == FINE.encode(text).ids


@given(st.text())
def test_both_pre_tokenizers_agree_on_any_text(text: str) -> None:
    assert SHIPPED.encode(text).ids == FINE.encode(text).ids


def test_both_agree_on_the_corpus() -> None:
    lexicon = Lexicon(random.Random(11))
    for _ in range(300):
        sample = corpus.make_sample(lexicon)
        text = corpus.prompt_of(sample) + sample.completion()
        assert SHIPPED.encode(text).ids == FINE.encode(text).ids


@pytest.mark.parametrize(
    "frame", ["{}", " {}", '"{}"', "_{}", "x_{}", "{}.", "({})", "Say {}!", "A{}", "7{}"]
)
def test_a_word_has_the_same_tokens_wherever_it_stands(frame: str) -> None:
    lexicon = Lexicon(random.Random(12))
    for word in lexicon.words(20, 20):
        inside, alone = SHIPPED.encode(frame.format(word)).tokens, SHIPPED.encode(word).tokens
        if frame == "A{}":
            assert inside == ["A", *alone]
        assert any(inside[i : i + len(alone)] == alone for i in range(len(inside))), (frame, word)


def test_capitals_and_digits_stand_alone() -> None:
    assert SHIPPED.encode("HTTP 2026").tokens == ["H", "T", "T", "P", "Ġ", "2", "0", "2", "6"]


def test_marks_are_single_tokens_and_only_those_of_the_chat_are_special() -> None:
    added = SHIPPED.get_added_tokens_decoder()
    special = {t.content for t in added.values() if t.special}
    assert special == {"<|endoftext|>", "<|im_start|>", "<|im_end|>", tokenizer.IMAGE}
    assert {t.content for t in added.values()} - special == set(tokenizer.MARKS)
    for token in added.values():
        assert len(SHIPPED.encode(token.content).ids) == 1
    assert SHIPPED.get_vocab_size() == tokenizer.VOCAB_SIZE

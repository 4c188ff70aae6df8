"""Texts of a turn become the token ids that spell them."""

from __future__ import annotations

import pytest
from support.models import TOKENIZER

from plumbline.answer.road.token_rules import MAX_BANNED_TOKENS, TokenRules
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.answer.turn import TextPrompt, Turn
from plumbline.port.engine import Dry, RefusedRequestError, SamplerChain, SamplingParams


def test_breakers_are_the_tokens_with_their_text_and_the_sequences_that_spell_them() -> None:
    sampling = SamplingParams(chain=SamplerChain(dry=Dry(multiplier=1.0)))
    turn = Turn(prompt=TextPrompt("a"), sampling=sampling, dry_breakers=("e", "qz"))
    rules = TokenRules(TOKENIZER)
    chain = rules.applied(turn).sampling.chain

    assert rules.needed(turn)
    assert chain is not None
    assert chain.dry is not None
    containing = {i for i, b in enumerate(TOKENIZER.table) if b"e" in b and i not in TOKENIZER.special_ids}
    assert chain.dry.breaker_ids == containing
    spelled = {TOKENIZER.decode(ids).strip() for ids in chain.dry.breaker_sequences}
    assert spelled == {"qz"}


def letters(*, drops_x: bool = False) -> TextTokenizer:
    """Return a vocabulary of two letters that has no token for others."""
    model = {
        "type": "Unigram",
        "unk_id": None,
        "vocab": [["a", -1.0], ["b", -2.0], ["▁", -2.0]],
        "byte_fallback": False,
    }
    spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    written = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    dropped = {"type": "Replace", "pattern": {"String": "x"}, "content": ""}
    normalizer = {"type": "Sequence", "normalizers": [written, dropped] if drops_x else [written]}
    whole = {
        "version": "1.0",
        "model": model,
        "added_tokens": [],
        "decoder": spaces,
        "normalizer": normalizer,
    }
    return TextTokenizer({**whole, "pre_tokenizer": None, "post_processor": None})


@pytest.mark.parametrize(
    ("tokenizer", "word"),
    [
        (letters(), "abc"),
        (letters(drops_x=True), "x"),
    ],
)
def test_a_word_that_the_vocabulary_cannot_write_is_refused_by_its_place(
    tokenizer: TextTokenizer, word: str
) -> None:
    turn = Turn(prompt=TextPrompt("a"), sampling=SamplingParams(), bad_words=("a", word))

    with pytest.raises(RefusedRequestError, match=r"bad_words\[1\]") as caught:
        TokenRules(tokenizer).applied(turn)
    assert caught.value.param == "bad_words[1]"


def test_banned_words_have_a_bounded_number_of_tokens() -> None:
    """Each choice sends them to the engine."""
    word = "ab" * (MAX_BANNED_TOKENS // 8)
    rules = TokenRules(letters())
    words = [f"{word}{'a' * number}" for number in range(4)]
    taken = rules.applied(Turn(prompt=TextPrompt("a"), sampling=SamplingParams(), bad_words=tuple(words[:1])))
    assert 0 < sum(map(len, taken.sampling.bad_words)) <= MAX_BANNED_TOKENS
    with pytest.raises(RefusedRequestError, match=str(MAX_BANNED_TOKENS)):
        rules.applied(Turn(prompt=TextPrompt("a"), sampling=SamplingParams(), bad_words=tuple(words)))


def test_a_breaker_that_the_vocabulary_cannot_write_breaks_nothing() -> None:
    sampling = SamplingParams(chain=SamplerChain(dry=Dry(multiplier=1.0)))
    turn = Turn(prompt=TextPrompt("a"), sampling=sampling, dry_breakers=("ab", ":"))
    chain = TokenRules(letters()).applied(turn).sampling.chain

    assert chain is not None
    assert chain.dry is not None
    assert (0, 1) in chain.dry.breaker_sequences


def test_a_turn_without_texts_needs_no_rules() -> None:
    assert not TokenRules(TOKENIZER).needed(Turn(prompt=TextPrompt("a"), sampling=SamplingParams()))

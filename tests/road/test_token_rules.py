"""Texts of a turn become the token ids that spell them."""

from __future__ import annotations

from support.models import TOKENIZER

from plumbline.engines.port import Dry, SamplerChain, SamplingParams
from plumbline.road.token_rules import TokenRules
from plumbline.turn import TextPrompt, Turn


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


def test_a_turn_without_texts_needs_no_rules() -> None:
    assert not TokenRules(TOKENIZER).needed(Turn(prompt=TextPrompt("a"), sampling=SamplingParams()))

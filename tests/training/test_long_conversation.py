"""Laws of long training conversations, and of the attention that reads them."""

import random

import pytest
import torch

from plumbline.pocket import network
from plumbline.pocket.network import Network, PocketShape
from plumbline_training import evaluate, tokenizer, train
from plumbline_training.texts.corpus import prompt_of
from plumbline_training.texts.long_conversation import long_conversation
from plumbline_training.texts.words import Lexicon

TOKENIZER = tokenizer.load()


@pytest.mark.parametrize("tokens", [800, 3_000, 12_000])
@pytest.mark.parametrize("seed", range(4))
def test_a_conversation_has_its_length_and_ends_with_a_target(tokens: int, seed: int) -> None:
    document = long_conversation(Lexicon(random.Random(seed)), TOKENIZER, tokens)
    assert tokens <= len(document.ids) <= tokens + 2_500
    assert len(document.ids) == len(document.weights)
    *_, before, end_of_turn, line_feed = document.weights
    assert before > 0
    assert end_of_turn > 0
    assert line_feed == 0


def test_targets_are_whole_answers() -> None:
    document = long_conversation(Lexicon(random.Random(1)), TOKENIZER, 3_000)
    answers: list[list[int]] = [[]]
    for token, weight in zip(document.ids, document.weights, strict=True):
        if weight:
            answers[-1].append(token)
        elif answers[-1]:
            answers.append([])
    texts = [TOKENIZER.decode(answer, skip_special_tokens=False) for answer in answers if answer]
    assert len(texts) > 5
    assert all(text.endswith("<|im_end|>") and text.count("<|im_end|>") == 1 for text in texts)


def test_a_pool_has_its_share_of_long_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "POOL_TOKENS", 60_000)
    batches = train.make_pool(5, 30, TOKENIZER, long_share=0.5, longest=8_000)
    documents = [document for batch in batches for document in batch]
    long = sum(len(d.ids) for d in documents if d.skill in ("long_talk", "long_tools"))
    assert 0.3 < long / sum(len(d.ids) for d in documents) < 0.8
    assert max(len(d.ids) for d in documents) <= 8_000


def test_long_cases_have_the_length_of_their_row() -> None:
    found = [(row, s) for row, s in evaluate.cases(0, 3, long_count=4) if row.startswith("long_")]
    assert len(found) == 4 * len(evaluate.LONG)
    for row, sample in found:
        wanted = int(row.removeprefix("long_"))
        assert 0.9 * wanted < len(TOKENIZER.encode(prompt_of(sample)).ids) < 1.2 * wanted + 600


def test_attention_without_a_mask_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Network(PocketShape(), dtype=torch.float32)
    ids, wanted = torch.randint(0, 1024, (2, 40)), torch.ones(2, 40, dtype=torch.bool)
    masked = model(ids, wanted)
    monkeypatch.setattr(network, "_LONGEST_MASK", 8)
    torch.testing.assert_close(model(ids, wanted), masked, rtol=1e-4, atol=1e-4)

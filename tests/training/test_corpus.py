"""Laws of the data generator: seeded, disjoint splits, documents in the chat template."""

import json
import random

import pytest

from plumbline_training import evaluate, tokenizer, train
from plumbline_training.texts import corpus
from plumbline_training.texts import tool_texts as tools
from plumbline_training.texts.sample import Sample
from plumbline_training.texts.skills import SKILLS
from plumbline_training.texts.words import Lexicon, side


def texts(seed: int, count: int, split: str = "train") -> list[str]:
    lexicon = Lexicon(random.Random(seed), "train" if split == "train" else "eval")
    samples = [corpus.make_sample(lexicon) for _ in range(count)]
    return [corpus.prompt_of(s) + s.completion() for s in samples]


def test_the_seed_alone_decides() -> None:
    assert texts(3, 200) == texts(3, 200)
    assert texts(3, 200) != texts(4, 200)


def test_pools_are_the_same_whenever_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "POOL_TOKENS", 4000)
    tok = tokenizer.load()
    for index in (0, 30):
        assert train.make_pool(5, index, tok) == train.make_pool(5, index, tok)


def test_the_sides_have_no_word_name_or_value_in_common() -> None:
    seen: dict[str, set[str]] = {}
    for split in ("train", "eval"):
        lexicon = Lexicon(random.Random(1), "train" if split == "train" else "eval")
        found = set(lexicon.nouns + lexicon.adjectives + lexicon.names + lexicon.cities)
        for _ in range(500):
            found |= {lexicon.word(), lexicon.digits(1, 5), f"{lexicon.pair('+', 0, 99)}", lexicon.name()}
        seen[split] = found
    assert not seen["train"] & seen["eval"]


def test_tool_and_parameter_names_keep_to_their_side() -> None:
    for split in ("train", "eval"):
        lexicon = Lexicon(random.Random(2), "train" if split == "train" else "eval")
        for _ in range(200):
            tool = tools.invented(lexicon)
            assert all(side(name) == split for name in tool.params)
    lexicon = Lexicon(random.Random(2), "eval")
    held_out = {tools.invented(lexicon).name for _ in range(300)}
    lexicon = Lexicon(random.Random(2), "train")
    assert not held_out & {tools.make_tool(lexicon).name for _ in range(2000)}


@pytest.mark.parametrize("skill", list(SKILLS))
def test_every_skill_makes_whole_turns_on_both_sides(skill: str) -> None:
    for split in ("train", "eval"):
        lexicon = Lexicon(random.Random(6), "train" if split == "train" else "eval")
        for _ in range(50):
            turn = SKILLS[skill][0](lexicon)
            assert turn.user
            assert turn.answer
            assert turn.thought


def test_sums_are_right() -> None:
    lexicon = Lexicon(random.Random(8))
    for _ in range(200):
        for skill in ("add", "subtract"):
            turn = SKILLS[skill][0](lexicon)
            assert turn.thought.endswith(f"= {turn.answer}.")
            left, sign, right = turn.thought.rsplit(". ", 1)[1].split(" = ")[0].split(" ")
            assert int(turn.answer) == (int(left) + int(right) if sign == "+" else int(left) - int(right))


def test_calls_fit_their_schemas() -> None:
    lexicon = Lexicon(random.Random(9))
    names = {"string": str, "integer": int, "number": float, "boolean": bool}
    for _ in range(300):
        sample = corpus.tool_call(lexicon)
        (call,) = sample.calls
        (schema,) = [t["function"] for t in sample.tools if t["function"]["name"] == call.name]
        parameters = schema["parameters"]
        assert set(parameters.get("required", [])) <= set(call.arguments)
        for key, value in call.arguments.items():
            assert type(value) is names[parameters["properties"][key]["type"]]
            assert value in parameters["properties"][key].get("enum", [value])


def test_the_judge_passes_the_right_reply_and_no_other() -> None:
    for row, sample in evaluate.cases(5, 3):
        text = sample.completion()
        text = text if sample.thinking else "" + text
        verdict = evaluate.judge(row, sample, evaluate.take_apart(text + "<|im_end|>"))
        assert all(verdict.values()), (row, verdict, text)
        wrong = Sample(sample.skill, [], "certainly not this", thinking=not sample.thinking, thought="x")
        if row != "no_tool":
            verdict = evaluate.judge(row, sample, evaluate.take_apart(wrong.completion() + "<|im_end|>"))
            assert not any(verdict.values()), (row, verdict)


def test_documents_weigh_the_reply_most() -> None:
    lexicon = Lexicon(random.Random(10))
    renderer = corpus.DocumentWriter(tokenizer.load())
    for _ in range(50):
        sample = corpus.make_sample(lexicon)
        document = renderer.document(sample)
        assert len(document.ids) == len(document.weights)
        reply = [i for i, w in zip(document.ids, document.weights, strict=True) if w >= 1]
        assert (
            renderer.tokenizer.decode(reply, skip_special_tokens=False) == sample.completion() + "<|im_end|>"
        )
        for call in sample.calls:
            assert json.loads(call.text()) == {"name": call.name, "arguments": call.arguments}

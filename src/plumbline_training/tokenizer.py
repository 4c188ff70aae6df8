"""Train the byte-level BPE tokenizer and write its files.

The merges are learned inside classes of characters: runs of lower-case letters, single capitals, single
digits, punctuation, spaces. No merge joins a space with a word, so a word has the same tokens wherever it
stands, which makes copying easy for a small model. The files name the Qwen2 pre-tokenizer, under which these
merges give the same tokens.
"""

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from plumbline.pocket import MODEL_DIR, QWEN2_SPLIT
from plumbline_training.texts.corpus import make_sample, prompt_of
from plumbline_training.texts.words import Lexicon

CLASS_SPLIT = r"[a-z]+|[A-Z]|[0-9]| ?[!-/:-@\[-`{-~]+|[\r\n]+| +|[^\x00-\x7f]"
VOCAB_SIZE = 1024
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
IMAGE, UNUSED_BYTE = "<|image|>", "ÿ"
"""The mark of a picture takes the token of the byte FF, which no text in UTF-8 has: the vocabulary stays as it is."""
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def _pre_tokenizer(fine: bool) -> pre_tokenizers.PreTokenizer:
    steps: list[Any] = [pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated")]
    if fine:
        steps.append(pre_tokenizers.Split(Regex(CLASS_SPLIT), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)


def added_tokens() -> list[AddedToken]:
    special = [AddedToken(t, special=True, normalized=False) for t in (END_OF_TEXT, IM_START, IM_END)]
    return special + [AddedToken(t, special=False, normalized=False) for t in MARKS]


def corpus(seed: int, count: int) -> Iterator[str]:
    """Yield text to learn merges from: prompts and replies of the mixture, without the markers of the format."""
    lexicon = Lexicon(random.Random(seed))
    marks = "|".join(re.escape(mark) for mark in (END_OF_TEXT, IM_START, IM_END, *MARKS))
    for _ in range(count):
        sample = make_sample(lexicon)
        yield from re.split(marks, prompt_of(sample) + sample.completion())


def with_fine_pretokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Return the same merges under the finer pre-tokenizer that they were learned with."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.pre_tokenizer = _pre_tokenizer(fine=True)
    return copy


def with_image_mark(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer with the mark of a picture, a control token."""
    definition = json.loads(tokenizer.to_str())
    vocabulary = definition["model"]["vocab"]
    number = vocabulary.pop(UNUSED_BYTE)
    vocabulary[IMAGE] = number
    definition["model"]["vocab"] = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    mark = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    definition["added_tokens"].insert(0, {"id": number, "content": IMAGE, **mark, "special": True})
    return Tokenizer.from_str(json.dumps(definition))


def train(seed: int = 1, count: int = 20_000) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer(fine=True)
    tokenizer.decoder = decoders.ByteLevel()
    added = added_tokens()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(added),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(seed, count), trainer)
    tokenizer.pre_tokenizer = _pre_tokenizer(fine=False)
    tokenizer.add_tokens(added)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise RuntimeError("the text holds too few distinct pairs for this vocabulary")
    return with_image_mark(tokenizer)


def save(tokenizer: Tokenizer, folder: Path = MODEL_DIR) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "additional_special_tokens": [IM_START, IM_END, IMAGE],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": IM_END,
        "errors": "replace",
        "model_max_length": 24576,
        "pad_token": END_OF_TEXT,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def letter_runs(tokenizer: Tokenizer) -> list[str]:
    """Return the pieces of words in the vocabulary: tokens of two or more lower-case letters."""
    return sorted(t for t in tokenizer.get_vocab() if re.fullmatch(r"[a-z]{2,}", t))


def image_token(tokenizer: Tokenizer) -> int:
    """Return the token of the mark of a picture.

    Raises:
        ValueError: the tokenizer has no such mark.
    """
    found: int | None = tokenizer.token_to_id(IMAGE)
    if found is None:
        raise ValueError(
            f"the tokenizer has no {IMAGE}; make it with `python -m plumbline_training tokenizer`"
        )
    return found


def load(folder: Path = MODEL_DIR) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m plumbline_training tokenizer", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=20_000)
    args = parser.parse_args(argv)
    save(train(args.seed, args.samples))


if __name__ == "__main__":
    main()

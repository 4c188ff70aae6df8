"""Build the tokenizer of a scripted checkpoint: byte-level BPE over its answers.

Merges are learned from ASCII text only. Other characters are one token per byte, so that servers get emoji and accents
in pieces. Words are long tokens, so that stop strings and markup end inside a token.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from plumbline.pocket import QWEN2_SPLIT
from plumbline_conformance.exact.scripts import CONTROL, ScriptSet

__all__ = ["END_OF_TEXT", "IM_END", "build", "id_of", "save"]

END_OF_TEXT, _, IM_END = CONTROL

_VOCAB_SIZE = 448
"""The number of byte tokens and merges, without added tokens."""


def build(scripts: ScriptSet) -> Tokenizer:
    """Build a tokenizer that decodes every answer to itself. The same scripts give the same tokenizer."""
    split = pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    added = [AddedToken(text, special=True, normalized=False) for text in (*CONTROL, *scripts.special)]
    added += [AddedToken(text, special=False, normalized=False) for text in scripts.markers]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    markers = "|".join(re.escape(text) for text in (*CONTROL, *scripts.special, *scripts.markers))
    texts = [text for script in scripts.scripts for text in (script.prompt, script.output)]
    ascii_runs = [run for text in texts for run in re.split(f"{markers}|[^\\x00-\\x7f]", text)]
    tokenizer.train_from_iterator(["user\nassistant\n", *ascii_runs], trainer)
    tokenizer.add_tokens(added)
    return tokenizer


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token that `build` has added."""
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        raise KeyError(token)
    return found


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": IM_END,
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": END_OF_TEXT,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    template = Path(__file__).with_name("chat_template.jinja").read_text("utf-8")
    (folder / "chat_template.jinja").write_text(template, "utf-8")

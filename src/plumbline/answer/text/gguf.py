"""Write the tokenizer and the chat template of a GGUF file as a model folder.

transformers builds the tokenizer from the file's metadata (`tokenizer.ggml.*`). Added tokens, the sequence start and
the space before the first word are then written as the metadata has them, because transformers takes some of them from
the class of tokenizer instead. The engine that runs the file compares the result with its own tokens before it serves
(`disagreement`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from plumbline.answer.text.tokenizer import TextTokenizer, UnsupportedTokenizerError
from plumbline.base.end_tokens import file_ends, is_end_key
from plumbline.base.gguf_file import GgufError, read_metadata

__all__ = ["disagreement", "uncompared", "write_text_folder"]

SAMPLES: tuple[str, ...] = (
    "Hello, world! How are you today?",
    "I've, you'll, don't; THEY'RE (he'd) she's",
    "The 7 dwarfs paid 1234567890 coins, 3.14159 each - 50% more than in 1999.",
    " leading,  two   three    spaces and trailing  ",
    "tabs\tand\n\nnew\r\nlines \n indented\n    four\n\t\ttwice",
    "def f(x: int) -> dict[str, int]:\n    return {'a': x ** 2, \"b\": x // 3}  # done\n",
    '{"name": "get_weather", "arguments": {"city": "São Paulo", "days": [1, 2, 3], "ok": true}}',
    "Grüße aus Köln, naïve café, Übermut, smørrebrød, żółć",
    "Привет, как дела? Всё хорошо.",
    "你好,世界。今天天气怎么样?日本語のテキストです。한국어 문장",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
    "🙂👩‍👩‍👧‍👦🇩🇪 ±∞≠€ “quotes” — dash… ½ ² ﬁ",
    "https://example.org/a/b?c=d&e=%20f#g user@example.org snake_case camelCase SCREAMING",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!!!!!!!!????",
)
_MARKERS = 512
"""Added tokens that are compared, at most."""
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
"""Values of `tokenizer.ggml.token_type`."""
_STARTED = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"})
"""Byte-level vocabularies, by `tokenizer.ggml.pre`, that begin with a sequence start by default."""
_KEEP_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""The tokens of Phi-3 that do not swallow the white space after them. No key of a file records this."""

_COMPARED = _STARTED | frozenset({"gpt-2", "qwen2", "qwen35"})
"""Byte-level vocabularies, by `tokenizer.ggml.pre`, whose tokens were those of llama.cpp when they were compared."""


def uncompared(file: Path) -> str | None:
    """Return the kind of a file's vocabulary if it is not one whose tokens agreed with llama.cpp's, or None.

    Raises:
        UnsupportedTokenizerError: the file cannot be read.
    """
    try:
        found = read_metadata(file, lambda key: key in ("tokenizer.ggml.model", "tokenizer.ggml.pre"))
    except GgufError as error:
        raise UnsupportedTokenizerError(f"{file.name} cannot be read: {error}") from error
    model, pre = (found.get(f"tokenizer.ggml.{name}", "") for name in ("model", "pre"))
    # SentencePiece has one way to split texts.
    agreed = model == "llama" or (model == "gpt2" and pre in _COMPARED)
    return None if agreed else f"{model}, {pre}"


def write_text_folder(file: Path, folder: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and the chat template of a GGUF file into a folder.

    Raises:
        UnsupportedTokenizerError: transformers knows no such tokenizer; the message has the reason.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        facts = _Facts(read_metadata(file, _Facts.needs))
        found = PreTrainedTokenizerFast.from_pretrained(str(file.parent), gguf_file=file.name)
    except GgufError as error:
        raise UnsupportedTokenizerError(f"{file.name} cannot be read: {error}") from error
    except Exception as error:  # A broken file fails in many ways.
        raise UnsupportedTokenizerError(
            f"transformers cannot build the tokenizer of {file.name}: {error}"
        ) from error
    found.save_pretrained(str(folder))
    _rewrite(folder / "tokenizer.json", facts.correct_tokenizer)
    _rewrite(folder / "tokenizer_config.json", facts.correct_config)


def disagreement(
    tokenizer: TextTokenizer,
    tokenize: Callable[[str], list[int]],
    tokenize_prompt: Callable[[str], list[int]],
) -> str | None:
    """Return a text that two tokenizers encode differently, or None.

    Args:
        tokenizer: ours.
        tokenize: the engine's, without special tokens.
        tokenize_prompt: the engine's with the sequence start, where texts of special tokens are special tokens.
    """
    for text in SAMPLES:
        if tokenizer.encode_text(text) != tokenize(text):
            return text
    prompts = (f"x{marker}\ny" for marker in islice(tokenizer.added, _MARKERS))
    return next((text for text in prompts if tokenizer.encode_prompt(text) != tokenize_prompt(text)), None)


class _Facts:
    """The facts in the metadata of a file about its tokens."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._tokens: list[str] = self._get("tokens", [])
        self._architecture = metadata.get("general.architecture", "")
        self._model = self._get("model", "")

    @staticmethod
    def needs(key: str) -> bool:
        """Whether the value of a key is used here."""
        return (
            key == "general.architecture"
            or is_end_key(key)
            or (key.startswith("tokenizer.ggml.") and key.rpartition(".")[2] not in ("merges", "scores"))
        )

    def correct_tokenizer(self, definition: dict[str, Any]) -> dict[str, Any]:
        """Return the content of `tokenizer.json` with the file's added tokens and sequence start."""
        definition = self._without_unused(self._renamed(definition))
        ids = _ids(definition["model"]["vocab"])
        definition["added_tokens"] = [
            self._entry(number, special)
            for number, special in sorted(self._added().items())
            if ids.get(self._tokens[number]) == number
        ]
        before = ["bos"] if self._adds_bos() else []
        after = ["eos"] if self._get("add_eos_token", False) else []
        definition["post_processor"] = self._sets_around(before, after)
        if (
            self._model == "llama"
            and self._get("add_space_prefix", True)
            and "gemma" not in self._architecture
        ):
            # SentencePiece sets a space before the text also if the text begins with one.
            steps = [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ]
            definition |= {"normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None}
        return definition

    def correct_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the content of `tokenizer_config.json` with the texts of the file's special tokens."""
        texts = {"bos_token": self._text("bos_token_id"), "eos_token": self._text("eos_token_id")}
        return config | {name: text for name, text in texts.items() if text is not None}

    def _without_unused(self, definition: dict[str, Any]) -> dict[str, Any]:
        """Leave out the texts of ids between the vocabulary and the matrix, such as `[PAD151665]`: they are no text."""
        model, kinds = definition["model"], self._get("token_type", [])
        if not isinstance(model["vocab"], dict):
            return definition
        unused = {number for number, kind in enumerate(kinds) if kind == _UNUSED} - self._added().keys()
        vocab = {text: number for text, number in model["vocab"].items() if number not in unused}
        return {**definition, "model": {**model, "vocab": vocab}}

    def _get(self, name: str, default: Any) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{name}", default)

    def _text(self, name: str) -> str | None:
        """Return the text of a token by the key of its id."""
        number = self._get(name, None)
        return self._tokens[number] if isinstance(number, int) and 0 <= number < len(self._tokens) else None

    def _sets_around(self, before: list[str], after: list[str]) -> dict[str, Any] | None:
        """Return the post-processor that sets the tokens of these keys before and after each text."""
        texts = {name: self._text(f"{name}_token_id") for name in (*before, *after)}
        numbers = {
            text: int(self._get(f"{name}_token_id", 0)) for name, text in texts.items() if text is not None
        }
        first, last = (
            [
                {"SpecialToken": {"id": text, "type_id": 0}}
                for name in names
                if (text := texts[name]) is not None
            ]
            for names in (before, after)
        )
        a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
        special = {text: {"id": text, "ids": [number], "tokens": [text]} for text, number in numbers.items()}
        if not special:
            return None
        return {
            "type": "TemplateProcessing",
            "single": [*first, a, *last],
            "pair": [*first, a, *last, *first, b, *last],
            "special_tokens": special,
        }

    def _adds_bos(self) -> bool:
        default = self._model == "llama" or self._get("pre", "") in _STARTED
        return bool(self._get("add_bos_token", default))

    def _added(self) -> dict[int, bool]:
        """Return the added tokens by id, and whether they are control tokens."""
        kinds = self._get("token_type", [])
        found = {
            number: kind == _CONTROL
            for number, kind in enumerate(kinds[: len(self._tokens)])
            if kind in (_CONTROL, _USER_DEFINED)
        }
        if self._text("bos_token_id") is not None:
            found[self._get("bos_token_id", 0)] = True
        found |= dict.fromkeys(file_ends(self._metadata), True)
        unknown = self._get("unknown_token_id", 0)
        if unknown < len(kinds) and kinds[unknown] == _UNKNOWN:
            found[unknown] = True
        return {number: special for number, special in found.items() if self._tokens[number]}

    def _entry(self, number: int, special: bool) -> dict[str, Any]:
        text = self._tokens[number]
        swallows = self._architecture == "phi3" and text not in _KEEP_SPACE
        flags = {"single_word": False, "lstrip": False, "rstrip": swallows, "normalized": False}
        return {"id": number, "content": text, **flags, "special": special}

    def _renamed(self, definition: dict[str, Any]) -> dict[str, Any]:
        """Give added tokens their own texts in the vocabulary, where transformers has spelled them as bytes."""
        model = definition["model"]
        vocab = model["vocab"]
        if not isinstance(vocab, dict):
            return definition
        spelled = {number: text for text, number in vocab.items()}
        changed = {
            spelled[number]: number
            for number in self._added()
            if spelled.get(number) not in (None, self._tokens[number]) and self._tokens[number] not in vocab
        }
        if not changed:
            return definition
        renamed = {text: number for text, number in vocab.items() if text not in changed}
        renamed |= {self._tokens[number]: number for number in changed.values()}
        merges = [merge for merge in model.get("merges", []) if not changed.keys() & {*merge, "".join(merge)}]
        return {**definition, "model": {**model, "vocab": renamed, "merges": merges}}


def _ids(vocab: Any) -> dict[str, int]:
    """Return the ids of a vocabulary, which is a mapping or, in Unigram models, a list."""
    return vocab if isinstance(vocab, dict) else {entry[0]: number for number, entry in enumerate(vocab)}


def _rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    content = change(json.loads(path.read_text("utf-8")))
    path.write_text(json.dumps(content, ensure_ascii=False), "utf-8")

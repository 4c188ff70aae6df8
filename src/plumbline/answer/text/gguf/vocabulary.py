"""Build the tokenizer of a GGUF file from its metadata (`tokenizer.ggml.*`).

Two kinds of vocabularies are read. Byte-level ones (`gpt2`) have their merges in the file, and `tokenizer.ggml.pre`
says how a text is split before (`splitting`). SentencePiece ones (`llama`) have scores (`merges`). Gemma 4's (`gemma4`)
has merges and tokens of text. The tokens of a text are those of llama.cpp; other kinds are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers.models import BPE

from plumbline.answer.text.gguf.merges import merges_of
from plumbline.answer.text.gguf.splitting import SPLITS, Splitting
from plumbline.answer.text.token_bytes import byte_table
from plumbline.answer.text.tokenizer import TextTokenizer, UnsupportedTokenizerError
from plumbline.base.end_tokens import file_ends, is_end_key
from plumbline.base.gguf_file import GgufError, read_metadata
from plumbline.base.workers.panics import panics

__all__ = ["FileTokens", "read_tokenizer", "read_tokens"]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
"""Values of `tokenizer.ggml.token_type`."""
_KEEP_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""The tokens of Phi-3 that do not swallow the white space after them. No key of a file records this."""
_SPACE = "\u2581"
_TEMPLATE = "tokenizer.chat_template"
_OF_ENCODING = frozenset({"tokenizer.ggml.merges", "tokenizer.ggml.scores"})
"""Keys that only encoding needs."""
_TO_SPACES: Mapping[str, Any] = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
_FROM_SPACES: Mapping[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
_BYTE_LEVEL: Mapping[str, Any] = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": False,
    "use_regex": False,
}


def read_tokenizer(file: Path, folder: Path | None = None) -> TextTokenizer:
    """Return the tokenizer of a GGUF file.

    Args:
        file: the file.
        folder: takes its chat templates and named tokens, as the files of a model folder.

    Raises:
        UnsupportedTokenizerError: the file cannot be read, or has a kind of vocabulary that is not supported.
    """
    with _explained(file):
        facts = _Facts(read_metadata(file, _Facts.needs))
        with panics(UnsupportedTokenizerError, f"the vocabulary of {file.name} cannot be used"):
            found = TextTokenizer(facts.definition(), config=facts.config(), model=facts.model())
    if folder is not None:
        config = json.dumps(facts.config() | facts.templates(), ensure_ascii=False)
        (folder / "tokenizer_config.json").write_text(config, "utf-8")
    return found


def read_tokens(file: Path) -> FileTokens:
    """Return the tokens of a GGUF file, without building its tokenizer.

    Raises:
        UnsupportedTokenizerError: as `read_tokenizer`.
    """
    with _explained(file):
        facts = _Facts(read_metadata(file, lambda key: _Facts.needs(key) and key not in _OF_ENCODING))
        return FileTokens(file, facts.table(), facts.added(), facts.special_ids())


class FileTokens:
    """The tokens of a GGUF file. Its tokenizer, which takes most of the time, is built when it encodes a first text.

    The attributes are those of `TextTokenizer`.
    """

    def __init__(
        self, file: Path, table: list[bytes], added: dict[str, int], special_ids: frozenset[int]
    ) -> None:
        self._file = file
        self.table = table
        self.added = added
        self.special_ids = special_ids

    def encode_generated(self, text: str) -> list[int]:
        """See `TextTokenizer.encode_generated`."""
        return self._tokenizer.encode_generated(text)

    def encode_rendered(self, rendered: str) -> list[int]:
        """See `TextTokenizer.encode_rendered`."""
        return self._tokenizer.encode_rendered(rendered)

    def encode_prompt(self, text: str) -> list[int]:
        """See `TextTokenizer.encode_prompt`."""
        return self._tokenizer.encode_prompt(text)

    @cached_property
    def _tokenizer(self) -> TextTokenizer:
        return read_tokenizer(self._file)


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Raise each error inside as an `UnsupportedTokenizerError` that names the file."""
    try:
        yield
    except GgufError as error:
        raise UnsupportedTokenizerError(f"{file.name} cannot be read: {error}") from error
    except UnsupportedTokenizerError as error:
        raise UnsupportedTokenizerError(f"{file.name}: {error}") from error
    except Exception as error:  # A broken file fails in many ways, and the library raises no narrower type.
        reason = str(error).partition("\n")[0][:200]
        raise UnsupportedTokenizerError(
            f"the vocabulary of {file.name} cannot be used: {type(error).__name__}: {reason}"
        ) from error


class _Facts:
    """The facts in the metadata of a file about its tokens."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._tokens: list[str] = self._get("tokens", [])
        kinds: list[int] = self._get("token_type", [])
        missing = len(self._tokens) - len(kinds)
        self._kinds = [*kinds, *[_NORMAL] * missing] if missing > 0 else kinds[: len(self._tokens)]
        self._kind = str(self._get("model", ""))

    @staticmethod
    def needs(key: str) -> bool:
        """Whether the value of a key is used here."""
        return (
            key in ("general.architecture", "general.name")
            or is_end_key(key)
            or key.startswith("tokenizer.ggml.")
        )

    def model(self) -> BPE:
        """Return the vocabulary with its merges."""
        splitting, vocab = self._splitting, self._vocab
        merges = self._merges() if self._kind != "llama" else self._pairs(vocab)
        unknown = self._text("unknown_token_id")
        return BPE(
            vocab,
            merges,
            unk_token=unknown if unknown in vocab and not splitting.as_bytes else None,
            byte_fallback=not splitting.as_bytes,
            ignore_merges=splitting.whole_words,
        )

    def definition(self) -> dict[str, Any]:
        """Return what `tokenizer.json` has, of the model the vocabulary alone."""
        return {
            "model": {"vocab": self._vocab},
            "added_tokens": [self._entry(number, special) for number, special in sorted(self._added.items())],
            **(self._byte_level() if self._splitting.as_bytes else self._of_text()),
            "post_processor": self._sets_around(
                ["bos"] if self._adds_bos() else [], ["eos"] if self._get("add_eos_token", False) else []
            ),
        }

    def table(self) -> list[bytes]:
        """Return the bytes of each id."""
        size = max((*self._vocab.values(), *self._added), default=-1) + 1
        decoder = (self._byte_level() if self._splitting.as_bytes else self._of_text())["decoder"]
        return byte_table(self._vocab, decoder, size, self.added())

    def added(self) -> dict[str, int]:
        """Return the ids of the added tokens by their texts."""
        return {self._tokens[number]: number for number in sorted(self._added)}

    def special_ids(self) -> frozenset[int]:
        """Return the ids of control tokens."""
        named = set(self.config().values())
        return frozenset(
            number for number, special in self._added.items() if special or self._tokens[number] in named
        )

    def config(self) -> dict[str, Any]:
        """Return the texts of the named tokens, as `tokenizer_config.json` has them."""
        ids = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        found = {f"{name}_token": self._id(f"{key}_token_id") for name, key in ids.items()}
        return {name: self._tokens[number] for name, number in found.items() if number in self._added}

    def templates(self) -> dict[str, Any]:
        """Return the chat templates, as `tokenizer_config.json` has them."""
        found = {
            key.removeprefix(_TEMPLATE).removeprefix(".") or "default": value
            for key, value in self._metadata.items()
            if (key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")) and isinstance(value, str)
        }
        if found.keys() <= {"default"}:
            return {"chat_template": found["default"]} if found else {}
        return {"chat_template": [{"name": name, "template": source} for name, source in found.items()]}

    @cached_property
    def _vocab(self) -> dict[str, int]:
        """The ids of the tokens by their texts, without ids that are not used.

        Raises:
            UnsupportedTokenizerError: two tokens have the same text.
        """
        texts = self._tokens.copy()
        for number, kind in self._marked:
            if kind == _UNUSED and number not in self._added:
                texts[number] = ""
        vocab = dict(zip(texts, range(len(texts)), strict=True))
        if len(vocab) - ("" in vocab) != len(texts) - texts.count(""):
            raise UnsupportedTokenizerError("two of its tokens have the same text")
        vocab.pop("", None)
        return vocab

    @cached_property
    def _splitting(self) -> Splitting:
        """How a text is split.

        Raises:
            UnsupportedTokenizerError: the kind of vocabulary or of splitting is not known.
        """
        if not self._tokens:
            raise UnsupportedTokenizerError("it has no tokens (tokenizer.ggml.tokens)")
        if self._kind == "llama":
            return Splitting((), starts=True, as_bytes=False)
        name = {"gpt2": str(self._get("pre", "")), "gemma4": "gemma4"}.get(self._kind)
        if name is None:
            raise UnsupportedTokenizerError(
                f"its vocabulary is of the kind {self._kind!r} (tokenizer.ggml.model), which is not supported; gpt2, "
                "llama and gemma4 are"
            )
        if name not in SPLITS:
            raise UnsupportedTokenizerError(
                f"its texts are split as {name!r} (tokenizer.ggml.pre), which is not supported: {', '.join(SPLITS)}"
            )
        return SPLITS[name]

    def _byte_level(self) -> dict[str, Any]:
        return {
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*self._splits(), _BYTE_LEVEL]},
            "decoder": _BYTE_LEVEL,
        }

    def _of_text(self) -> dict[str, Any]:
        """Return the parts for tokens of text. SentencePiece sets a space before a text also if it begins with one."""
        prefix = self._kind == "llama" and bool(self._get("add_space_prefix", True))
        before = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
        after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
        splits = self._splits()
        return {
            "normalizer": {"type": "Sequence", "normalizers": [*before, _FROM_SPACES]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits} if splits else None,
            "decoder": {
                "type": "Sequence",
                "decoders": [_TO_SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}, *after],
            },
        }

    def _splits(self) -> list[dict[str, Any]]:
        return [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self._splitting.patterns
        ]

    def _merges(self) -> list[tuple[str, str]]:
        """Return the merges of the file. Writers leave an empty list out, which a vocabulary of characters has.

        Raises:
            UnsupportedTokenizerError: it has none, and no text would become some of its tokens.
        """
        merges = self._get("merges", None)
        if merges is None:
            for text, number in self._vocab.items():
                if len(text) > 1 and number not in self._added and self._kinds[number] == _NORMAL:
                    raise UnsupportedTokenizerError("it has no merges (tokenizer.ggml.merges)")
            return []
        # A space may be the first character of a token.
        cuts = [merge.find(" ", 1) for merge in merges]
        return [(merge[:cut], merge[cut + 1 :]) for merge, cut in zip(merges, cuts, strict=True)]

    def _pairs(self, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
        """Return all pairs that make a token of text, those of the highest score first."""
        scores, kinds = self._get("scores", []), self._kinds
        if len(scores) < len(self._tokens):
            raise UnsupportedTokenizerError("it has fewer scores than tokens (tokenizer.ggml.scores)")
        made = [number for number in vocab.values() if kinds[number] in (_NORMAL, _USER_DEFINED)]
        return merges_of(self._tokens, vocab, scores, made)

    def _get(self, name: str, default: Any) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{name}", default)

    def _id(self, name: str) -> int | None:
        """Return the id under a key, or where a SentencePiece file lacks it SentencePiece's own; None for no token."""
        usual = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        number = self._get(name, usual.get(name) if self._kind == "llama" else None)
        return number if isinstance(number, int) and 0 <= number < len(self._tokens) else None

    def _text(self, name: str) -> str | None:
        """Return the text of a token by the key of its id."""
        number = self._id(name)
        return None if number is None else self._tokens[number]

    def _sets_around(self, before: list[str], after: list[str]) -> dict[str, Any] | None:
        """Return the post-processor that sets the tokens of these keys before and after each text."""
        numbers = {name: self._id(f"{name}_token_id") for name in (*before, *after)}
        texts = {name: self._tokens[number] for name, number in numbers.items() if number is not None}
        special = {
            text: {"id": text, "ids": [numbers[name]], "tokens": [text]} for name, text in texts.items()
        }
        if not special:
            return None
        first, last = (
            [{"SpecialToken": {"id": texts[name], "type_id": 0}} for name in names if name in texts]
            for names in (before, after)
        )
        a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
        return {
            "type": "TemplateProcessing",
            "single": [*first, a, *last],
            "pair": [*first, a, *last, *first, b, *last],
            "special_tokens": special,
        }

    def _adds_bos(self) -> bool:
        # As llama.cpp does: files of Gemma 4 say that it is not added, and the model needs it.
        return bool(self._get("add_bos_token", self._splitting.starts)) or self._splitting is SPLITS["gemma4"]

    @cached_property
    def _marked(self) -> list[tuple[int, int]]:
        """The ids of tokens that are not of the usual kind, and their kinds: few of hundreds of thousands."""
        return [(number, kind) for number, kind in enumerate(self._kinds) if kind != _NORMAL]

    @cached_property
    def _added(self) -> dict[int, bool]:
        """The added tokens by id, and whether they are control tokens."""
        found = {
            number: kind == _CONTROL for number, kind in self._marked if kind in (_CONTROL, _USER_DEFINED)
        }
        found |= {number: True for number, kind in self._marked if kind == _UNKNOWN}
        start = self._id("bos_token_id")
        found |= dict.fromkeys(file_ends(self._metadata) | ({start} if start is not None else set()), True)
        return {number: special for number, special in found.items() if self._tokens[number]}

    def _entry(self, number: int, special: bool) -> dict[str, Any]:
        text = self._tokens[number]
        of_phi_3 = self._metadata.get("general.architecture") == "phi3"
        flags = {"single_word": False, "lstrip": False, "normalized": False}
        return {
            "id": number,
            "content": text,
            "rstrip": of_phi_3 and text not in _KEEP_SPACE,
            "special": special,
            **flags,
        }

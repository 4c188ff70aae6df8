"""Encode text to token ids and look up the bytes of every token, with a model folder's `tokenizer.json`.

`<|im_start|>` written by a template is a control token; the same characters in a message are ordinary text. A guard
(`text.guard`) marks control tokens in message text before rendering, and `encode_rendered` splits a rendered prompt
only at the added tokens that are not marked. Prompts without marks are encoded by the library as a whole, as
transformers does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import Model

from plumbline.answer.text.fill_in import fill_in_tokens
from plumbline.answer.text.guard import Guard, TokenPattern, pattern_of
from plumbline.answer.text.token_bytes import UnsupportedTokenizerError, byte_table
from plumbline.answer.text.tokenizer_files import TokenizerFileError, add_tokens, named_tokens, read_config
from plumbline.base.workers.panics import panics

__all__ = ["TextTokenizer", "UnencodableTextError", "UnsupportedTokenizerError"]


_FAILED = "The model's tokenizer cannot encode this text"
_PROBES = ("a", "b c", "1", "\n", "\u4e00")
"""Texts of which a vocabulary encodes at least one."""
_MOST_TOKENS = 2**20
"""Four times the largest vocabulary of today. A file of a few bytes may give a token the id 2**32 - 1, and the tables
have an entry for every id."""


class UnencodableTextError(ValueError):
    """The model's tokenizer fails on a text, such as a regex of it that backtracks beyond its limit."""


class TextTokenizer:
    """Encode and decode text. Immutable after construction, safe to use from several threads.

    Attributes:
        vocab_size: ids are in [0, vocab_size).
        table: bytes of each id.
        visible_table: the same, without the bytes of control tokens.
        special_ids: ids of control tokens, which are not part of an answer's text.
        added: ids of added tokens, control or not, by their text.
        fill_in: the tokens for filling in the middle; None if the tokenizer has no such tokens.
        bos_token: the text of the sequence start, for templates; None if there is none.
        eos_token: the same of the sequence end.
        named: the texts of all special tokens by their names, such as `bos_token`.
    """

    def __init__(
        self,
        definition: Mapping[str, Any],
        *,
        config: Mapping[str, Any] | None = None,
        model: Model | None = None,
    ) -> None:
        config = config or {}
        if (definition.get("model") or {}).get("dropout"):
            raise UnsupportedTokenizerError(
                "model.dropout is set, which draws other tokens each time: remove it."
            )
        definition = {**definition, "truncation": None, "padding": None}
        if model is None:
            whole = FastTokenizer.from_str(json.dumps(definition))
            model = whole.model
            vocab: Mapping[str, int] = whole.get_vocab(with_added_tokens=False)
        else:
            vocab = definition["model"]["vocab"]
            definition["model"] = None
            whole = _with_model(definition, model)
            whole.add_tokens([AddedToken(**_entry(token)) for token in definition["added_tokens"]])
        # The base tokenizer has no added tokens, so that no text can become one.
        base = {**definition, "post_processor": None}
        self._base = _with_model(base, model)
        later = {**base, "pre_tokenizer": _for_later_pieces(base.get("pre_tokenizer"))}
        self._later = self._base if later == base else _with_model(later, model)
        generated = {**later, "normalizer": _without_prefix(later.get("normalizer"))}
        self._generated = self._later if generated == later else _with_model(generated, model)
        add_tokens(whole, config)
        # Ids are those that the library gives: it ignores ids of the file that are not in its order.
        added = {number: token for number, token in whole.get_added_tokens_decoder().items() if token.content}
        self.vocab_size: int = whole.get_vocab_size(with_added_tokens=True)
        highest = max(max(vocab.values(), default=-1), max(added, default=-1))
        self.vocab_size = max(self.vocab_size, highest + 1)
        if self.vocab_size > _MOST_TOKENS:
            raise UnsupportedTokenizerError(
                f"A token has the id {highest}; at most {_MOST_TOKENS} are supported."
            )
        self.added: dict[str, int] = {token.content: number for number, token in sorted(added.items())}
        self.fill_in = fill_in_tokens(self.added)
        self.named = named_tokens(config)
        special = {number for number, token in added.items() if token.special}
        special |= {self.added[text] for text in self.named.values() if text in self.added}
        self.special_ids = frozenset(special)
        self._added_ids = frozenset(self.added.values())
        self.table = byte_table(vocab, definition.get("decoder"), self.vocab_size, self.added)
        self.visible_table = self._without_special()
        self.longest_token = max(map(len, self.table), default=1) or 1
        self.bos_token, self.eos_token = self.named.get("bos_token"), self.named.get("eos_token")
        self._before, self._after = _set_around(whole)
        # Offsets must be those of the tokens, which post-processors trim.
        whole.post_processor = None
        whole.encode_special_tokens = bool(config.get("split_special_tokens"))
        self._whole = whole
        self._drops_first_space = _drops_first_space(definition.get("decoder"))

    @classmethod
    def from_folder(cls, folder: Path) -> TextTokenizer:
        """Load `tokenizer.json`, and the files beside it as `tokenizer_files` reads them.

        Raises:
            UnsupportedTokenizerError: the folder has no `tokenizer.json`, or its kind is not supported.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UnsupportedTokenizerError(
                f"{folder} has no tokenizer.json. Convert the tokenizer to that format first "
                "(transformers writes it with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`)."
            )
        definition = json.loads(path.read_text("utf-8"))
        if not isinstance(definition, dict):
            raise UnsupportedTokenizerError(f"{path} must be an object")
        try:
            with panics(UnsupportedTokenizerError, f"{path} cannot be used"):
                return cls(definition, config=read_config(folder, definition))
        except UnsupportedTokenizerError:
            raise
        except json.JSONDecodeError:
            raise
        except TokenizerFileError as error:
            raise UnsupportedTokenizerError(f"{folder}: {error}") from error
        except Exception as error:  # The library raises no narrower type.
            reason = str(error).partition("\n")[0][:200]
            raise UnsupportedTokenizerError(
                f"{path} cannot be read: {type(error).__name__}: {reason}"
            ) from error

    def encode_text(self, text: str) -> list[int]:
        """Encode text without any added tokens."""
        return _encoded(self._base, [text])[0]

    def encode_generated(self, text: str) -> list[int]:
        """Encode text as a model generates it: added tokens are single tokens, except control tokens."""
        ids: list[int] = []
        position = 0
        for match in self._generated_splitter.finditer(text) if self._generated_splitter is not None else ():
            ids += self._generated_text(text[position : match.start()])
            ids.append(self.added[match.group()])
            position = match.end()
        return ids + self._generated_text(text[position:])

    def encode_rendered(self, rendered: str, guard: Guard | None = None) -> list[int]:
        """Encode a rendered prompt: added tokens become their ids, except those that `guard` has marked (CHAT-22)."""
        if guard is None or not guard.marks_in(rendered):
            return _encoded(self._whole, [rendered])[0]
        ids: list[int] = []
        position = 0
        pieces: list[str] = []
        marks: list[int | None] = []
        with panics(UnencodableTextError, _FAILED):
            split = self._whole.encode(rendered, add_special_tokens=False)
        for number, (start, end) in zip(split.ids, split.offsets, strict=True):
            if number in self._added_ids and start >= position:
                pieces.append(guard.restore(rendered[position:start]))
                marks.append(number)
                position = end
        pieces.append(guard.restore(rendered[position:]))
        marks.append(None)
        encoded = _encoded(self._base, pieces[:1]) + _encoded(self._later, pieces[1:])
        for piece, mark in zip(encoded, marks, strict=True):
            ids.extend(piece)
            if mark is not None:
                ids.append(mark)
        return ids

    def encode_prompt(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encode the prompt of a plain completion, with the tokens that the tokenizer sets around a text.

        Only here may a client write control tokens, because no template writes them.

        Args:
            text: the prompt.
            add_special_tokens: whether to set them, which is most often a sequence start.
        """
        ids = self.encode_rendered(text)
        return self.with_special(ids) if add_special_tokens else ids

    def encode_gap(self, left: str, right: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encode the two sides of a gap that the model is to fill (CMP-07).

        Raises:
            ValueError: the tokenizer has no tokens for that.
        """
        if self.fill_in is None:
            raise ValueError("this tokenizer has no tokens for filling in the middle")
        ids = self.fill_in.prompt(self.encode_rendered(left), self.encode_rendered(right))
        # Nothing may end the text before the model has filled the gap.
        return [*self._before, *ids] if add_special_tokens else ids

    def with_special(self, ids: list[int]) -> list[int]:
        """Return ids with the tokens that the tokenizer sets around a text, also if the text has them itself."""
        return [*self._before, *ids, *self._after]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a whole run of tokens, control tokens included; invalid bytes become U+FFFD.

        Raises:
            IndexError: an id is outside the vocabulary.
        """
        return b"".join(self.pieces(token_ids)).decode("utf-8", "replace")

    def pieces(self, token_ids: Sequence[int]) -> list[bytes]:
        """Return the text that each token of a whole run adds.

        SentencePiece vocabularies add a space before the first word when they encode; it is removed here.
        """
        found = [self.table[token_id] for token_id in token_ids]
        if self._drops_first_space:
            first = next(
                (i for i, token_id in enumerate(token_ids) if token_id not in self.special_ids), None
            )
            if first is not None:
                found[first] = found[first].removeprefix(b" ")
        return found

    def num_around(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Return how many tokens `encode_prompt` has set before and after a text with special tokens."""
        ids, before, after = list(token_ids), self._before, self._after
        return (
            len(before) if ids[: len(before)] == before else 0,
            len(after) if after and ids[-len(after) :] == after else 0,
        )

    @cached_property
    def control(self) -> TokenPattern:
        """The added tokens that are control tokens."""
        return TokenPattern(text for text, number in self.added.items() if number in self.special_ids)

    @cached_property
    def _generated_splitter(self) -> re.Pattern[str] | None:
        others = (text for text, number in self.added.items() if number not in self.special_ids)
        return pattern_of({text: re.escape(text) for text in others})

    @cached_property
    def blank_ids(self) -> frozenset[int]:
        """The tokens that are white space and nothing else."""
        return frozenset(
            token_id for token_id, raw in enumerate(self.table) if raw and not raw.strip(b" \t\r\n")
        )

    def pad_table(self, vocab_size: int) -> None:
        """Add empty entries up to the model's vocabulary, which may be larger than the tokenizer's."""
        self.table += [b""] * (vocab_size - len(self.table))
        self.visible_table = self._without_special()

    def token_text(self, token_id: int) -> str:
        """Return the text of one token alone, with U+FFFD for bytes that are not valid UTF-8."""
        return self.table[token_id].decode("utf-8", "replace")

    def vocabulary_text(self, token_id: int) -> str:
        """Return a token as the vocabulary writes it, such as `Ġa`; empty for an id between the tokens."""
        name: str | None = self._base.id_to_token(token_id)
        if name is None:
            name = next((text for text, added in self.added.items() if added == token_id), "")
        return name

    def _generated_text(self, text: str) -> list[int]:
        return _encoded(self._generated, [text])[0] if text else []

    def _without_special(self) -> list[bytes]:
        # Computed once, so that leaving out control tokens costs nothing per token.
        found = self.table.copy()
        for number in self.special_ids:
            found[number] = b""
        return found


def _encoded(tokenizer: FastTokenizer, texts: list[str]) -> list[list[int]]:
    """Return the ids of each text.

    Raises:
        UnencodableTextError: the tokenizer fails on one of them.
    """
    with panics(UnencodableTextError, _FAILED):
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


_NO_MODEL: Mapping[str, Any] = {"type": "BPE", "vocab": {}, "merges": []}


def _with_model(definition: Mapping[str, Any], model: Model) -> FastTokenizer:
    """Return a tokenizer without added tokens that shares a model, which is most of what it takes."""
    found = FastTokenizer.from_str(json.dumps({**definition, "model": _NO_MODEL, "added_tokens": []}))
    found.model = model
    return found


def _entry(token: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in token.items() if name != "id"}


def _set_around(whole: FastTokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens that the post-processor sets before and after a text.

    Raises:
        UnsupportedTokenizerError: it does something else with texts.
    """
    for text in _PROBES:
        plain = whole.encode(text, add_special_tokens=False).ids
        found = whole.encode(text, add_special_tokens=True)
        ids: list[int] = found.ids
        before = next((i for i, is_set in enumerate(found.special_tokens_mask) if not is_set), len(ids))
        if ids[before : before + len(plain)] != plain:
            raise UnsupportedTokenizerError(
                "The post-processor does more than to set tokens before and after a text."
            )
        if plain:
            break
    return ids[:before], ids[before + len(plain) :]


def _without_prefix(normalizer: Any) -> Any:
    """Return the normalizer for text that a model generates, which sets no space before it."""
    if not isinstance(normalizer, Mapping):
        return normalizer
    if normalizer.get("type") == "Sequence":
        parts = [part for part in normalizer.get("normalizers", []) if part.get("type") != "Prepend"]
        return {**normalizer, "normalizers": parts}
    return None if normalizer.get("type") == "Prepend" else normalizer


def _for_later_pieces(pre_tokenizer: Any) -> Any:
    """Return the pre-tokenizer for text after an added token, which adds no space before the first word."""
    if not isinstance(pre_tokenizer, Mapping):
        return pre_tokenizer
    match pre_tokenizer.get("type"):
        case "Sequence":
            parts = [_for_later_pieces(part) for part in pre_tokenizer.get("pretokenizers", [])]
            return {**pre_tokenizer, "pretokenizers": parts}
        case "Metaspace" if pre_tokenizer.get("prepend_scheme") == "first":
            return {**pre_tokenizer, "prepend_scheme": "never"}
        case _:
            return pre_tokenizer


def _drops_first_space(decoder: Any) -> bool:
    """Return whether decoding a whole text removes the space that encoding added before the first word."""
    if not isinstance(decoder, Mapping):
        return False
    match decoder.get("type"):
        case "Sequence":
            return any(_drops_first_space(part) for part in decoder.get("decoders", []))
        case "Strip":
            return bool(decoder.get("content") == " " and decoder.get("start", 0))
        case "Metaspace":
            return bool(decoder.get("prepend_scheme", "always") != "never")
        case _:
            return False

"""Text to token ids and the bytes of every token, straight from a model folder's `tokenizer.json`.

Text of a template and text of a user must not meet on equal terms: `<|im_start|>` written by a template is a control
token, the same characters typed by a user are just characters. `encode_rendered` splits a rendered prompt at the added
tokens that the *template* wrote; `Guard` marks those that came in through message text, so that they are encoded as
ordinary text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

__all__ = ["Guard", "TextTokenizer", "UnsupportedTokenizerError"]


class UnsupportedTokenizerError(ValueError):
    """The folder's tokenizer cannot be used; the text says what is missing."""


class TextTokenizer:
    """A tokenizer with the bytes of its tokens. Immutable after construction, safe to use from several threads.

    Attributes:
        vocab_size: ids are in [0, vocab_size).
        table: bytes of each id.
        special_ids: ids of control tokens, which are no text of an answer.
        added: every added token, control or not, by its text.
    """

    def __init__(self, definition: Mapping[str, Any], *, config: Mapping[str, Any] | None = None) -> None:
        config = config or {}
        added = [token for token in definition.get("added_tokens", []) if token["content"]]
        # The base tokenizer knows no added tokens at all, so that no text it is given can become one.
        base = {**definition, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        self._base = FastTokenizer.from_str(json.dumps(base))
        whole = FastTokenizer.from_str(json.dumps({**definition, "truncation": None, "padding": None}))
        self.vocab_size: int = whole.get_vocab_size(with_added_tokens=True)
        highest = max(whole.get_vocab(with_added_tokens=True).values(), default=-1)
        self.vocab_size = max(self.vocab_size, highest + 1)
        self.added: dict[str, int] = {token["content"]: token["id"] for token in added}
        self.special_ids = frozenset(token["id"] for token in added if token.get("special"))
        self.special_texts = tuple(token["content"] for token in added if token.get("special"))
        self._splitter = _splitter(list(self.added))
        self.table = _byte_table(whole, definition, self.vocab_size, self.added)
        self.bos_token: str | None = _token_text(config.get("bos_token"))
        self.eos_token: str | None = _token_text(config.get("eos_token"))
        self._adds_bos = self.bos_token in self.added and _adds_bos(whole, self.added[self.bos_token])

    @classmethod
    def from_folder(cls, folder: Path) -> TextTokenizer:
        """Load `tokenizer.json` (and `tokenizer_config.json` if it is there).

        Raises:
            UnsupportedTokenizerError: there is no `tokenizer.json`, or it is of a kind that is not understood.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UnsupportedTokenizerError(
                "The model folder has no tokenizer.json. Convert the tokenizer to that format first "
                "(transformers writes it with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`)."
            )
        config_path = folder / "tokenizer_config.json"
        config = json.loads(config_path.read_text("utf-8")) if config_path.is_file() else {}
        return cls(json.loads(path.read_text("utf-8")), config=config)

    def encode_text(self, text: str) -> list[int]:
        """Encode text in which nothing is a control token."""
        ids: list[int] = self._base.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def encode_rendered(self, rendered: str, guard: Guard | None = None) -> list[int]:
        """Encode a rendered prompt: added tokens become their ids, unless `guard` says that a user wrote them."""
        ids: list[int] = []
        position = 0
        matches = self._splitter.finditer(rendered) if self._splitter is not None else iter(())
        restore = guard.restore if guard is not None else _unchanged
        pieces: list[str] = []
        marks: list[int | None] = []
        for match in matches:
            pieces.append(restore(rendered[position : match.start()]))
            marks.append(self.added[match.group()])
            position = match.end()
        pieces.append(restore(rendered[position:]))
        marks.append(None)
        for encoding, mark in zip(
            self._base.encode_batch_fast(pieces, add_special_tokens=False), marks, strict=True
        ):
            ids.extend(encoding.ids)
            if mark is not None:
                ids.append(mark)
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Encode the prompt of a plain completion: the sequence start, if the model has one, and then text.

        Raw completions are the one place where a client may write control tokens: there is no template that could.
        """
        ids = self.encode_rendered(text)
        if self._adds_bos and self.bos_token is not None:
            bos = self.added[self.bos_token]
            if ids[:1] != [bos]:
                ids.insert(0, bos)
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of a whole run of tokens; invalid bytes become U+FFFD.

        Raises:
            IndexError: an id is outside the vocabulary.
        """
        hidden = self.special_ids if skip_special_tokens else frozenset()
        return b"".join(self.table[i] for i in token_ids if i not in hidden).decode("utf-8", "replace")

    def pad_table(self, vocab_size: int) -> None:
        """Models may have more rows than their tokenizer has tokens; such an id has no text."""
        self.table += [b""] * (vocab_size - len(self.table))

    def token_text(self, token_id: int) -> str:
        """One token by itself, U+FFFD where its bytes are not valid UTF-8."""
        return self.table[token_id].decode("utf-8", "replace")


class Guard:
    """Keeps control tokens in message text from becoming control tokens.

    `protect` puts a mark into every occurrence of a listed token, so that the splitter no longer sees it; `restore`
    takes the marks out of the pieces between the true ones. The mark is a private-use character that does not occur in
    the request at all, so that nothing a client sends can be taken for it.
    """

    def __init__(self, tokens: Sequence[str], texts: Sequence[str]) -> None:
        self._pattern = _splitter([token for token in tokens if any(token in text for text in texts)])
        self._mark = next(
            mark for mark in map(chr, range(0xE000, 0xF8FF)) if not any(mark in text for text in texts)
        )

    @property
    def needed(self) -> bool:
        """Some text contains a listed token."""
        return self._pattern is not None

    def protect(self, text: str) -> str:
        """Mark every listed token in this text."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: match.group()[0] + self._mark + match.group()[1:], text)

    def restore(self, piece: str) -> str:
        """Take the marks out."""
        return piece if self._pattern is None else piece.replace(self._mark, "")


def _unchanged(piece: str) -> str:
    return piece


def _splitter(tokens: Sequence[str]) -> re.Pattern[str] | None:
    if not tokens:
        return None
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))


def _token_text(value: Any) -> str | None:
    """`bos_token` and the like are a string, an object with `content`, or null."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _adds_bos(whole: FastTokenizer, bos: int) -> bool:
    return bool(whole.encode("a", add_special_tokens=True).ids[:1] == [bos])


def _byte_table(
    whole: FastTokenizer, definition: Mapping[str, Any], vocab_size: int, added: Mapping[str, int]
) -> list[bytes]:
    """The bytes of every id, by the rule of the tokenizer's decoder."""
    to_bytes = _token_decoder(definition)
    table = [b""] * vocab_size
    for text, token_id in whole.get_vocab(with_added_tokens=False).items():
        table[token_id] = to_bytes(text)
    for text, token_id in added.items():
        table[token_id] = text.encode()
    return table


def _token_decoder(definition: Mapping[str, Any]) -> Callable[[str], bytes]:
    kinds = set(_decoder_kinds(definition.get("decoder")))
    if "ByteLevel" in kinds:
        alphabet = _byte_alphabet()
        return lambda text: b"".join(
            bytes([alphabet[char]]) if char in alphabet else char.encode() for char in text
        )
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return _sentencepiece_bytes
    raise UnsupportedTokenizerError(
        f"The tokenizer's decoder {sorted(kinds) or None} is neither byte-level nor of the SentencePiece kind."
    )


def _decoder_kinds(decoder: Any) -> list[str]:
    if not isinstance(decoder, Mapping):
        return []
    if decoder.get("type") == "Sequence":
        return [kind for part in decoder.get("decoders", []) for kind in _decoder_kinds(part)]
    return [str(decoder.get("type"))]


def _sentencepiece_bytes(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level BPE (GPT-2): printable Latin-1 stands for itself."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}

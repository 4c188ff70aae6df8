"""What the parsers of other servers are asked, and in what words they and we answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

__all__ = ["Message", "Peer", "Stream", "Tokenizer", "cut", "message", "thought", "together"]


class Message(NamedTuple):
    """What a client would get, without ids. Arguments are JSON values, or text that is no JSON."""

    content: str
    calls: tuple[tuple[str, str], ...]


class Stream(NamedTuple):
    """An output that is about to be read token by token, once."""

    tokens: int
    read: Callable[[], list[Any]]
    """The parser's own calls, and nothing beside them: what it says of each token."""
    message: Callable[[list[Any]], Message]
    """What a client has got after that."""


class Peer(Protocol):
    """One other server."""

    name: str
    version: str

    def names(self) -> Sequence[str]:
        """Its names of parsers."""
        ...

    def read(
        self, parser: str, text: str, tools: list[Any], markers: list[str], *, streamed: bool
    ) -> Message:
        """The message of an output."""
        ...

    def stream(
        self, parser: str, text: str, tools: list[Any], markers: list[str], *, size: int = 1
    ) -> Stream:
        """An output in tokens of so many characters, markers being tokens of their own."""
        ...

    def thinkers(self) -> Sequence[str]:
        """Its names of parsers of thinking."""
        ...

    def think(
        self,
        parser: str,
        text: str,
        markers: list[str],
        opened: str,
        variables: dict[str, Any],
        *,
        streamed: bool,
    ) -> Message:
        """The thinking and the content of an output, after a prompt that has opened the thinking with this, if any.

        The variables are those of the chat template that turn thinking on.

        Raises:
            NotImplementedError: it reads this family elsewhere, or needs a tokenizer that is not at hand.
        """
        ...

    def think_stream(
        self,
        parser: str,
        text: str,
        markers: list[str],
        opened: str,
        variables: dict[str, Any],
        *,
        size: int = 1,
    ) -> Stream:
        """The same in tokens of so many characters."""
        ...

    def speak(
        self,
        tool: str,
        thinker: str,
        text: str,
        tools: list[Any],
        markers: list[str],
        opened: str,
        variables: dict[str, Any],
        *,
        streamed: bool,
    ) -> Message:
        """The thinking, the content and the calls of an output, its two parsers working together as they do there.

        Raises:
            NotImplementedError: as for `think`.
        """
        ...


def message(content: str, calls: Sequence[tuple[str, str]]) -> Message:
    """A message in one way of writing: argument values instead of their text, and all white space alike."""
    return Message(" ".join(content.split()), tuple((name, _value(arguments)) for name, arguments in calls))


def thought(reasoning: str | None, content: str | None) -> Message:
    """Thinking and content, all white space alike."""
    thinks = " ".join((reasoning or "").split())
    return Message(" ".join((content or "").split()), (("thinks", thinks),) if thinks else ())


def together(reasoning: str | None, content: str | None, calls: Sequence[tuple[str, str]]) -> Message:
    """Thinking, content and calls."""
    text, thinks = thought(reasoning, content)
    return Message(text, (*thinks, *message("", calls).calls))


def _value(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False, sort_keys=True)
    except ValueError:
        return f"no JSON: {arguments}"


class Tokenizer:
    """A tokenizer whose tokens are the markers of a dialect and, of everything else, so many characters each."""

    all_special_tokens: tuple[str, ...] = ()
    all_special_ids: tuple[int, ...] = ()
    chat_template = ""
    eos_token_id = 1
    bos_token_id = 0
    is_fast = True
    _FIRST = 0x110000

    def __init__(self, markers: list[str], size: int = 1) -> None:
        self._size = size
        self._markers = sorted((marker for marker in markers if len(marker) > 2), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._markers)) or "(?!)")
        self._vocab = {marker: self._FIRST + number for number, marker in enumerate(self._markers)}
        self._texts = {token_id: text for text, token_id in self._vocab.items()}
        self._vocab |= {chr(code): code for code in range(32, 127) if chr(code) not in self._vocab}

    def get_vocab(self) -> dict[str, int]:
        return self._vocab

    def get_added_vocab(self) -> dict[str, int]:
        return {marker: self._vocab[marker] for marker in self._markers}

    def encode(self, text: str, **_: Any) -> list[int]:
        found: list[int] = []
        position = 0
        for match in self._pattern.finditer(text):
            found += self._plain(text[position : match.start()])
            found.append(self._vocab[match.group()])
            position = match.end()
        return found + self._plain(text[position:])

    def _plain(self, text: str) -> list[int]:
        pieces = (text[start : start + self._size] for start in range(0, len(text), self._size))
        return [ord(piece) if len(piece) == 1 else self._id(piece) for piece in pieces]

    def _id(self, piece: str) -> int:
        """Of a piece of several characters, which is given to it when it is first seen."""
        found = self._vocab.setdefault(piece, self._FIRST + len(self._vocab))
        self._texts[found] = piece
        return found

    def steps(self, text: str) -> Iterator[tuple[str, str, str, list[int], list[int], list[int]]]:
        """For each token the text before it, with it and of it, and the ids of the three."""
        ids = self.encode(text)
        end = 0
        for number, token_id in enumerate(ids):
            piece = self.decode([token_id])
            start, end = end, end + len(piece)
            yield text[:start], text[:end], piece, ids[:number], ids[: number + 1], [token_id]

    def decode(self, ids: int | Sequence[int], **_: Any) -> str:
        each = [ids] if isinstance(ids, int) else ids
        return "".join(self._texts.get(token_id) or chr(token_id) for token_id in each)

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> Any:
        return (
            self._vocab.get(tokens)
            if isinstance(tokens, str)
            else [self._vocab.get(token) for token in tokens]
        )

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.decode([token_id]) for token_id in ids]


def cut(text: str, markers: list[str], size: int = 1) -> list[str]:
    """An output as its tokens, which peers and we are given alike."""
    tokenizer = Tokenizer(markers, size)
    return [tokenizer.decode([token_id]) for token_id in tokenizer.encode(text)]

"""Define the interface to other servers' parsers and the normalised messages that are compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

__all__ = [
    "ParsedMessage",
    "ParserStream",
    "PeerParsers",
    "Tokenizer",
    "cut",
    "reasoning_and_text",
    "reasoning_text_and_calls",
    "text_and_calls",
]


class ParsedMessage(NamedTuple):
    """The content and calls that a client would get, without ids.

    Arguments are normalised JSON, or text that is not valid JSON.
    """

    content: str
    calls: tuple[tuple[str, str], ...]


class ParserStream(NamedTuple):
    """A parser that is ready to read one output token by token, once."""

    tokens: int
    read: Callable[[], list[Any]]
    """Run the parser over all tokens and nothing else, so that it can be timed; returns its deltas."""
    message: Callable[[list[Any]], ParsedMessage]
    """Convert these deltas to the message that a client would get."""


class PeerParsers(Protocol):
    """The parsers of one other server."""

    name: str
    version: str

    def names(self) -> Sequence[str]:
        """Return the names of its tool parsers."""
        ...

    def read(
        self,
        parser: str,
        text: str,
        tools: list[Any],
        markers: list[str],
        *,
        streamed: bool,
        pieces: Sequence[str] = (),
    ) -> ParsedMessage:
        """Parse an output with a tool parser; without `pieces`, all tokens but markers are characters."""
        ...

    def stream(
        self, parser: str, text: str, tools: list[Any], markers: list[str], *, size: int = 1
    ) -> ParserStream:
        """Prepare a tool parser for an output in tokens of `size` characters; markers are single tokens."""
        ...

    def reasoning_parsers(self) -> Sequence[str]:
        """Return the names of its reasoning parsers."""
        ...

    def read_reasoning(
        self,
        parser: str,
        text: str,
        markers: list[str],
        opened: str,
        variables: dict[str, Any],
        *,
        streamed: bool,
        pieces: Sequence[str] = (),
    ) -> ParsedMessage:
        """Parse reasoning and content of an output with a reasoning parser.

        Args:
            opened: the marker with which the prompt has opened the thinking; empty if it has not.
            variables: the chat template variables that turn thinking on.

        Raises:
            NotImplementedError: the server reads this family elsewhere, or needs a tokenizer that is not available.
        """
        ...

    def stream_reasoning(
        self,
        parser: str,
        text: str,
        markers: list[str],
        opened: str,
        variables: dict[str, Any],
        *,
        size: int = 1,
    ) -> ParserStream:
        """Prepare a reasoning parser for an output in tokens of `size` characters."""
        ...

    def read_with_reasoning(
        self,
        tool: str,
        reasoning_parser: str,
        text: str,
        tools: list[Any],
        markers: list[str],
        opened: str,
        variables: dict[str, Any],
        *,
        streamed: bool,
        pieces: Sequence[str] = (),
    ) -> ParsedMessage:
        """Parse reasoning, content and calls with both parsers, combined as that server combines them.

        Raises:
            NotImplementedError: as for `read_reasoning`.
        """
        ...


def text_and_calls(content: str, calls: Sequence[tuple[str, str]]) -> ParsedMessage:
    """Return a message with normalised arguments and white space."""
    return ParsedMessage(
        " ".join(content.split()), tuple((name, _value(arguments)) for name, arguments in calls)
    )


def reasoning_and_text(reasoning: str | None, content: str | None) -> ParsedMessage:
    """Return a message of reasoning and content, with normalised white space."""
    thoughts = " ".join((reasoning or "").split())
    return ParsedMessage(" ".join((content or "").split()), (("thinks", thoughts),) if thoughts else ())


def reasoning_text_and_calls(
    reasoning: str | None, content: str | None, calls: Sequence[tuple[str, str]]
) -> ParsedMessage:
    """Return a message of reasoning, content and calls."""
    text, thoughts = reasoning_and_text(reasoning, content)
    return ParsedMessage(text, (*thoughts, *text_and_calls("", calls).calls))


def _value(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False, sort_keys=True)
    except ValueError:
        return f"no JSON: {arguments}"


class Tokenizer:
    """Tokenize the markers of a dialect as single tokens, and all other text in pieces of `size` characters.

    With `pieces`, their text has these tokens, unless one of them has a part of a marker.
    """

    all_special_tokens: tuple[str, ...] = ()
    all_special_ids: tuple[int, ...] = ()
    chat_template = ""
    eos_token_id = 1
    bos_token_id = 0
    is_fast = True
    _FIRST = 0x110000

    def __init__(self, markers: list[str], size: int = 1, pieces: Sequence[str] = ()) -> None:
        self._size = size
        self._pieces = pieces
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
        if self._pieces and text == "".join(self._pieces) and self._has_whole_markers(text):
            return [self._vocab.get(piece) or self._plain_id(piece) for piece in self._pieces]
        found: list[int] = []
        position = 0
        for match in self._pattern.finditer(text):
            found += self._plain(text[position : match.start()])
            found.append(self._vocab[match.group()])
            position = match.end()
        return found + self._plain(text[position:])

    def _plain(self, text: str) -> list[int]:
        pieces = (text[start : start + self._size] for start in range(0, len(text), self._size))
        return [self._plain_id(piece) for piece in pieces]

    def _plain_id(self, piece: str) -> int:
        return ord(piece) if len(piece) == 1 else self._id(piece)

    def _has_whole_markers(self, text: str) -> bool:
        """Whether each marker of the text is one of the pieces."""
        return sum(piece in self._markers for piece in self._pieces) == len(self._pattern.findall(text))

    def _id(self, piece: str) -> int:
        """Return the id of a piece of several characters, assigning one when the piece is new."""
        found = self._vocab.setdefault(piece, self._FIRST + len(self._vocab))
        self._texts[found] = piece
        return found

    def steps(self, text: str) -> Iterator[tuple[str, str, str, list[int], list[int], list[int]]]:
        """Yield for each token the text before it, through it and of it, and the ids of the three."""
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


def cut(text: str, markers: list[str], size: int = 1, pieces: Sequence[str] = ()) -> list[str]:
    """Split an output into the tokens that all parsers read."""
    tokenizer = Tokenizer(markers, size, pieces)
    return [tokenizer.decode([token_id]) for token_id in tokenizer.encode(text)]

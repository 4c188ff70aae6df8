"""The parsers of other servers behind one interface, where they can be imported.

They are asked about the same outputs as ours, whole and token by token. Nothing of them is used otherwise.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple, Protocol

__all__ = ["Message", "Peer", "Stream", "cut", "message", "peers", "thought"]


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


def peers() -> list[Peer]:
    """Those that import."""
    logging.disable(logging.CRITICAL)
    found: list[Peer] = []
    for kind in (_Vllm, _Sglang):
        with contextlib.suppress(ImportError):
            found.append(kind())
    return found


def message(content: str, calls: Sequence[tuple[str, str]]) -> Message:
    """A message in one way of writing: argument values instead of their text, and all white space alike."""
    return Message(" ".join(content.split()), tuple((name, _value(arguments)) for name, arguments in calls))


def thought(reasoning: str | None, content: str | None) -> Message:
    """Thinking and content, all white space alike."""
    thinks = " ".join((reasoning or "").split())
    return Message(" ".join((content or "").split()), (("thinks", thinks),) if thinks else ())


def _value(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False, sort_keys=True)
    except ValueError:
        return f"no JSON: {arguments}"


class _Tokenizer:
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
    tokenizer = _Tokenizer(markers, size)
    return [tokenizer.decode([token_id]) for token_id in tokenizer.encode(text)]


class _Vllm:
    name = "vLLM"

    def __init__(self) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.reasoning import ReasoningParserManager
        from vllm.tool_parsers import ToolParserManager

        self.version = version("vllm")
        self._manager = ToolParserManager
        self._thinkers = ReasoningParserManager
        self._request = ChatCompletionRequest

    def names(self) -> Sequence[str]:
        return list(self._manager.list_registered())

    def read(
        self, parser: str, text: str, tools: list[Any], markers: list[str], *, streamed: bool
    ) -> Message:
        request = self._request(model="m", messages=[{"role": "user", "content": "hi"}], tools=tools)
        tokenizer = _Tokenizer(markers)
        reader = self._manager.get_tool_parser(parser)(tokenizer, request.tools)
        if not streamed:
            whole = reader.extract_tool_calls(text, request)
            calls = [(call.function.name, call.function.arguments) for call in whole.tool_calls]
            return message(whole.content or "", calls)
        stream = self._stream(reader, request, tokenizer, text)
        return stream.message(stream.read())

    def stream(
        self, parser: str, text: str, tools: list[Any], markers: list[str], *, size: int = 1
    ) -> Stream:
        request = self._request(model="m", messages=[{"role": "user", "content": "hi"}], tools=tools)
        tokenizer = _Tokenizer(markers, size)
        return self._stream(
            self._manager.get_tool_parser(parser)(tokenizer, request.tools), request, tokenizer, text
        )

    def _stream(self, reader: Any, request: Any, tokenizer: _Tokenizer, text: str) -> Stream:
        steps = list(tokenizer.steps(text))

        def read() -> list[Any]:
            parse = reader.extract_tool_calls_streaming
            return [parse(*step, request) for step in steps]

        return Stream(len(steps), read, self._said)

    def _said(self, deltas: list[Any]) -> Message:
        content = ""
        found: dict[int, list[str]] = {}
        for delta in filter(None, deltas):
            content += delta.content or ""
            for call in delta.tool_calls or ():
                one = found.setdefault(call.index, ["", ""])
                if call.function is not None:
                    one[0] += call.function.name or ""
                    one[1] += call.function.arguments or ""
        return message(content, [(name, arguments) for name, arguments in found.values()])

    def thinkers(self) -> Sequence[str]:
        return list(self._thinkers.list_registered())

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
        request = self._request(model="m", messages=[{"role": "user", "content": "hi"}])
        tokenizer = _Tokenizer(markers)
        reader = self._thinker(parser, tokenizer, opened, variables)
        whole = reader.extract_reasoning(text, request)
        if whole is None:  # A stub, as for calls.
            raise NotImplementedError
        if not streamed:
            return thought(*whole)
        stream = self._think_stream(reader, tokenizer, text)
        return stream.message(stream.read())

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
        tokenizer = _Tokenizer(markers, size)
        return self._think_stream(self._thinker(parser, tokenizer, opened, variables), tokenizer, text)

    def _thinker(self, parser: str, tokenizer: _Tokenizer, opened: str, variables: dict[str, Any]) -> Any:
        try:
            reader = self._thinkers.get_reasoning_parser(parser)(tokenizer, chat_template_kwargs=variables)
        except KeyError as error:  # It looks for tokens that only the family's own tokenizer has.
            raise NotImplementedError from error
        reader.adjust_initial_state_from_prompt(tokenizer.encode(opened))
        return reader

    def _think_stream(self, reader: Any, tokenizer: _Tokenizer, text: str) -> Stream:
        steps = list(tokenizer.steps(text))

        def read() -> list[Any]:
            parse = reader.extract_reasoning_streaming
            return [parse(*step) for step in steps]

        def said(deltas: list[Any]) -> Message:
            found = [delta for delta in deltas if delta is not None]
            return thought(
                "".join(delta.reasoning or "" for delta in found),
                "".join(delta.content or "" for delta in found),
            )

        return Stream(len(steps), read, said)


class _Sglang:
    name = "SGLang"

    def __init__(self) -> None:
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        self._thinker = ReasoningParser
        self.version = version("sglang")
        self._parser = FunctionCallParser
        self._tool = Tool

    def names(self) -> Sequence[str]:
        return list(self._parser.ToolCallParserEnum)

    def read(
        self, parser: str, text: str, tools: list[Any], markers: list[str], *, streamed: bool
    ) -> Message:
        reader = self._parser([self._tool(**tool) for tool in tools], parser)
        if not streamed:
            content, calls = reader.parse_non_stream(text)
            return message(content or "", [(call.name or "", call.parameters) for call in calls])
        stream = self.stream(parser, text, tools, markers)
        return stream.message(stream.read())

    def stream(
        self, parser: str, text: str, tools: list[Any], markers: list[str], *, size: int = 1
    ) -> Stream:
        reader = self._parser([self._tool(**tool) for tool in tools], parser)
        pieces = cut(text, markers, size)

        def read() -> list[Any]:
            parse = reader.parse_stream_chunk
            return [parse(piece) for piece in pieces]

        return Stream(len(pieces), read, self._said)

    def _said(self, deltas: list[Any]) -> Message:
        found: dict[int, list[str]] = {}
        for _, calls in deltas:
            for call in calls:
                one = found.setdefault(call.tool_index, ["", ""])
                one[0] += call.name or ""
                one[1] += call.parameters or ""
        content = "".join(said or "" for said, _ in deltas)
        return message(content, [(name, arguments) for name, arguments in found.values()])

    def thinkers(self) -> Sequence[str]:
        return list(self._thinker.DetectorMap)

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
        if not streamed:
            return thought(*self._reader(parser, opened).parse_non_stream(text))
        stream = self.think_stream(parser, text, markers, opened, variables)
        return stream.message(stream.read())

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
        reader = self._reader(parser, opened)
        pieces = cut(text, markers, size)

        def read() -> list[Any]:
            parse = reader.parse_stream_chunk
            return [parse(piece) for piece in pieces]

        def said(deltas: list[Any]) -> Message:
            return thought(*("".join(delta[place] or "" for delta in deltas) for place in (0, 1)))

        return Stream(len(pieces), read, said)

    def _reader(self, parser: str, opened: str) -> Any:
        return self._thinker(parser, force_reasoning=True if opened else None)
